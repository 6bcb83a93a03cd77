"""Where token stores are: at their own place on a file system, or as this host's copies of those in an object store."""

from pathlib import Path

from etils import epath

from t2t_flax.data.store.token_store import TokenStore, matches, read_meta
from t2t_flax.filesystem import by_storage


@by_storage
def local_path(folder: epath.PathLike, digest: str) -> Path:
    """Where the store `folder` is written and memory-mapped."""
    return Path(folder)


@by_storage
def find_store(folder: epath.PathLike, digest: str) -> TokenStore | None:
    """The finished store at `folder` if it has this digest; None if there is none, or one of an older format. Raises UserError
    for a damaged store and for a folder of something else.
    """
    return TokenStore.open(Path(folder), folder) if matches(read_meta(epath.Path(folder)), digest) else None


@by_storage
def upload(folder: epath.PathLike, local: Path) -> None:
    """Copies a finished local store into its object store, if `folder` is in one."""
