"""What tests share: small configs and runs, child processes, stand-ins."""
