"""Loss, optimizer, step, checkpoints and the loop."""
