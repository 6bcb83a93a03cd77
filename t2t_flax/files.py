"""Files that are whole or not there."""

import uuid

from etils import epath


def write_whole(path: epath.PathLike, data: str | bytes) -> None:
    """Writes text (UTF-8) or bytes under a temporary name and renames, so that no reader sees half a file; a failure
    (a full disk) leaves what was there before. Folders on the way are made.
    """
    path = epath.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.partial-{uuid.uuid4().hex}")
    try:
        partial.write_bytes(data.encode() if isinstance(data, str) else data)
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
