"""Beam search, sampling and scoring with a decode step, and translation of lines."""
