"""Constituency parsing: words to linearized trees, scored by labelled F1."""
