"""Translations of a newcomer's sentences by the model of the README's first command.

T2T_FLAX_TOY_RUN names a finished run of `train --config=configs/toy.py`; without it the test trains
one (minutes).
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from t2t_flax.data.sources import toy

ROOT = Path(__file__).parents[2]
NEWCOMER = [
    line.split("\t")
    for line in Path(__file__).with_name("newcomer_sentences.tsv").read_text().splitlines()
]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


@pytest.fixture(scope="module")
def outputs(tmp_path_factory) -> dict[str, str]:
    """Sentence -> output of `translate`, for the newcomer's sentences."""
    run = os.environ.get("T2T_FLAX_TOY_RUN", "")
    fast = {
        key: value
        for key, value in os.environ.items()
        if key not in ("JAX_DISABLE_MOST_OPTIMIZATIONS", "XLA_FLAGS")
    }
    fast.pop("JAX_NUM_CPU_DEVICES", None)
    command = [sys.executable, "-m", "t2t_flax"]
    if not run:
        run = str(tmp_path_factory.mktemp("toy") / "run")
        subprocess.run(
            [*command, "train", "--config=configs/toy.py", f"--workdir={run}"],
            cwd=ROOT,
            env=fast,
            check=True,
        )
    sources = "".join(f"{english}\n" for english, _ in NEWCOMER)
    result = subprocess.run(
        [*command, "translate", f"--workdir={run}"],
        cwd=ROOT,
        env=fast,
        input=sources,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return dict(zip((english for english, _ in NEWCOMER), result.stdout.splitlines(), strict=True))


def _wrong(outputs, pairs) -> list[str]:
    return [f"{en} -> {outputs[en]} (not: {de})" for en, de in pairs if outputs[en] != de]


def test_documented_sentences_are_translated_correctly(outputs):
    texts = [
        path.read_text()
        for path in (
            ROOT / "README.md",
            *(ROOT / "docs").glob("*.md"),
            *(ROOT / "t2t_flax").rglob("*.py"),
        )
    ]
    documented = [
        pair
        for pair in NEWCOMER
        if any(re.search(rf"""["']{re.escape(pair[0])}["']""", text) for text in texts)
    ]
    assert len(documented) >= 3
    assert not _wrong(outputs, documented)


def test_unseen_word_combinations_are_90_percent_correct(outputs):
    training = {english for english, _ in toy.pairs("train")}
    unseen = [pair for pair in NEWCOMER if pair[0] not in training]
    wrong = _wrong(outputs, unseen)
    assert len(unseen) >= 80
    assert len(wrong) <= 0.1 * len(unseen), "\n".join(wrong)
    print(
        f"{len(unseen) - len(wrong)} of {len(unseen)} unseen sentences right; wrong:",
        *wrong,
        sep="\n",
    )


def test_training_sentences_are_90_percent_correct(outputs):
    training = {english for english, _ in toy.pairs("train")}
    training_pairs = [pair for pair in NEWCOMER if pair[0] in training]
    wrong = _wrong(outputs, training_pairs)
    assert len(wrong) <= 0.1 * len(training_pairs), "\n".join(wrong)
