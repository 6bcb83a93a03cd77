#!/usr/bin/env bash
# Runs a command again until it has finished: on each host, where nothing else restarts it.
# usage: launch/retry.sh [--restarts=R] [--delay=S] [--exit-file=FILE] -- COMMAND...
# Exit codes 0 (finished), 2 (a mistake) and 3 (diverged) end it, everything else is restarted after S seconds, R times at
# most. A command that cannot be started (126, 127) is a mistake: 2. The delay is longer than the other hosts need to end,
# so that all meet again. SIGTERM and SIGINT go to the command, and then nothing restarts. The last exit code is written
# to FILE.
set -u
restarts=20 delay=30 exit_file='' stopped='' child='' attempt=0
while (($#)) && [ "$1" != -- ]; do
  case $1 in
    --restarts=*) restarts=${1#*=} ;;
    --delay=*) delay=${1#*=} ;;
    --exit-file=*) exit_file=${1#*=} ;;
    *) echo "retry: unknown flag $1" >&2 && exit 2 ;;
  esac
  shift
done
(($# > 1)) && [[ $restarts =~ ^(0|[1-9][0-9]{0,5})$ && $delay =~ ^(0|[1-9][0-9]{0,5})$ ]] || {
  sed -n '3s/^# *//p' "$0" >&2
  exit 2
}
shift
[ -z "$exit_file" ] || rm -f "$exit_file"
trap 'stopped=1; kill -TERM $child 2>/dev/null' TERM
trap 'stopped=1; kill -INT $child 2>/dev/null' INT

wait_for() { # its exit code; a signal to this script interrupts `wait`, not the child
  local code
  while wait "$1"; code=$?; kill -0 "$1" 2>/dev/null; do :; done
  return $code
}

while [ -z "$stopped" ]; do
  set -m # a group of its own: signals reach it once, from here
  "$@" &
  child=$! && set +m
  [ -z "$stopped" ] || kill -TERM $child
  wait_for $child
  code=$?
  if ((code == 126 || code == 127)); then
    echo "retry: exit code $code, the command cannot be started" >&2 && code=2
  fi
  if ((code == 0 || code == 2 || code == 3 || attempt >= restarts)) || [ -n "$stopped" ]; then break; fi
  attempt=$((attempt + 1))
  echo "retry: exit code $code; restart $attempt of $restarts in $delay s" >&2
  sleep "$delay" &
  child=$! && wait_for $child
done
[ -z "$exit_file" ] || echo "$code" >"$exit_file"
exit "$code"
