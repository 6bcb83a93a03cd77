"""Generator of the built-in English-German corpus; writes the files in t2t_flax/data/sources."""
