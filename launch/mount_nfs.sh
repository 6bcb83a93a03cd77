#!/usr/bin/env bash
# Mounts a shared folder (NFS 4) on this host unless something is mounted there already.
# usage: launch/mount_nfs.sh SERVER:/EXPORT=/PATH
# For commands whose folder needs file locks, which object stores lack. Needs sudo; installs nfs-common where it is missing.
set -eu
[[ ${1-} =~ ^([^=]+:/[^=]*)=(/[^=]+)$ ]] || {
  echo "mount_nfs: '${1-}': expected SERVER:/EXPORT=/PATH" >&2
  exit 2
}
export=${BASH_REMATCH[1]} path=${BASH_REMATCH[2]}
if mountpoint -q "$path"; then exit; fi
command -v mount.nfs4 >/dev/null || { sudo apt-get update -q && sudo apt-get install -qy nfs-common; }
sudo mkdir -p "$path"
sudo mount -t nfs4 "$export" "$path"
