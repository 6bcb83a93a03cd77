"""One thin file a command: read flags, call the library, print. Each has `run(argv) -> exit code`."""
