"""From text to batches: `sources` are read, `tokenizers` encode, `store` keeps tokens, `batching` makes batch k."""
