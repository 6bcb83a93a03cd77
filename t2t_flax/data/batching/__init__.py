"""Batch k as a function of (config, k): order of an epoch, packing and bucketing, arrays."""
