#!/usr/bin/env bash
# Runs a command and restarts it until it has finished. For hosts where nothing else restarts it.
# usage: launch/retry.sh [--restarts=R] [--delay=S] [--exit-file=FILE] -- COMMAND...
# Exit codes 0 (finished), 2 (user error) and 3 (diverged) are final; after any other one the command restarts in S seconds
# (30), at most R times (20). 126 and 127 (the command cannot be started) are user errors: 2. The delay gives the other hosts
# time to end, so that all start together. SIGTERM and SIGINT go to the command and end the restarts. The last exit code is
# written to FILE.
set -u
restarts=20
delay=30
exit_file=''

usage_error() {
  echo "retry: $1" >&2
  sed -n '3s/^# *//p' "$0" >&2
  exit 2
}

while [ $# -gt 0 ] && [ "$1" != -- ]; do
  case $1 in
    --restarts=*) restarts=${1#*=} ;;
    --delay=*) delay=${1#*=} ;;
    --exit-file=*) exit_file=${1#*=} ;;
    *) usage_error "unknown flag $1" ;;
  esac
  shift
done
number='^(0|[1-9][0-9]{0,5})$'
[[ $restarts =~ $number ]] || usage_error "--restarts=$restarts: expected a whole number"
[[ $delay =~ $number ]] || usage_error "--delay=$delay: expected a whole number"
[ $# -gt 1 ] || usage_error "the command is missing; it follows --"
shift
if [ -n "$exit_file" ]; then rm -f "$exit_file"; fi

child=''
signal=''
# shellcheck disable=SC2329 # called by the traps
forward() {
  signal=$1
  if [ -n "$child" ]; then kill -s "$1" "$child" 2>/dev/null; fi
}
trap 'forward TERM' TERM
trap 'forward INT' INT

wait_for_child() { # sets `code`; a signal interrupts `wait`, so wait until the child is gone
  while true; do
    wait "$child"
    code=$?
    kill -0 "$child" 2>/dev/null || return 0
  done
}

code=1
attempt=0
while [ -z "$signal" ]; do
  set -m # a process group of its own: Ctrl-C reaches the command only through `forward`
  "$@" &
  child=$!
  set +m
  if [ -n "$signal" ]; then kill -s "$signal" "$child"; fi # it arrived while the command was starting
  wait_for_child
  if [ "$code" = 126 ] || [ "$code" = 127 ]; then
    echo "retry: exit code $code, the command cannot be started" >&2
    code=2
  fi
  case $code in 0 | 2 | 3) break ;; esac
  if [ -n "$signal" ] || [ "$attempt" -ge "$restarts" ]; then break; fi
  attempt=$((attempt + 1))
  echo "retry: exit code $code; restart $attempt of $restarts in $delay s" >&2
  last_code=$code
  sleep "$delay" &
  child=$!
  if [ -n "$signal" ]; then kill "$child"; fi # it arrived after the command had ended
  wait_for_child
  code=$last_code
done
if [ -n "$exit_file" ]; then echo "$code" >"$exit_file"; fi
exit "$code"
