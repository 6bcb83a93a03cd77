"""What a run says of itself: metrics, time, memory, progress."""
