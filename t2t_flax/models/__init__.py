"""The Transformer as pure functions of (params, tokens); knows no file, mesh or optimizer."""
