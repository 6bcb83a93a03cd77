# shellcheck shell=bash
# Sourced by the launchers: sub-command, flags, dry runs. Nothing here knows about the model.
set -euo pipefail
# shellcheck disable=SC2034 # used by the launchers
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
action=''
dry_run=''
command=()

usage_error() { # prints the message and the launcher's usage comment, and exits with 2
  echo "$(basename "$0"): $1" >&2
  sed -n '/^# usage: /,/^[^#]/s/^# *//p' "$0" >&2
  exit 2
}

# parse "flag flag ..." SUBCOMMAND [--flag=value ...] [--dry-run] [-- COMMAND ...]: sets `action`, `command`, `dry_run`
# and the variable of each flag. The flag --x-y is the variable x_y, to which the launcher has assigned a default.
parse() {
  local known=" $1 " key # not `name`, which is a flag of the launchers
  action=${2-}
  shift $(($# > 1 ? 2 : 1))
  while [ $# -gt 0 ]; do
    case $1 in
      --)
        shift
        command=("$@")
        break
        ;;
      --dry-run) dry_run=--dry-run ;;
      --*=*)
        key=${1%%=*}
        key=${key#--}
        key=${key//-/_}
        [[ $known == *" $key "* ]] || usage_error "unknown flag ${1%%=*}"
        printf -v "$key" %s "${1#*=}"
        ;;
      *) usage_error "unexpected '$1'; flags are --name=value, and the command follows --" ;;
    esac
    shift
  done
  if [[ $action == run || $action == resume ]] && [ ${#command[@]} -eq 0 ]; then
    usage_error "no command: give it after --, for example -- python -m t2t_flax train --config=... --workdir=..."
  fi
}

require() { # the flags with these variables must have a value
  local key
  for key in "$@"; do
    [ -n "${!key}" ] || usage_error "--${key//_/-} is missing"
  done
}

require_number() { # require_number LEAST VARIABLE...: these flags are whole numbers of at least LEAST
  local least=$1 key
  shift
  for key in "$@"; do
    if ! [[ ${!key} =~ ^(0|[1-9][0-9]{0,8})$ ]] || [ "${!key}" -lt "$least" ]; then
      usage_error "--${key//_/-}=${!key}: expected a whole number, $least or more"
    fi
  done
}

quoted() { # the words as one line that a shell splits into the same words
  local word line='' quote="'\\''"
  for word in "$@"; do
    [[ $word =~ ^[A-Za-z0-9_./:=,@%+-]+$ ]] || word="'${word//\'/"$quote"}'"
    line+=" $word"
  done
  echo "${line# }"
}

run() { # prints the command and runs it; a dry run only prints it
  if [ -n "$dry_run" ]; then
    quoted "$@"
  else
    echo "+ $(quoted "$@")" >&2
    "$@"
  fi
}
