"""One thin file per command: read flags, call the library, print.

Each has `run(argv) -> exit code`.
"""
