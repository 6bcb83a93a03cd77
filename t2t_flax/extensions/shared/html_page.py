"""Pages of one file that any browser opens, with no network."""

import html
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def filled_page(template: Path, title: str, notes: Sequence[str], data: Any) -> str:
    """Fill a template's {{title}}, {{notes}} (items of a list) and {{data}} (JSON)."""
    # "<" as an escape, so that no text ends the script.
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    listed = "".join(f"<li>{html.escape(note)}</li>" for note in notes)
    page = (
        template.read_text(encoding="utf-8")
        .replace("{{title}}", html.escape(title))
        .replace("{{notes}}", listed)
    )
    return page.replace("{{data}}", text)
