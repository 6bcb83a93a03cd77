"""A page of layer statistics of a run: heat maps over the updates, and curves."""

import re
from pathlib import Path
from typing import Any

import numpy as np
from etils import epath

from t2t_flax.errors import UserError
from t2t_flax.extensions.shared.html_page import filled_page
from t2t_flax.training.progress import read_metrics

STATISTICS = (
    (
        "update_ratio",
        "Updates relative to parameters",
        "RMS of the update over RMS of the parameters",
        True,
    ),
    (
        "grad_rms",
        "Gradients",
        "RMS of the mean gradient per target token, before it is clipped",
        True,
    ),
    ("update_rms", "Updates", "RMS of new less old parameters", True),
    ("param_rms", "Parameters", "RMS before the update", True),
    (
        "activation_rms",
        "Activations",
        "RMS of the outputs of layers and, before they are added, of sub-layers",
        True,
    ),
    (
        "dead_units",
        "Dead units",
        "share of hidden units of the feed-forward that are 0 for every token",
        False,
    ),
    (
        "attention_entropy",
        "Entropy of attention",
        "of each head, in nats; 0 = all weight on one token",
        False,
    ),
)
"""Prefix in metrics.jsonl, title, meaning, and whether the scale is logarithmic."""
MOST_UPDATES = 400
_DIGITS = 4


def layers_page(workdir: str) -> str:
    """Return HTML of the statistics in WORKDIR/metrics.jsonl.

    Raises UserError if there are none.
    """
    prefixes = tuple(f"{prefix}/" for prefix, *_ in STATISTICS)
    lines = [
        line for line in read_metrics(workdir) if any(name.startswith(prefixes) for name in line)
    ]
    if not lines:
        raise UserError(
            f"{workdir} has no statistics of layers in metrics.jsonl: train with"
            " --config.inspection.layers_every=100."
        )
    notes = [f"{len(lines)} updates measured, from {lines[0]['step']} to {lines[-1]['step']}"]
    if len(lines) > MOST_UPDATES:
        shown = np.unique(np.linspace(0, len(lines) - 1, MOST_UPDATES).round().astype(int))
        lines = [lines[i] for i in shown]
        notes.append(f"{len(lines)} of them are shown, evenly spaced")
    statistics = [
        {
            "id": prefix,
            "title": title,
            "meaning": meaning,
            "log": logarithmic,
            "rows": _rows(lines, f"{prefix}/"),
        }
        for prefix, title, meaning, logarithmic in STATISTICS
    ]
    data = {
        "steps": [line["step"] for line in lines],
        "statistics": [each for each in statistics if each["rows"]],
    }
    title = f"{epath.Path(workdir).resolve().name}, layer by layer"
    return filled_page(Path(__file__).with_name("layers_page.html"), title, notes, data)


def _rows(lines: list[dict[str, Any]], prefix: str) -> list[dict[str, Any]]:
    """Return name, kind and values of each row; None where a line has no value.

    The kind is the name without the number of the layer.
    """
    names = {
        name.removeprefix(prefix) for line in lines for name in line if name.startswith(prefix)
    }
    return [
        {
            "name": name,
            "kind": re.sub(r"^(encoder|decoder)_\d+", r"\1", name),
            "values": [_short(line.get(prefix + name)) for line in lines],
        }
        for name in sorted(names, key=_place)
    ]


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.{_DIGITS}g}")


def _place(name: str) -> tuple[Any, ...]:
    """Return a sort key: tables, then encoder, then decoder, by layer number."""
    top = name.partition("/")[0]
    numbered = re.fullmatch(r"(encoder|decoder)_(\d+)", top)
    stack = 0 if not numbered else 1 if numbered[1] == "encoder" else 2
    parts = [
        (int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)
    ]
    return stack, int(numbered[2]) if numbered else 0, parts
