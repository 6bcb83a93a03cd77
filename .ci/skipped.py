"""Print the tests that pytest's JUnit files mark as skipped, one a line, for `pytest @FILE`."""

import sys
import xml.etree.ElementTree as xml
from pathlib import Path


def skipped(file: str) -> list[str]:
    """Node ids; a file that was skipped as a whole is one."""
    found = []
    for case in xml.parse(file).iter("testcase"):
        if case.find("skipped") is None:
            continue
        where, name = case.get("classname"), case.get("name")
        path = (where or name).replace(".", "/") + ".py"
        if not Path(path).exists():
            raise SystemExit(f"{file}: no test file {path} for {where}::{name}")
        found.append(f"{path}::{name}" if where else path)
    return found


if __name__ == "__main__":
    sys.stdout.writelines(
        f"{node}\n"
        for node in dict.fromkeys(node for file in sys.argv[1:] for node in skipped(file))
    )
