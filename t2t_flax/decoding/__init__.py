"""Beam search, sampling and scoring over a decode step, and translation of lines."""
