#!/usr/bin/env bash
# Runs a command and restarts it until it has finished. For hosts where nothing else restarts it.
# usage: launch/retry.sh [--restarts=R] [--delay=S] [--exit-file=FILE] -- COMMAND...
# A restart comes after S seconds (30), which give the other hosts time to end, so that all start together. README.md says which
# exit codes are final, and what R (20) limits. SIGTERM, SIGINT and SIGHUP go to the command and end the restarts. The last
# exit code is written to FILE.
exec python3 "$(dirname "$0")/restarts.py" retry "$@"
