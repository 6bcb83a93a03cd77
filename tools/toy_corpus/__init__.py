"""The generator of the built-in English-German corpus; its output is part of the package (t2t_flax/data/sources)."""
