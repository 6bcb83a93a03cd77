"""Constituency parsing: words in, a linearized tree out, scored by labelled F1."""
