#!/usr/bin/env bash
# TPU slices on GKE through xpk (pip install xpk), which creates cluster and JobSet itself.
# usage: launch/xpk.sh create|run|logs|resume|delete --cluster=CLUSTER --name=NAME [--tpu-type=v5litepod-16] [--slices=1]
#   [--zone=ZONE] [--project=PROJECT] [--image=IMAGE] [--capacity=on-demand|spot] [--restarts=20] [--everything=yes|no]
#   [--env=NAME,NAME] [--dry-run] [-- COMMAND...]
# The image: docker build --build-arg ACCELERATOR=tpu --build-arg RUN_AS=root (launch/README.md). --env: environment variables
# of this machine, by name, that the command gets, such as WANDB_API_KEY.
# `delete --everything=yes` removes the cluster too.
source "$(dirname "$0")/shared.sh"
cluster='' name='' tpu_type=v5litepod-16 slices=1 zone='' project='' image='' capacity=on-demand restarts=20 everything=no
parse "cluster name tpu_type slices zone project image capacity restarts everything env" "$@"
require cluster name
require_env
require_number 0 restarts
require_number 1 slices
require_yes_no everything
[[ $action != run && $action != resume ]] || require image
[[ $capacity == on-demand || $capacity == spot ]] || usage_error "--capacity=$capacity: expected on-demand or spot"
where=("--cluster=$cluster" ${zone:+"--zone=$zone"} ${project:+"--project=$project"})

start() {
  local names variables=--env=PYTHONUNBUFFERED=1
  if [ -n "$env" ]; then # a file as Docker's --env-file: the values of bare names are read here
    names="${TMPDIR:-/tmp}/t2t_flax.XXXXXX"
    if [ -z "$dry_run" ]; then
      names=$(mktemp "$names")
      # shellcheck disable=SC2064 # expanded now
      trap "rm -f '$names'" EXIT
      printf '%s\n' PYTHONUNBUFFERED=1 "${env//,/$'\n'}" >"$names"
    fi
    variables=--env-file=$names
  fi
  # By itself xpk restarts after 42 and 127 to 255; 2 (user error) and 3 (diverged) are not added.
  run xpk workload create --workload="$name" "${where[@]}" --tpu-type="$tpu_type" --num-slices="$slices" \
    --docker-image="$image" --max-restarts="$restarts" --restart-on-exit-codes=1,75 \
    --termination-grace-period-seconds=300 "$variables" --command="$(quoted "${command[@]}")"
}
remove() { run xpk workload delete --workload="$name" "${where[@]}" --force; }

case $action in
  create) run xpk cluster create "${where[@]}" --tpu-type="$tpu_type" --num-slices="$slices" "--$capacity" ;;
  run) start ;;
  resume)
    remove || echo "no workload to delete" >&2
    start
    ;;
  logs) run kubectl logs --follow --prefix --tail=200 --max-log-requests=64 \
    --selector="jobset.sigs.k8s.io/jobset-name=$name,batch.kubernetes.io/job-completion-index=0" ;;
  delete) remove && if [ -n "$everything" ]; then run xpk cluster delete "${where[@]}" --force; fi ;;
  *) usage_error "unknown sub-command '$action'" ;;
esac
