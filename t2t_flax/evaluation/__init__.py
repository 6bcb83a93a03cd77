"""Load, score and record finished runs."""
