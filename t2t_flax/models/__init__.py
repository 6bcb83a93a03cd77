"""The Transformer as pure functions of (params, tokens); knows no file, mesh or optimizer.

In the order of section 3: `transformer` (encoder and decoder stacks, 3.1), `layers` (their layers, 3.1, and feed-forward, 3.3),
`attention` (3.2), `embeddings` (tokens, 3.4, and positions, 3.5).
"""
