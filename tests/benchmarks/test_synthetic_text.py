"""`benchmarks.synthetic_text`: its chain of commands and the table of docs/synthetic_text.md."""

import gzip
import json
import re
from pathlib import Path

from benchmarks.synthetic_text import ROWS, commands, run, write_text

ROOT = Path(__file__).parents[2]


def write_corpus(folder: Path, pairs: int) -> None:
    folder.mkdir()
    for split, count in (("train", pairs), ("val", 4), ("test2016", 4)):
        for language in ("en", "de"):
            lines = "".join(f"{language} {split} {number}\n" for number in range(count))
            (folder / f"{split}.{language}.gz").write_bytes(gzip.compress(lines.encode()))


def test_every_command_reads_what_an_earlier_one_wrote(tmp_path):
    write_corpus(tmp_path / "data", 7)
    assert write_text(tmp_path / "data", tmp_path) == 7
    there = {path.name for path in tmp_path.iterdir()}
    for name, *flags in commands():
        if name == "head":
            like, source, output = flags
            assert {like, source} <= there
            there.add(output)
            continue
        options = dict(flag.removeprefix("--").partition("=")[::2] for flag in flags)
        files = [options["input"]] if name == "translate" else []
        for key in ("train", "valid", "test") if name == "train" else ():
            files += re.split(r"[,;] ?", re.sub(r"\w+=", "", options[f"config.data.{key}"]))
        assert set(files) <= there, flags
        assert name == "train" or options["workdir"] in there
        there.add(options["output"] if name == "translate" else options["workdir"])
    assert set(ROWS) <= there


def test_halves_are_aligned_and_disjoint(tmp_path):
    write_corpus(tmp_path / "data", 7)
    write_text(tmp_path / "data", tmp_path)
    first, second, whole = ((tmp_path / f"{name}.en").read_text() for name in ("a", "b", "whole"))
    assert first + second == whole and first.count("\n") == 3
    assert (tmp_path / "b.de").read_text() == second.replace("en ", "de ")


def test_head_keeps_the_lines_of_the_first_half(tmp_path):
    (tmp_path / "a.en").write_text("1\n2\n")
    (tmp_path / "whole.distilled.de").write_text("eins\nzwei\ndrei\n")
    run(["head", "a.en", "whole.distilled.de", "a.distilled.de"], tmp_path, tmp_path, [])
    assert (tmp_path / "a.distilled.de").read_text() == "eins\nzwei\n"


def test_the_table_shows_the_record():
    record = json.loads((ROOT / "benchmarks" / "results" / "synthetic_text.json").read_text())
    page = (ROOT / "docs" / "synthetic_text.md").read_text()
    assert record["command"] in page
    table = [[cell.strip() for cell in line.split("|")[1:-1]] for line in re.findall(r"^\| .* \|$", page, re.M)][1:]
    expected = [
        [
            row["row"],
            f"{row['parameters']:,}",
            f"{row['bleu']['score']:.1f} ± {row['bleu']['confidence']['half_width']:.1f}",
            f"{row['chrf']:.1f}",
        ]
        for row in record["rows"]
    ]
    assert [row["run"] for row in record["rows"]] == list(ROWS) and table == expected
