"""Files of users and of other programs, beside those of this project."""

import os
from pathlib import Path

HEX32, HEX12 = "0123456789abcdef" * 2, "0123456789ab"


def put_beside(folder: Path, ours: list[str]) -> dict[str, str]:
    """Write into `folder` what no clean-up may touch.

    Hidden and dotted names, and names that begin like `ours`; all are old.

    Returns what `content` must return for them.
    """
    names = [
        ".venv",
        "thesis.v2",
        "photos.shards-2019",
        "notes.partial-1",
        "x.partial-final",
        "3.orbax-checkpoint-tmp.zip",
    ]
    for name in ours:
        names += [f"{name}.bak", f"{name}-copy", f"{name}_0", f"{name}\n", f"{name[:-1]}G"]
    before = content(folder)
    for i, name in enumerate(names):
        if i % 2:
            (folder / name).write_text(name)
        else:
            (folder / name).mkdir()
            (folder / name / "file").write_text(name)
        os.utime(folder / name, (0, 0))
    after = content(folder)
    return {name: after[name] for name in after.keys() - before.keys()}


def content(folder: Path) -> dict[str, str]:
    """The text of each file in a folder."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_text(errors="replace") for path in files}
