#!/usr/bin/env bash
# One TPU slice as a queued resource, and a loop that requests another one when a spot slice is lost.
# usage: launch/queued_resource.sh create|run|logs|resume|babysit|delete --name=NAME --zone=ZONE [--project=PROJECT]
#   [--accelerator=v5litepod-16] [--version=v2-alpha-tpuv5-lite] [--spot=yes|no] [--restarts=20] [--poll=60] [--dry-run]
#   [--failures=20] [--nfs=SERVER:/EXPORT=/PATH] [--env=NAME,NAME] [--extras=EXTRA,EXTRA] [-- COMMAND...]
# `babysit` creates the slice and runs the command; after a loss it deletes, creates and runs again with the same --workdir
# (gs://...), until the command ends: exit code 0 (finished), 2 (user error), 3 (diverged), or 1 (its restarts on one slice
# are used up, or it did not run in --failures rounds in a row). It looks at all hosts, and starts the command again on one that has
# rebooted. Results of runs before `babysit` do not count: it runs again.
source "$(dirname "$0")/shared.sh"
name='' zone='' project='' accelerator=v5litepod-16 version=v2-alpha-tpuv5-lite spot=no restarts=20 poll=60 failures=20 nfs=''
parse "name zone project accelerator version spot restarts poll failures nfs env extras" "$@"
require name zone
require_number 0 restarts poll failures
require_yes_no spot
require_extras
require_env
require_nfs
where=("--zone=$zone" ${project:+"--project=$project"})
queue=(gcloud compute tpus queued-resources)
started='' # yes if babysit has started the command on the current slice or seen it running; unconfirmed where it has gone
failed=0   # rounds in a row without a running command

vm() { # a slice that exists is a TPU VM
  "$here/tpu_vm.sh" "$1" --name="$name" "${where[@]}" --restarts="$restarts" "${@:2}" ${nfs:+"--nfs=$nfs"} ${env:+"--env=$env"} \
    ${extras:+"--extras=$extras"} ${dry_run:+--dry-run} ${command[@]+-- "${command[@]}"}
}

create() {
  started=''
  run "${queue[@]}" create "$name" --node-id="$name" "${where[@]}" --accelerator-type="$accelerator" \
    --runtime-version="$version" ${spot:+--spot}
}

delete() { run "${queue[@]}" delete "$name" "${where[@]}" --force --quiet; }

state() { # ABSENT only if gcloud says so; an expired login, for example, is an error
  local describe=("${queue[@]}" describe "$name" "${where[@]}" --format='value(state.state)') message
  "${describe[@]}" 2>/dev/null && return
  message=$("${describe[@]}" 2>&1) && return 1 # it worked the second time: the next round will see it
  if [[ ${message,,} == *not_found* || ${message,,} == *"not found"* ]]; then
    echo ABSENT
  else
    echo "$message" >&2
    return 1
  fi
}

babysit_slice() { # one round; returns 1 unless something runs or the slice is on its way, exits if the command has ended
  local slice
  slice=$(state) || return 1
  case $slice in
    ACTIVE)
      babysit_command
      return
      ;;
    ABSENT) create ;;
    SUSPENDED | SUSPENDING | FAILED)
      echo "the slice is $slice: requesting another one" >&2
      delete && create
      ;;
    *)
      echo "the queued resource is $slice" >&2
      return 0
      ;;
  esac
  return 1
}

babysit_command() { # as babysit_slice, for the command on an active slice
  local states verdict=start # any result is that of an earlier run
  states=$(vm status) && [ -n "$states" ] || return 1
  states=${states//$'\n'/ }
  echo "the slice is ACTIVE, the command: $states" >&2
  case $states in
    *other-running*) return 0 ;;
    *running*) started=${started:-yes} ;;
  esac
  # The slice is being lost, or a host has rebooted: the next round knows.
  if [[ $states == *never* && $started == yes ]]; then
    started=unconfirmed
    return 1
  fi
  # shellcheck disable=SC2086 # one word per host
  [ -z "$started" ] || verdict=$(python3 "$here/restarts.py" judge $states) || return 1
  case $verdict in
    wait)
      started=yes
      failed=0
      ;;
    start)
      vm run --idle=yes && started=yes
      return 1
      ;;
    1)
      echo "the command ended with 1 after all its restarts; see logs" >&2
      exit 1
      ;;
    *) exit "$verdict" ;;
  esac
}

case $action in
  create | delete) "$action" ;;
  run | resume | logs) vm "$action" ;;
  babysit)
    [ ${#command[@]} -gt 0 ] || usage_error "no command: give it after --"
    if [ -n "$dry_run" ]; then # the steps before and after one loss
      create && vm status && vm run --idle=yes && delete && create && vm run --idle=yes
      exit
    fi
    git -C "$here/.." rev-parse --verify --quiet HEAD >/dev/null ||
      usage_error "$here/.. has no commit of git, which the hosts would get"
    while true; do
      if ! babysit_slice; then
        failed=$((failed + 1))
        echo "the command does not run yet; next look in $poll s" >&2
      fi
      if [ "$failed" -gt "$failures" ]; then
        echo "giving up: the command did not run in $failed rounds in a row" >&2
        exit 1
      fi
      sleep "$poll"
    done
    ;;
  *) usage_error "unknown sub-command '$action'" ;;
esac
