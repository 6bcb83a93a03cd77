#!/usr/bin/env bash
# A managed job of SkyPilot on any cloud it supports: launch/skypilot.yaml.
# usage: launch/skypilot.sh create|run|logs|resume|delete --name=NAME [--accelerators=tpu-v6e-16] [--nodes=1]
#   [--infra=gcp/us-east5-b] [--spot=yes|no] [--restarts=20] [--nfs=SERVER:/EXPORT=/PATH]
#   [--env=NAME,NAME] [--extras=EXTRA,EXTRA] [--dry-run] [-- COMMAND...]
# `create` checks the credentials; `run` creates the machines, and SkyPilot removes them at the end. --workdir must outlive
# the machines (gs://..., a mounted bucket, or a folder on the NFS that --nfs mounts); `resume` is `run` with the same one.
# The package is installed with the extras that the command needs, and those of --extras. --env: environment variables of
# this machine, by name, that the command gets, such as WANDB_API_KEY.
source "$(dirname "$0")/shared.sh"
name='' accelerators=tpu-v6e-16 nodes=1 infra='' spot=yes restarts=20 nfs=''
parse "name accelerators nodes infra spot restarts nfs env extras" "$@"
require name
require_number 0 restarts
require_number 1 nodes
require_extras
require_env
require_nfs
require_yes_no spot

start() {
  local accelerator=cuda variable secrets=() install market=--no-use-spot
  [ -z "$spot" ] || market=--use-spot
  [[ ${accelerators,,} != tpu-* ]] || accelerator=tpu
  install=$(extras_of "$accelerator")
  for variable in ${env//,/ }; do secrets+=("--secret=$variable"); done # SkyPilot reads its value here
  cd "$here/.."
  run sky jobs launch launch/skypilot.yaml --name="$name" --gpus="$accelerators" --num-nodes="$nodes" "$market" \
    ${infra:+"--infra=$infra"} --env="T2T_EXTRAS=$install" --env="T2T_COMMAND=$(quoted "${command[@]}")" \
    --env="T2T_RESTARTS=$restarts" ${nfs:+"--env=T2T_NFS=$nfs"} ${secrets[@]+"${secrets[@]}"} --yes --detach-run
}

case $action in
  create) run sky check ;;
  run) start ;;
  resume)
    run sky jobs cancel --name="$name" --yes || echo "no job to cancel" >&2
    start
    ;;
  logs) run sky jobs logs --name="$name" --follow ;;
  delete) run sky jobs cancel --name="$name" --yes ;;
  *) usage_error "unknown sub-command '$action'" ;;
esac
