"""Batch k as a function of (config, k): epoch order, packing, buckets and arrays."""
