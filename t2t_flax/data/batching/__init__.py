"""Batch k as a function of (config, k): epoch order, packing and bucketing, arrays."""
