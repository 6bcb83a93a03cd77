# shellcheck shell=bash
# Sourced by the launchers: sub-command, flags, dry runs. None of them knows anything about the model.
set -euo pipefail
# shellcheck disable=SC2034 # the launchers use it
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
action='' dry_run='' command=()

mistake() { # a user's mistake: the message, the usage line of the launcher, exit code 2
  { echo "$(basename "$0"): $1" && sed -n '/^# usage: /,/^[^#]/s/^# *//p' "$0"; } >&2
  exit 2
}

# parse "flag flag ..." SUBCOMMAND [--flag=value ...] [--dry-run] [-- COMMAND ...]: sets `action`, `command`, `dry_run`
# and the variable of each flag that is given. A flag --x-y is the variable x_y, which the launcher has given a default.
parse() {
  local flags=" $1 " key
  action=${2-}
  shift $(($# > 1 ? 2 : 1))
  while (($#)); do
    key=${1%%=*} && key=${key#--} && key=${key//-/_}
    case $1 in
      --) shift && command=("$@") && break ;;
      --dry-run) dry_run=--dry-run ;;
      --*=*) [[ $flags == *" $key "* ]] || mistake "unknown flag ${1%%=*}" && printf -v "$key" %s "${1#*=}" ;;
      *) mistake "unexpected '$1'; flags are --name=value, the command follows --" ;;
    esac
    shift
  done
  if [[ $action == run || $action == resume ]] && ((${#command[@]} == 0)); then
    mistake "what is to run? Give the command after --, for example -- python -m t2t_flax train --config=... --workdir=..."
  fi
}

need() { # the named flags must have a value
  local key
  for key in "$@"; do [ -n "${!key}" ] || mistake "--${key//_/-} is missing"; done
}

number() { # the named flags are whole numbers of at least $1
  local least=$1 key
  for key in "${@:2}"; do
    if ! [[ ${!key} =~ ^(0|[1-9][0-9]{0,8})$ ]] || ((${!key} < least)); then
      mistake "--${key//_/-}=${!key}: expected a whole number, $least or more"
    fi
  done
}

quoted() { # the words as one line that a shell reads back as the same words
  local word line='' quote="'\\''"
  for word in "$@"; do
    [[ $word =~ ^[A-Za-z0-9_./:=,@%+-]+$ ]] || word="'${word//\'/"$quote"}'"
    line+=" $word"
  done
  echo "${line# }"
}

run() { # says what it does, and does it; a dry run only says it
  if [ -n "$dry_run" ]; then quoted "$@"; else echo "+ $(quoted "$@")" >&2 && "$@"; fi
}
