"""Print the test files of uncommitted changes: `python -m tools.changed_tests`.

`t2t_flax/training/loop.py` has `tests/training/test_loop*.py`; a changed test file has itself.
"""

import subprocess
from pathlib import Path


def tests_of(file: str) -> list[str]:
    """The test files of a changed file, by its name."""
    path = Path(file)
    if path.suffix != ".py" or not path.exists():
        return []
    if path.name.startswith("test_"):
        return [file]
    folder = (
        Path("tests", *path.parent.parts[1:])
        if path.parts[0] == "t2t_flax"
        else Path("tests", path.parent)
    )
    return sorted(map(str, folder.glob(f"test_{path.stem}*.py")))


def changed_files() -> list[str]:
    def lines(*words: str) -> list[str]:
        return subprocess.run(
            ["git", *words], check=True, capture_output=True, text=True
        ).stdout.splitlines()

    new = lines("ls-files", "--others", "--exclude-standard")
    return lines("diff", "--name-only", "HEAD") + new


if __name__ == "__main__":
    print(*dict.fromkeys(test for file in changed_files() for test in tests_of(file)))
