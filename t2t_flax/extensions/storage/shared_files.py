"""Locks of folders on file systems that several hosts share."""

import contextlib
import logging
import socket
import time
from pathlib import Path

import psutil

from t2t_flax.locks import NAME, NO_LOCKS, Lock, holder_of

LOST_HOST = 120.0
"""Seconds that a shared file system may need to free the lock of a dead host."""
_LOCAL_LOCKS = frozenset(("nolock", "local_lock=all", "local_lock=flock", "localflock", "nobrl"))
"""Mount options of NFS, Lustre and SMB with which locks do not reach other hosts."""
log = logging.getLogger("t2t_flax")


def lock_folder(folder: Path, command: str) -> Lock | None:
    """A lease where locks do not reach other hosts, or do not exist. Elsewhere None, after a wait for the lock of a process on
    another host, which may be dead, to expire.
    """
    try:
        if not locks_stay_on_this_host(folder):
            _wait_for_lost_host(folder)
            return None
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
    from t2t_flax.extensions.storage import leases

    return leases.lock_folder(folder, command)


def _wait_for_lost_host(folder: Path) -> None:
    path, start, reported = folder / NAME, time.monotonic(), False
    with contextlib.suppress(PermissionError):  # another user's file
        path.touch()  # so that a file system without locks is noticed
    while (holder := holder_of(path)) and holder.host != socket.gethostname() and holder.process:
        if time.monotonic() - start >= LOST_HOST:
            return
        if not reported:
            reported = True
            log.warning(
                "--workdir=%s is locked by %s; waiting up to %.0f s in case that host is dead",
                folder,
                holder,
                LOST_HOST,
            )
        time.sleep(0.2)


def locks_stay_on_this_host(folder: Path) -> bool:
    """Whether other hosts may share the file system but not its kernel locks: buckets mounted by FUSE, and network file
    systems mounted with an option that keeps locks local (nfs(5), mount.cifs(8), mount.lustre(8)).
    """
    path = folder.resolve()
    inside = [mount for mount in psutil.disk_partitions(all=True) if path.is_relative_to(mount.mountpoint)]
    if not inside:
        return False
    mount = max(reversed(inside), key=lambda mount: len(mount.mountpoint))  # of several at one point the last one
    if mount.fstype.startswith("fuse"):
        return mount.fstype not in ("fuseblk", "fuse.fuse-overlayfs")  # local disks
    return not _LOCAL_LOCKS.isdisjoint(mount.opts.split(","))
