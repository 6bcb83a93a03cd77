"""What a run will need and how fast it can be, before any accelerator is paid for."""
