"""The input section of docs/scaling.md, from the record of `input_rate`."""

import json
from pathlib import Path
from typing import Any

RECORD = Path(__file__).parent / "results" / "input_rate.json"


def section(markdown) -> str:
    """The section; `markdown(head, rows)` makes a table."""
    record = json.loads(RECORD.read_text())
    parts = ["## Input", _words(record), _rates(record, markdown), _NEED, _needs(record, markdown), _START]
    return "\n\n".join([*parts, _starts(record, markdown)])


def _words(record: dict[str, Any]) -> str:
    cpu, prepared = record["machine"]["cpu"], record["preparation_of_one_core"]
    tokens, scanned = prepared["tokens_per_second"] / 1e6, prepared["scan_megabytes_per_second"]
    return f"""Measured by `{record["command"]}`
on one core ({cpu}). Every host reads and tokenises its own share of the text, {tokens:.2f} M tokens/s a core, and
finds the ends of the lines of other shares at {scanned} MB/s. In training each host finds the rows of the whole update,
the same on all of them, and fills those of its own devices. Target tokens/s of the whole update:"""


def _rates(record: dict[str, Any], markdown) -> str:
    rows = []
    for made in record["batches_of_one_core"]:
        for share, told in made["hosts"].items():
            milliseconds = (told["seconds_per_update"] * 1e3, told["of_which_filling"] * 1e3)
            rate = told["target_tokens_per_second_of_the_whole_batch"] / 1e6
            rows.append([f"{made['batch_tokens']:,}", share, *(f"{x:,.2f}" for x in milliseconds), f"{rate:.1f} M"])
    return markdown(
        ["tokens an update", "share of a host", "ms an update", "of which filling", "target tokens/s"], rows
    )


_NEED = """What a pod takes, by formula at 40 % MFU, and the cores of each host for it with updates of 1 M tokens. Every run has
one thread for this."""


def _needs(record: dict[str, Any], markdown) -> str:
    cores = record["cores_of_each_host_for_batches_of_1M"]
    needs = record["need_by_formula"]
    rows = [[name, f"{need['target_tokens_per_second'] / 1e6:.1f} M", f"{cores[name]}"] for name, need in needs.items()]
    return markdown(["model and machine", "target tokens/s", "cores a host"], rows)


_START = """A later start hardly waits for the corpus: lengths and offsets are memory-mapped, and the number of updates in each
window, for which the first start reads all lengths (`prepare` does it ahead), is kept beside the store. A process each, with a
cold file cache, synthetic pairs; mapped pages are the system's to drop."""


def _starts(record: dict[str, Any], markdown) -> str:
    rows = []
    for start in record["starts"]:
        first, later = start["first"], start["later"]
        memory = [f"{later['own_mb']:.1f} MB", f"{later['mapped_mb']:,.0f} MB"]
        rows.append([f"{start['pairs']:,}", f"{start['index_mb']:,.0f} MB", f"{first['total_s']:.1f} s",
                     f"{later['total_s']:.1f} s", *memory])  # fmt: skip
    return markdown(["pairs", "index", "first start", "later start", "own memory", "mapped pages"], rows)
