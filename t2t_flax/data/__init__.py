"""Data pipeline from text to batches.

`sources` reads sentence pairs, `tokenizers` encodes them, `token_store` keeps the ids, and
`batching` makes batch k.
"""
