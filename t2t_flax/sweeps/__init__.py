"""Hyperparameter sweeps: search spaces, trials, the workers that train them, and a report with significance."""
