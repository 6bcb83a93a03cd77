"""Finished runs: loaded, scored, recorded."""
