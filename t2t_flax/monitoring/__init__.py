"""What a run says of itself: metrics, time, FLOPs, memory, progress."""
