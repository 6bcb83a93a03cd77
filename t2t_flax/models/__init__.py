"""Transformer as pure functions of (params, tokens).

It uses no files, mesh or optimizer. The modules follow section 3 of the paper: `transformer`
(encoder and decoder stacks, 3.1), `layers` (their layers, 3.1, and feed-forward, 3.3), `attention`
(3.2), `embeddings` (tokens, 3.4, and positions, 3.5).
"""
