#!/usr/bin/env bash
# A SLURM cluster: launch/slurm.sbatch. Run it on a login node, in the repository, on a file system shared by all nodes.
# usage: launch/slurm.sh create|run|logs|resume|delete --name=NAME [--nodes=1] [--tasks-per-node=N] [--gpus-per-node=0]
#   [--time=1-00:00:00] [--partition=P] [--options="more options of sbatch"] [--restarts=20] [--extras=EXTRA,EXTRA]
#   [--dry-run] [-- COMMAND...]
# With GPUs there is exactly one task per GPU; without, --tasks-per-node defaults to 1. `create` creates .venv
# here, with --extras and, if a command follows, the extras that it needs. A job gets the environment of `run`.
# `resume` is `run` with the same --workdir, and waits for other jobs of this name.
source "$(dirname "$0")/shared.sh"
name='' nodes=1 tasks_per_node='' gpus_per_node=0 time='' partition='' options='' restarts=20
parse "name nodes tasks_per_node gpus_per_node time partition options restarts extras" "$@"
require name
require_extras
require_number 0 restarts gpus_per_node
require_number 1 nodes
: "${tasks_per_node:=$((gpus_per_node > 0 ? gpus_per_node : 1))}"
require_number 1 tasks_per_node
((gpus_per_node == 0 || tasks_per_node == gpus_per_node)) ||
  usage_error "--tasks-per-node=$tasks_per_node with --gpus-per-node=$gpus_per_node: JAX gives each task one GPU"
[[ $options != *[\"\'$'\n']* ]] || usage_error "--options=$options: expected words between blanks, without quotes"
[[ $here != *,* ]] || usage_error "$here: sbatch cannot pass on a path with a comma"

start() {
  local more=() gpus=()
  read -ra more <<<"$options"
  ((gpus_per_node == 0)) || gpus=("--gres=gpu:$gpus_per_node")
  [ ! -d .venv ] || PATH=$PWD/.venv/bin:$PATH
  run sbatch --job-name="$name" --nodes="$nodes" --ntasks-per-node="$tasks_per_node" \
    ${gpus[@]+"${gpus[@]}"} ${time:+"--time=$time"} ${partition:+"--partition=$partition"} \
    --export="ALL,T2T_RESTARTS=$restarts,T2T_LAUNCH=$here" \
    ${more[@]+"${more[@]}"} "$@" "$here/slurm.sbatch" "${command[@]}"
}

case $action in
  create)
    run python3 -m venv .venv
    wanted=$(if ((gpus_per_node)); then extras_of cuda; else extras_of; fi)
    run .venv/bin/pip install -e "$here/..${wanted:+[$wanted]}"
    ;;
  run) start ;;
  resume) start --dependency=singleton ;;
  logs) run tail -n 200 -F "$name.log" ;;
  delete) run scancel --name="$name" --me ;;
  *) usage_error "unknown sub-command '$action'" ;;
esac
