"""Shared by tests: small configs and runs, child processes and fakes."""
