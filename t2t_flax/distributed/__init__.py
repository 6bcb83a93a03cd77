"""The mesh, and how arrays lie on it."""
