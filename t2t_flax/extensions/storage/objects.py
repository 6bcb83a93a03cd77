"""Objects in stores as files: the functions of `registry.OBJECT_STORAGE`, through fsspec."""

import os

from etils import epath

from t2t_flax.errors import UserError, first_line, install_hint
from t2t_flax.extensions.storage.leases import take_lease
from t2t_flax.extensions.storage.mirror import Mirror
from t2t_flax.extensions.storage.token_stores import find_store, local_path, upload

__all__ = [
    "Mirror",
    "check_reachable",
    "check_workdir",
    "copy_file",
    "create_file",
    "find_store",
    "local_path",
    "move_folder",
    "read",
    "take_lease",
    "upload",
    "write",
]

_INSTALL = {
    "gs": install_hint("gcs"),
    "gcs": install_hint("gcs"),
    "s3": install_hint("s3"),
    "az": "pip install adlfs (not tested)",
    "abfs": "pip install adlfs (not tested)",
}


def check_reachable(path: epath.PathLike) -> None:
    """Raises UserError for a store for which a package or the permission is missing."""
    try:
        epath.Path(path).exists()
    except ImportError as error:
        scheme = os.fspath(path).partition("://")[0]
        remedy = _INSTALL.get(scheme) or f"install the fsspec package for {scheme}:// (not tested)"
        raise UserError(f"{path} needs a package that is not installed ({error}): {remedy}.") from None
    except Exception as error:
        raise UserError(
            f"{path} cannot be reached ({first_line(error)}). Does the bucket exist, and may this account use it (gcloud "
            "auth application-default login, or the service account of the machine)?"
        ) from error


def check_workdir(path: epath.PathLike) -> None:
    """Raises UserError for stores other than gs://, to which Orbax cannot write checkpoints, and as `check_reachable`."""
    scheme = os.fspath(path).partition("://")[0]
    if scheme not in ("gs", "gcs"):
        raise UserError(
            f"--workdir={path}: checkpoints can be written to a file system or to gs://, not to {scheme}://. Mount the "
            "bucket (Mountpoint for S3, rclone mount), or copy the finished folder there; only the text (data.train ...) "
            "and data.cache may be there."
        )
    check_reachable(path)


def read(path: epath.PathLike) -> bytes:
    """The content of an object, whole while another host rewrites it. Raises FileNotFoundError."""
    store, name = _store_of(path)
    return store.cat_file(name)


def write(path: epath.PathLike, data: bytes) -> None:
    """Writes an object, which appears whole."""
    store, name = _store_of(path)
    store.pipe_file(name, data)


def create_file(path: epath.PathLike, data: bytes) -> bool:
    """Writes an object if there is none of that name, by a conditional request; else returns False."""
    store, name = _store_of(path)
    try:
        store.pipe_file(name, data, mode="create")
    except FileExistsError:
        return False
    return True


def copy_file(source: epath.PathLike, target: epath.PathLike) -> None:
    """Copies a file from local disk to a store or back, in constant memory."""
    if "://" in os.fspath(target):
        store, name = _store_of(target)
        store.put_file(os.fspath(source), name)
    else:
        store, name = _store_of(source)
        store.get_file(name, os.fspath(target))


def move_folder(source: epath.PathLike, target: epath.PathLike) -> None:
    """Copies the objects of a folder one by one, then removes them."""
    (store, name), (_, other) = _store_of(source), _store_of(target)
    names = store.find(name)
    for path in names:
        store.cp_file(path, other + path.removeprefix(name))
    store.rm(names)


def _store_of(path: epath.PathLike):
    import fsspec

    return fsspec.core.url_to_fs(os.fspath(path))
