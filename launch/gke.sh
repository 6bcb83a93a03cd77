#!/usr/bin/env bash
# TPU slices on GKE, as a JobSet: launch/gke_jobset.yaml. kubectl must point at the cluster.
# usage: launch/gke.sh create|run|logs|resume|delete --name=NAME [--image=IMAGE] [--slices=1] [--hosts=4] [--chips=4]
#   [--accelerator=tpu-v5-lite-podslice] [--topology=4x4] [--restarts=20] [--volume=CLAIM:/PATH]
#   [--env=NAME,NAME] [--dry-run] [-- COMMAND...]
#   create, delete --nodes=yes: [--cluster=C --zone=Z --machine=ct5lp-hightpu-4t --spot=yes|no --jobset-version=v0.10.1]
# `run` replaces a JobSet of this name that has ended. --env: environment variables of this machine, by name, that the command
# gets, such as WANDB_API_KEY, through the Secret NAME-env.
# --slices: as many at `delete` as at `create`; --hosts: per slice; --chips: per host; --volume: a volume claim, which all
# hosts mount at PATH. The image: docker build --build-arg ACCELERATOR=tpu (launch/README.md).
source "$(dirname "$0")/shared.sh"
# shellcheck disable=SC2034 # read by name in manifest()
name='' image='' slices=1 hosts=4 chips=4 accelerator=tpu-v5-lite-podslice topology=4x4 restarts=20
cluster='' zone='' machine=ct5lp-hightpu-4t spot=no jobset_version=v0.10.1 nodes=no volume=''
parse "name image slices hosts chips accelerator topology restarts volume cluster zone machine spot jobset_version nodes env" "$@"
require name accelerator topology
require_env
require_number 0 restarts
require_number 1 slices hosts chips
require_yes_no spot nodes
case $action in
  run | resume) require image ;;
  create) require cluster zone ;;
  delete) [ -z "$nodes" ] || require cluster zone ;;
esac
[[ $volume =~ ^([a-z0-9.-]+:/[A-Za-z0-9/._-]+)?$ ]] || usage_error "--volume=$volume: expected CLAIM:/PATH"
# shellcheck disable=SC2034 # read by name in manifest()
volumes="[${volume:+"{name: shared, persistentVolumeClaim: {claimName: \"${volume%%:*}\"}}"}]"
# shellcheck disable=SC2034
mounts="[${volume:+"{name: shared, mountPath: \"${volume#*:}\"}"}]"
# shellcheck disable=SC2034
variables="[${env:+"{secretRef: {name: $name-env}}"}]"

json() { # the words as a JSON array
  local word words='' code hex char
  for word in "$@"; do
    word=${word//\\/\\\\} && word=${word//\"/\\\"}
    for ((code = 1; code < 32; code++)); do # control characters (a word cannot contain NUL)
      printf -v hex %02x "$code" && printf -v char %b "\\x$hex" && word=${word//"$char"/\\u00$hex}
    done
    words+=", \"$word\""
  done
  echo "[${words#, }]"
}
secret() { # the Secret with the variables of --env
  local variable value values=''
  for variable in ${env//,/ }; do
    if [ -n "$dry_run" ]; then value='["(not shown)"]'; else value=$(json "${!variable}"); fi
    value=${value#[} && values+=", $variable: ${value%]}"
  done
  printf '%s\n' "apiVersion: v1" "kind: Secret" "metadata: {name: $name-env}" "stringData: {${values#, }}" ---
}
manifest() {
  local text key
  if [ -n "$env" ]; then secret; fi
  text=$(<"$here/gke_jobset.yaml")
  for key in name image slices hosts chips accelerator topology restarts volumes mounts variables; do text=${text//__${key^^}__/"${!key}"}; done
  echo "${text//__COMMAND__/"$(json "${command[@]}")"}"
}
remove_ended() { # kubectl leaves a JobSet that has ended as it is, instead of starting it again
  local state=(kubectl get jobset "$name" --ignore-not-found '--output=jsonpath={.status.conditions[?(@.status=="True")].type}')
  if [ -n "$dry_run" ]; then
    run "${state[@]}"
  elif [[ " $(run "${state[@]}") " =~ \ (Completed|Failed)\  ]]; then
    remove
  fi
}
start() {
  remove_ended
  if [ -n "$dry_run" ]; then
    run kubectl apply --filename=- && manifest
  else
    manifest | run kubectl apply --filename=-
  fi
}
node_pools() { # create or delete: one node pool per slice
  local i
  for ((i = 0; i < slices; i++)); do
    if [ "$1" = create ]; then
      run gcloud container node-pools create "$name-$i" --cluster="$cluster" --location="$zone" --node-locations="$zone" \
        --machine-type="$machine" --tpu-topology="$topology" --num-nodes="$hosts" ${spot:+--spot}
    else
      run gcloud container node-pools delete "$name-$i" --cluster="$cluster" --location="$zone" --quiet
    fi
  done
}
remove() { # returns when all pods have saved and ended
  run kubectl delete "jobset/$name" "secret/$name-env" --ignore-not-found --cascade=foreground --wait
}

case $action in
  create)
    node_pools create
    run kubectl apply --server-side \
      --filename="https://github.com/kubernetes-sigs/jobset/releases/download/$jobset_version/manifests.yaml"
    ;;
  run) start ;;
  resume) remove && start ;;
  logs) run kubectl logs --follow --prefix --tail=200 --max-log-requests=64 \
    --selector="jobset.sigs.k8s.io/jobset-name=$name,batch.kubernetes.io/job-completion-index=0" ;;
  delete) remove && if [ -n "$nodes" ]; then node_pools delete; fi ;;
  *) usage_error "unknown sub-command '$action'" ;;
esac
