"""A sweep's report as one HTML file, its pictures inside."""

import html
import importlib.util
from collections.abc import Sequence
from typing import Any

from t2t_flax.sweeps.attempt import log_tail
from t2t_flax.sweeps.folder import FAILED, Folder
from t2t_flax.sweeps.results import Row
from t2t_flax.sweeps.trials import command

_STYLE = """body { font: 15px/1.45 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; color: #222 }
table { border-collapse: collapse } th, td { text-align: left; padding: .25rem .8rem; border-bottom: 1px solid #ddd }
td.number { text-align: right; font-variant-numeric: tabular-nums } pre { background: #f6f6f6; padding: .6rem; overflow-x: auto }
svg { max-width: 100%; height: auto } figcaption { color: #555 } tr.chosen { background: #f2f7ff }"""
NO_PICTURES = "Pictures need matplotlib: pip install -r requirements.txt, then the same command again."


def page(
    folder: Folder, described: dict[str, Any], table: list[Row], score: str, columns: Sequence[str], lines: list[list[str]],
    drawn: dict[str, str], told: str,
) -> str:  # fmt: skip
    """The page: table with what it says (`told`), pictures (`drawn`), failures with their logs, commands."""
    captions = {
        "curves": ("Learning curves", "Validation loss (nats a token); a line for each trial."),
        "effects": ("Effects", f"{score} by each varied key; a dot for each trial."),
        "parallel": ("All keys", f"A line for each row, from its values to its {score}; the brighter the better."),
    }
    figures = [
        f"<h2>{captions[name][0]}</h2>\n<figure>{svg}<figcaption>{_safe(captions[name][1])}</figcaption></figure>"
        for name, svg in drawn.items()
    ]
    if importlib.util.find_spec("matplotlib") is None:
        figures.append(f"<p>{NO_PICTURES}</p>")
    parts = [
        f"<h1>{_safe(described['config'])}</h1>",
        f"<p>{_safe(_introduction(described, told))}{_safe(_other_code(folder, described))}</p>",
        _table(columns, lines),
        *figures,
        *_failures(folder, described),
        "<h2>Commands</h2>",
        *(_command(described, row) for row in table),
    ]
    body = "\n".join(parts)
    return (
        f'<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>{_safe(described["config"])}</title>\n'
        f"<style>{_STYLE}</style>\n{body}\n</html>\n"
    )


def _introduction(described: dict[str, Any], told: str) -> str:
    fixed = ", ".join(f"{k} = {v}" for k, v in described["fixed"].items())
    code = described["code"]
    return (
        f"{len(described['trials'])} trials{f' with {fixed}' if fixed else ''}. {told}. "
        f"t2t_flax {code['version']}, source {code['digest']}."
    )


def _other_code(folder: Folder, described: dict[str, Any]) -> str:
    """Which trials had an attempt with another source than the sweep's (`--any-code`)."""
    own = described["code"]["digest"]
    found = {n: {line["code"] for line in folder.attempts(n) if line.get("code")} - {own} for n in described["trials"]}
    told = [f"{name} ({', '.join(sorted(codes))})" for name, codes in found.items() if codes]
    return f" Trained at least in part with another source: {'; '.join(told)}." if told else ""


def _table(columns: Sequence[str], lines: list[list[str]]) -> str:
    numbers = ("score", "spread", "seeds")
    head = "".join(f"<th>{name}</th>" for name in columns)
    rows = []
    for line in lines:
        cells = "".join(
            f"<td{' class=number' if name in numbers else ''}>{_safe(text)}</td>"
            for name, text in zip(columns, line, strict=True)
        )
        rows.append(f"<tr{' class=chosen' if 'compared with' in line else ''}>{cells}</tr>")
    return f"<table><tr>{head}</tr>\n" + "\n".join(rows) + "</table>"


def _failures(folder: Folder, described: dict[str, Any]) -> list[str]:
    failed = [name for name in described["trials"] if folder.state(name) == FAILED]
    shown = [f"<h3>{_safe(name)}</h3><pre>{_safe(log_tail(folder, name))}</pre>" for name in failed]
    return ["<h2>Failed</h2>", *shown] if failed else []


def _command(described: dict[str, Any], row: Row) -> str:
    told = command(described["config"], described["fixed"], row.overrides, f"runs/{row.name}")
    return f"<h3>{_safe(row.name)}</h3><pre>{_safe(told)}</pre>"


def _safe(text: str) -> str:
    return html.escape(str(text))
