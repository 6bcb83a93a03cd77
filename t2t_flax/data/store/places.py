"""Where token stores are: at their own place on a file system, or as this host's copies of those in an object store."""

from pathlib import Path

from etils import epath

from t2t_flax.data.store.token_store import TokenStore, matches, read_meta
from t2t_flax.filesystem import is_remote, object_storage


def local_path(folder: epath.PathLike, digest: str) -> Path:
    """Where the store `folder` is written and memory-mapped."""
    return object_storage(folder).local_path(digest) if is_remote(folder) else Path(folder)


def find_store(folder: epath.PathLike, digest: str) -> TokenStore | None:
    """The finished store at `folder` if it has this digest; None if there is none, or one of an older format. Raises UserError
    for a damaged store and for a folder of something else.
    """
    if is_remote(folder):
        return object_storage(folder).find_store(folder, digest)
    return TokenStore.open(Path(folder), folder) if matches(read_meta(epath.Path(folder)), digest) else None


def upload(local: Path, folder: epath.PathLike) -> None:
    """Copies a finished local store into its object store, if `folder` is in one."""
    if is_remote(folder):
        object_storage(folder).upload(local, folder)
