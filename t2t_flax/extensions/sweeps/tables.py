"""Tables as text for the terminal and as CSV."""

import csv
import io
from collections.abc import Collection, Sequence
from typing import Any


def text_table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, right: Collection[str] = ()) -> str:
    """Columns of equal width under their names; those named in `right` are right-aligned, as numbers are."""
    lines = [columns, *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]

    def cell(i: int, text: str) -> str:
        return text.rjust(widths[i]) if columns[i] in right else text.ljust(widths[i])

    return "\n".join("  ".join(cell(i, text) for i, text in enumerate(line)).rstrip() for line in lines)


def csv_text(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A table as the text of a CSV file, the names of the columns first."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([columns, *rows])
    return out.getvalue()
