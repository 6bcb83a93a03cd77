"""Search over a step function, and translation of lines with it."""
