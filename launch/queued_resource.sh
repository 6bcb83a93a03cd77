#!/usr/bin/env bash
# One TPU slice as a queued resource, and a loop that asks for another when a spot slice is lost.
# usage: launch/queued_resource.sh create|run|logs|resume|babysit|delete --name=NAME --zone=ZONE [--project=PROJECT]
#   [--accelerator=v5litepod-16] [--version=v2-alpha-tpuv5-lite] [--spot=yes] [--restarts=20] [--poll=60] [--dry-run]
#   [--failures=20] [-- COMMAND...]
# `babysit` creates, runs, and after a loss deletes, creates and runs again with the same --workdir (gs://...), until the
# command has ended: exit code 0 (finished), 2 (a mistake), 3 (diverged), or 1 (its restarts on one slice are used up, or
# --failures rounds in a row have failed). How a command ended before `babysit` began does not count: it runs again.
source "$(dirname "$0")/shared.sh"
name='' zone='' project='' accelerator=v5litepod-16 version=v2-alpha-tpuv5-lite spot='' restarts=20 poll=60 failures=20
parse "name zone project accelerator version spot restarts poll failures" "$@"
need name zone
number 0 restarts poll failures
where=("--zone=$zone" ${project:+"--project=$project"})
queue=(gcloud compute tpus queued-resources)
mine='' failed=0 stops=0 # mine: this script has started the command, or seen it run, on the slice that is there now

vm() { # the slice, once it is there, is a TPU VM
  "$here/tpu_vm.sh" "$1" --name="$name" "${where[@]}" --restarts="$restarts" ${dry_run:+--dry-run} \
    ${command[@]+-- "${command[@]}"}
}
create() {
  mine=''
  run "${queue[@]}" create "$name" --node-id="$name" "${where[@]}" --accelerator-type="$accelerator" \
    --runtime-version="$version" ${spot:+--spot}
}
delete() { run "${queue[@]}" delete "$name" "${where[@]}" --force --quiet; }
state() { # ABSENT only where gcloud says so: an expired login, say, is an error
  local said ask=("${queue[@]}" describe "$name" "${where[@]}" --format='value(state.state)')
  "${ask[@]}" 2>/dev/null && return
  said=$("${ask[@]}" 2>&1) && return 1 # it worked the second time: the next round sees it
  [[ ${said,,} == *not_found* || ${said,,} == *"not found"* ]] && echo ABSENT && return
  echo "$said" >&2 && return 1
}
begin() { vm run && mine=1; }

look() { # one round; fails where something did not work; exits where the command has ended
  local now
  now=$(state) || return 1
  case $now in
    ABSENT) create && failed=$((failed + 1)) ;; # until the command runs there
    SUSPENDED | SUSPENDING | FAILED)
      echo "the slice is $now: asking for another" >&2
      delete && create && failed=$((failed + 1))
      ;;
    ACTIVE)
      now=$(vm status) || now=unreachable
      echo "the slice is ACTIVE, the command: $now" >&2
      case $mine/$now in
        */running) mine=1 failed=0 ;;
        */other-running) ;;
        */unreachable) return 1 ;;
        ?*/0 | ?*/2 | ?*/3) exit "$now" ;;
        1/never) mine=2 && return 1 ;; # it may not be up yet
        ?*/75) ((stops++ < failures)) && begin ;; # asked to stop
        ?*/[0-9]*) echo "the command ended with $now after all its restarts; see logs" >&2 && exit 1 ;;
        *) begin ;; # nothing ran, or only what is of no concern here
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
      look || { failed=$((failed + 1)) && echo "that did not work; once more in $poll s" >&2; }
      ((failed <= failures)) || { echo "giving up: $failed rounds in a row have failed" >&2 && exit 1; }
      sleep "$poll"
    done
    ;;
  *) mistake "unknown sub-command '$action'" ;;
esac
