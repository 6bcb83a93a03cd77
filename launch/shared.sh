# shellcheck shell=bash
# Sourced by the launchers: sub-command, flags, dry runs. Nothing here knows about the model.
set -euo pipefail
# shellcheck disable=SC2034 # used by the launchers
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
action=''
dry_run=''
command=()
extras='' # the flag --extras
env=''    # the flag --env

# An extra of pyproject.toml, and what asks for it in a command or in a Python file that the command names.
needs='
gcs (gs|gcs)://
s3 s3://
tfds tfds:
arrow (\.parquet|parquet:|hf:|\.zst)
plots --picture
subword-nmt (subword_nmt|wu2021|multi30k\.py)
filters filters.held_out
scaling [[:space:]](fit_scaling|branch)[[:space:]]
sweep [[:space:]]sweep[[:space:]]
serve [[:space:]]serve[[:space:]]
langid filters.language
paragraphs split-sentences
hf (hub:|push)
ctranslate2 ctranslate2
wandb wandb
mlflow mlflow
trackio trackio
ja (language|directions).{0,80}[^a-z]ja([^a-z]|$)
ko (language|directions).{0,80}[^a-z]ko([^a-z]|$)
'

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

extras_of() { # extras_of [EXTRA...]: these, those of --extras and those that the command needs, comma-separated
  local list text word path file extra pattern
  text=$(printf '\n%s' ${command[@]+"${command[@]}"})$'\n'
  for word in ${command[@]+"${command[@]}"}; do
    path=${word#*=}
    for file in "$path" "${path%:*}" "$here/../$path" "$here/../${path%:*}"; do # FILE.py or FILE.py:VARIANT
      if [[ $file == *.py && -f $file ]]; then text+=$(<"$file") && break; fi
    done
  done
  list=" $* ${extras//,/ } "
  while read -r extra pattern; do
    if [[ -n $extra && $text =~ $pattern && $list != *" $extra "* ]]; then list+="$extra "; fi
  done <<<"$needs"
  read -ra list <<<"$list"
  (IFS=, && echo "${list[*]}")
}

require_extras() { # --extras is a list of names
  [[ $extras =~ ^([a-z0-9-]+(,[a-z0-9-]+)*)?$ ]] || usage_error "--extras=$extras: expected names of extras, such as gcs,wandb"
}

# --env names variables of this environment that the command gets. Their values never stand on a command line, which other
# users of a machine could read, and a dry run does not show them.
require_env() { # --env is a list of names that are set
  local variable
  [[ $env =~ ^([A-Za-z_][A-Za-z0-9_]*(,[A-Za-z_][A-Za-z0-9_]*)*)?$ ]] ||
    usage_error "--env: expected names of environment variables, such as WANDB_API_KEY,HF_TOKEN; their values are read here"
  for variable in ${env//,/ }; do
    printenv "$variable" >/dev/null || usage_error "--env=$variable: this variable is not set"
  done
}

exports() { # the variables of --env as commands of a shell
  local variable
  for variable in ${env//,/ }; do echo "export $variable=$(quoted "${!variable}")"; done
}

require() { # the flags with these variables are given, and no program takes their names for a flag or a list
  local key
  for key in "$@"; do
    [ -n "${!key}" ] || usage_error "--${key//_/-} is missing"
    [[ ${!key} =~ ^[A-Za-z0-9][A-Za-z0-9._:/@-]*$ ]] ||
      usage_error "--${key//_/-}=${!key}: expected letters, digits and . _ : / @ -"
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

require_yes_no() { # these flags are `yes` or `no`; the variable of `no` becomes empty
  local key
  for key in "$@"; do
    case ${!key} in
      yes) ;;
      no) printf -v "$key" '' ;;
      *) usage_error "--${key//_/-}=${!key}: expected yes or no" ;;
    esac
  done
}

require_nfs() { # --nfs, if given, is what mount_nfs.sh takes
  [[ ${nfs-} =~ ^([^=]+:/[^=]*=/[^=]+)?$ ]] || usage_error "--nfs=$nfs: expected SERVER:/EXPORT=/PATH"
}

quoted() { # the words as one line that a shell splits into the same words
  local word line='' quote="'\\''"
  for word in "$@"; do
    [[ $word =~ ^[A-Za-z0-9_./:=,@%+-]+$ ]] || word="'${word//\'/"$quote"}'"
    line+=" $word"
  done
  printf '%s\n' "${line# }"
}

run() { # prints the command and runs it; a dry run only prints it
  if [ -n "$dry_run" ]; then
    quoted "$@"
  else
    echo "+ $(quoted "$@")" >&2
    "$@"
  fi
}
