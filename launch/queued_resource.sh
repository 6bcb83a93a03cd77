#!/usr/bin/env bash
# One TPU slice as a queued resource, and a loop that asks for another when a spot slice is lost.
# usage: launch/queued_resource.sh create|run|logs|resume|babysit|delete --name=NAME --zone=ZONE [--project=PROJECT]
#   [--accelerator=v5litepod-16] [--version=v2-alpha-tpuv5-lite] [--spot=yes] [--restarts=20] [--poll=60] [--dry-run]
#   [-- COMMAND...]
# `babysit` creates, runs, and after a loss deletes, creates and runs again with the same --workdir (gs://...), until the
# command has ended: exit code 0 (finished), 2 (a mistake), or 1 (its restarts on one slice are used up).
source "$(dirname "$0")/shared.sh"
name='' zone='' project='' accelerator=v5litepod-16 version=v2-alpha-tpuv5-lite spot='' restarts=20 poll=60
parse "name zone project accelerator version spot restarts poll" "$@"
need name zone
where=("--zone=$zone" ${project:+"--project=$project"})
queue=(gcloud compute tpus queued-resources)

vm() { # the slice, once it is there, is a TPU VM
  "$here/tpu_vm.sh" "$1" --name="$name" "${where[@]}" --restarts="$restarts" ${dry_run:+--dry-run} \
    ${command[@]+-- "${command[@]}"}
}
create() {
  run "${queue[@]}" create "$name" --node-id="$name" "${where[@]}" --accelerator-type="$accelerator" \
    --runtime-version="$version" ${spot:+--spot}
}
delete() { run "${queue[@]}" delete "$name" "${where[@]}" --force --quiet; }
state() { "${queue[@]}" describe "$name" "${where[@]}" --format='value(state.state)' 2>/dev/null || echo ABSENT; }

look() { # one round; 0: all is done or on its way, else the exit code with which the command has ended
  local now
  now=$(state)
  case $now in
    ABSENT) create ;;
    SUSPENDED | SUSPENDING | FAILED) echo "the slice is $now: asking for another" >&2 && delete && create ;;
    ACTIVE)
      now=$(vm status) || now=unreachable
      case $now in
        0 | 2) exit "$now" ;;
        running | unreachable) echo "the slice is ACTIVE, the command: $now" >&2 ;;
        never | 75) vm run ;; # a new slice, or one that was asked to stop
        *) echo "the command ended with $now after all its restarts; see logs" >&2 && exit 1 ;;
      esac
      ;;
    *) echo "the queued resource is $now" >&2 ;;
  esac
}

case $action in
  create | delete) "$action" ;;
  run | resume | logs) vm "$action" ;;
  babysit)
    ((${#command[@]})) || mistake "what is to run? Give the command after --"
    if [ -n "$dry_run" ]; then # the rounds of one loss
      create && vm status && vm run && delete && create && vm run && exit 0
    fi
    while :; do
      look || echo "that did not work; once more in $poll s" >&2
      sleep "$poll"
    done
    ;;
  *) mistake "unknown sub-command '$action'" ;;
esac
