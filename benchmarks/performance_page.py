"""Tables of docs/performance.md from the committed records; `python -m benchmarks --page` writes them.

The page is written by hand but for the parts between `<!-- NAME -->` and `<!-- /NAME -->`, NAME being a record in
benchmarks/results. A part without its record says so.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.bars import bar_chart
from benchmarks.profile import PARTS

RESULTS = Path(__file__).parent / "results"
PAGE = Path(__file__).parents[1] / "docs" / "performance.md"
NAMES = {
    "ours": "this project",
    "ours_2_devices": "this project, 2 CPU devices",
    "ours_packed": "this project, packed rows",
    "torch": "PyTorch `nn.Transformer`",
    "torch_tcmalloc": "PyTorch `nn.Transformer`, tcmalloc",
    "torch_bfloat16": "PyTorch, bfloat16 autocast",
    "torch_bfloat16_tcmalloc": "PyTorch, bfloat16 autocast, tcmalloc",
    "torch_compile": "PyTorch, `torch.compile`",
    "torch_compile_tcmalloc": "PyTorch, `torch.compile`, tcmalloc",
    "marian": "Hugging Face Marian",
    "marian_tcmalloc": "Hugging Face Marian, tcmalloc",
    "joeynmt": "Joey NMT",
    "ctranslate2_float32": "CTranslate2, float32",
    "ctranslate2_int8": "CTranslate2, int8",
}


def fill(text: str, results: Path = RESULTS) -> str:
    """The page with each generated part made anew."""

    def part(match: re.Match) -> str:
        name = match[1]
        path = results / f"{name}.json"
        body = f"Not measured yet: `benchmarks/results/{name}.json` does not exist."
        if path.exists():
            record = json.loads(path.read_text())
            picture = f"\n\n![{record['what']}]({name}.svg)" if chart(record) else ""
            body = table_of(name)(record) + picture
        return f"<!-- {name} -->\n{body}\n<!-- /{name} -->"

    return re.sub(r"<!-- (\w+) -->\n.*?<!-- /\1 -->", part, text, flags=re.S)


def charts(results: Path = RESULTS) -> dict[str, str]:
    """{file name: SVG} of the records that have a picture."""
    records = {path: json.loads(path.read_text()) for path in sorted(results.glob("*_*.json")) if _has_table(path.stem)}
    return {f"{path.stem}.svg": svg for path, record in records.items() if (svg := chart(record))}


def _has_table(name: str) -> bool:
    return f"<!-- {name} -->" in PAGE.read_text()


def chart(record: dict[str, Any]) -> str:
    """Bars of the engines' speeds; "" for records without engines."""
    rates = {
        NAMES.get(name, name): tuple(e[key][part] for part in ("median", "min", "max"))
        for name, e in record.get("engines", {}).items()
        for key in ("sentences_per_second" if "sentences_per_second" in e else "tokens_per_second",)
    }
    own = frozenset(NAMES[name] for name in record.get("engines", {}) if name.startswith("ours"))
    unit = "sentences/s" if "search" in record else "target tokens/s"
    return bar_chart(f"{record['what'].split(':')[0]}, {unit}", rates, own) if rates else ""


def table_of(name: str) -> Callable[[dict[str, Any]], str]:
    """The function that formats this record."""
    return {"training": training, "decoding": decoding, "growth": growth, "start": start, "profile": profile}[
        name.split("_")[0]
    ]


def _markdown(head: list[str], rows: list[list[str]]) -> str:
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [head, ["---"] * len(head), *rows])


def _ratio(ratio: dict[str, Any] | None) -> str:
    """Median, with the smallest and largest of the rounds."""
    return f"**{ratio['median']:.2f}** ({ratio['min']:.2f} to {ratio['max']:.2f})" if ratio else ""


def _versions(record: dict[str, Any]) -> str:
    versions = dict(record["versions"])
    for engine in record["engines"].values():
        versions |= {name: version for name, version in engine["versions"].items() if name != "t2t_flax"}
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def _facts(record: dict[str, Any]) -> str:
    machine = record["machine"]
    skipped = "".join(f" Not measured: {NAMES.get(k, k)} ({why})." for k, why in record.get("skipped", {}).items())
    return f"`{record['command']}`\n\n{machine['cpu']}, {machine['cores']} cores.{skipped}"


def training(record: dict[str, Any]) -> str:
    """Tokens/s, ratio, share of the peak, memory and first calls of each engine."""
    lines, ratios = [], record["ratio"]
    for name, e in record["engines"].items():
        rate = e["tokens_per_second"]
        lines.append([
            NAMES.get(name, name),
            f"{rate['median']:,.0f} ({rate['min']:,.0f} to {rate['max']:,.0f})",
            _ratio(ratios.get(name)),
            f"{e['milliseconds_a_step']:,.0f}",
            f"{e['gflops']:.0f} ({100 * e['fraction_of_peak']:.0f} %)",
            f"{e['peak_rss_mb'] / 1024:.1f}",
            f"{e['first_pass_seconds']:.0f}",
        ])  # fmt: skip
    head = [
        "engine",
        "target tokens/s",
        "this project / engine",
        "ms a step",
        "GFLOP/s (of peak)",
        "GB",
        "first pass, s",
    ]
    peaks = "; ".join(
        f"{library} " + (f"{max(rates.values()):.0f}" if "skipped" not in rates else "not measured")
        for library, rates in record["peak"]["float32_gflops"].items()
    )
    best = f" Ratios are of {NAMES[record['ratio_of']]}." if record["ratio_of"] else ""
    text = (
        f"{_facts(record)} {record['threads']} threads. Peak of float32 products on this machine in GFLOP/s: {peaks}. "
        f"{record['batches']['gflop_per_target_token'] * 1e3:.3g} MFLOP per target token.{best} {_versions(record)}."
    )
    return f"{_markdown(head, lines)}\n\n{text}"


def decoding(record: dict[str, Any]) -> str:
    """Sentences/s, ratio, memory and first calls of each engine, and how many outputs are equal."""
    lines = []
    for name, e in record["engines"].items():
        rate, tried = e["sentences_per_second"], e.get("tried", {})
        same = record["agreement"].get(name)
        equal = "" if same is None else f"{same['equal']} of {same['sentences']}"
        equal += f", {same['near_ties']} near ties" if same and same.get("near_ties") else ""
        others = ", ".join(f"{how} {value:,.3g}" for how, value in tried.items() if how != e["arrangement"])
        lines.append([
            NAMES.get(name, name),
            f"{rate['median']:,.4g} ({rate['min']:,.4g} to {rate['max']:,.4g})",
            f"{e['tokens_per_second']:,}",
            _ratio(record["ratio"].get(name)),
            (e.get("arrangement", "") + (f" ({others})" if others else "")),
            equal,
            f"{e['peak_rss_mb'] / 1024:.1f}",
            f"{e.get('compile_seconds', e['first_pass_seconds']):.1f}",
        ])  # fmt: skip
    head = ["engine", "sentences/s", "tokens/s", "this project / engine", "arrangement (others)", "equal outputs", "GB",
            "compile or load, s"]  # fmt: skip
    s = record["search"]
    text = (
        f"{_facts(record)} {record['threads']} threads, {s['sentences']} sentences of "
        f"{s['source_tokens'] / s['sentences']:.1f} tokens on average, {record['model']['weights']} weights, beam "
        f"{s['beam_size']}, batches of {s['batch_size']}. {_versions(record)}."
    )
    return f"{_markdown(head, lines)}\n\n{text}"


def growth(record: dict[str, Any]) -> str:
    """Slopes of time beside those of FLOPs."""
    lines = [
        [
            f"{kind}: {row['what']}",
            ", ".join(map(str, row["values"])),
            ", ".join(f"{t:.4g}" for t in row["milliseconds"]),
            f"{row['slope']:.2f} ({row['last_slope']:.2f})",
            f"{row['slope_of_flops']:.2f} ({row['last_slope_of_flops']:.2f})",
        ]
        for kind in ("training", "decoding")
        for row in record[kind]
    ]
    head = ["grows", "values", "ms", "slope of time (last doubling)", "slope of FLOPs (last doubling)"]
    base = ", ".join(f"{key} {value}" for key, value in record["base"].items())
    return f"{_markdown(head, lines)}\n\n{_facts(record)} The other sizes: {base}."


def start(record: dict[str, Any]) -> str:
    """Seconds from the command to the first result."""
    measured = {
        "first_update": "`train` to its first update",
        "first_line": "`translate` to its first line",
        "mixed_lines": "`translate` of 512 lines of one to four sentences, to the last",
    }
    lines = [
        [what] + [f"{record[key][how]['median']:.1f} ({record[key][how]['min']:.1f} to {record[key][how]['max']:.1f})"
                  for how in ("cold", "warm")]
        for key, what in measured.items()
        if key in record
    ]  # fmt: skip
    head = ["seconds from the command", "nothing cached or compiled", "caches and programs of an earlier start"]
    return f"{_markdown(head, lines)}\n\n{_facts(record)}"


def profile(record: dict[str, Any]) -> str:
    """Shares of the time by group of operations, then of the products with their GFLOP/s, a column for each part."""
    parts = record["parts"]
    heads = [name.replace("_", ", ") for name in parts]
    largest = lambda values: sorted(values, key=lambda name: -max(values[name]))  # noqa: E731
    shares, products = {}, {}
    for entry in parts.values():
        shares |= {name: [part["shares"].get(name, 0.0) for part in parts.values()] for name in entry["shares"]}
        products |= {
            name: [part["products"].get(name, {}).get("share", 0.0) for part in parts.values()]
            for name in entry["products"]
        }
    rows = [[name, *(f"{100 * share:.1f} %" for share in shares[name])] for name in largest(shares)]
    totals = [
        ["**GFLOP/s of the products**", *(f"**{e['gflops_of_products']:.0f}**" for e in parts.values())],
        ["peak of products, same run", *(f"{e['peak_gflops']:.0f}" for e in parts.values())],
    ]

    def cell(entry: dict[str, Any] | None) -> str:
        return f"{100 * entry['share']:.1f} %, {entry['gflops']:.0f} ({entry['shapes'][0]})" if entry else ""

    kinds = [[name, *(cell(part["products"].get(name)) for part in parts.values())] for name in largest(products)]
    loads = ", ".join(f"{load[0]:.0f} to {load[1]:.0f}" for load in (e["load"] for e in parts.values()))
    missing = [name.replace("_", ", ") for name in PARTS if name not in parts]
    missing = f" Not measured: {'; '.join(missing)}." if missing else ""
    what = "; ".join(f"{head}: {entry['what']}" for head, entry in zip(heads, parts.values(), strict=True))
    return (
        f"{_markdown(['share of the time on one core', *heads], rows + totals)}\n\n"
        "Products by what they multiply: share of the time, GFLOP/s and the shape that takes most of it, as batch x rows x "
        f"contracted x columns.\n\n{_markdown(['product', *heads], kinds)}\n\n"
        f"{_facts(record)} {what}. Load of the machine before and after each: {loads}.{missing}"
    )
