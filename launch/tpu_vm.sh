#!/usr/bin/env bash
# One TPU slice of any number of hosts, as a TPU VM.
# usage: launch/tpu_vm.sh create|run|logs|resume|status|delete --name=NAME --zone=ZONE [--project=PROJECT]
#   [--accelerator=v5litepod-16] [--version=v2-alpha-tpuv5-lite] [--spot=yes|no] [--restarts=20] [--idle=yes|no]
#   [--nfs=SERVER:/EXPORT=/PATH] [--env=NAME,NAME] [--extras=EXTRA,EXTRA] [--dry-run] [-- COMMAND...]
# `run` copies the commit HEAD to every host and starts the command there; `resume` is `run` with the same
# --workdir, which all hosts must share (gs://..., or a folder on the NFS that --nfs mounts). Each host restarts its
# process (launch/retry.sh). Both refuse while a run is in progress on any host; with --idle=yes they start the command on the
# other hosts. The package is installed with the extras that the command needs, and those of --extras.
# --env: environment variables of this machine, by name, that the command gets, such as WANDB_API_KEY.
# `status` prints of each host `running`, `never` (no run has ended there since the last start) or the exit code of the
# last run, with the prefix `other-` if that run had another command than the one after --.
source "$(dirname "$0")/shared.sh"
name='' zone='' project='' accelerator=v5litepod-16 version=v2-alpha-tpuv5-lite spot=no restarts=20 nfs='' idle=no
parse "name zone project accelerator version spot restarts nfs idle env extras" "$@"
require name zone
require_number 0 restarts
require_yes_no spot idle
require_extras
require_env
require_nfs
where=("--zone=$zone" ${project:+"--project=$project"})
vm=(gcloud compute tpus tpu-vm)
mark=$(quoted ${command[@]+"${command[@]}"} | cksum | tr ' ' -) # identifies the command
in_progress='[ -e t2t.lock ] && ! flock -sn t2t.lock true' # a lock per host keeps two runs from sharing the chips
refuse="echo 'a run is in progress on this host' >&2; exit 1"
folder="${TMPDIR:-/tmp}/t2t_flax.XXXXXX" # of start
secrets=''                               # whether t2t.env may be on hosts

on_hosts() { run "${vm[@]}" ssh "$name" --worker=all "${where[@]}" --command="$1"; }

clean_up() {
  rm -rf "$folder"
  if [ -n "$secrets" ]; then on_hosts 'rm -f t2t.env' || echo "t2t.env may still be in the home folders of $name" >&2; fi
}

start() {
  local remote
  if [ -z "$dry_run" ]; then # a new folder, so that nobody can have put a link there
    folder=$(mktemp -d "$folder")
    trap clean_up EXIT
  fi
  [ -n "$idle" ] || on_hosts "if $in_progress; then $refuse; fi"
  run git -C "$here/.." archive --format=tar.gz --output="$folder/t2t_flax.tgz" HEAD
  run "${vm[@]}" scp "$folder/t2t_flax.tgz" "$name:t2t_flax.tgz" --worker=all "${where[@]}"
  if [ -n "$env" ]; then
    [ -n "$dry_run" ] || { (umask 077 && exports >"$folder/t2t.env") && secrets=yes; }
    run "${vm[@]}" scp "$folder/t2t.env" "$name:t2t.env" --worker=all "${where[@]}"
  fi
  # The shell of a host removes the secrets however it ends, and passes the lock on to retry.sh.
  # uv, because the image's Python may be older than 3.11.
  remote="${env:+trap 'rm -f ~/t2t.env' EXIT; trap 'exit 1' HUP INT TERM; }\
exec 9>>t2t.lock && { flock -w 1 9 || { $([ -n "$idle" ] && echo 'exit 0' || echo "$refuse"); }; } && \
${env:+chmod 600 t2t.env && . ./t2t.env && rm t2t.env && }\
rm -rf t2t_flax && mkdir t2t_flax && tar -xzf t2t_flax.tgz -C t2t_flax && cd t2t_flax && \
python3 -m pip install --quiet --user uv && { [ -d ../t2t_venv ] || python3 -m uv venv --python 3.12 ../t2t_venv; } && \
python3 -m uv pip install --quiet --python ../t2t_venv/bin/python -e '.[$(extras_of tpu)]' && ${nfs:+launch/mount_nfs.sh $(quoted "$nfs") && }\
export PATH=\$HOME/t2t_venv/bin:\$PATH JAX_COORDINATOR_PORT=8476 && rm -f ../t2t.exit && echo $mark >../t2t.command && \
{ nohup launch/retry.sh --restarts=$restarts --exit-file=../t2t.exit -- $(quoted "${command[@]}") \
>>../t2t.log 2>&1 </dev/null & }"
  on_hosts "$remote"
  secrets=''
}
status() {
  local prefix=''
  ((${#command[@]} == 0)) || prefix="[ \"\$(cat t2t.command 2>/dev/null)\" = $mark ] || [ ! -e t2t.command ] || printf other-; "
  on_hosts "${prefix}if $in_progress; then echo running; else cat t2t.exit 2>/dev/null || echo never; fi"
}

case $action in
  create)
    run "${vm[@]}" create "$name" "${where[@]}" --accelerator-type="$accelerator" --version="$version" ${spot:+--spot}
    ;;
  run | resume) start ;;
  logs) run "${vm[@]}" ssh "$name" --worker=0 "${where[@]}" --command='tail -n 200 -F t2t.log' ;;
  status) status ;;
  delete) run "${vm[@]}" delete "$name" "${where[@]}" --quiet ;;
  *) usage_error "unknown sub-command '$action'" ;;
esac
