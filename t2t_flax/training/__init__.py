"""Loss, optimizer, train step, checkpoints and the training loop."""
