"""The token store: a prepared corpus as memory-mapped arrays on a local disk or in an object store."""
