"""Pairs that a function of the user's own scores too low are dropped."""

import sys
from pathlib import Path

import pytest
from helpers import scorer
from helpers.corpora import open_pairs
from helpers.refusals import refused

from t2t_flax.config import Data, default_config, override, resolve
from t2t_flax.data import preprocess
from t2t_flax.data.dataset import prepare_corpus
from t2t_flax.data.preprocess import Pair, Policies, prepare_split
from t2t_flax.data.tokenizers import train_tokenizers
from t2t_flax.extensions.corpora.list_dropped import list_dropped
from t2t_flax.extensions.corpora.scorer import Scorer, loaded
from t2t_flax.tasks import task_of

FILE = Path(scorer.__file__)
PAIRS = [
    ("a", "ein"),
    ("some house", "manches Haus"),
    ("b", "zwei"),
    ("other house", "anderes Haus"),
]


@pytest.mark.parametrize(
    ("spec", "num_workers"), [(f"{FILE}:length", 2), ("helpers.scorer:length", 1)]
)
def test_pairs_with_a_low_score_are_counted_and_listed(tmp_path, monkeypatch, spec, num_workers):
    monkeypatch.setattr(preprocess, "CHUNK_PAIRS", 2)
    monkeypatch.setattr(preprocess, "INLINE_PAIRS", 2)
    source = open_pairs(tmp_path, PAIRS)
    tokenizers = train_tokenizers(source, Data(vocab_size=290))
    policies = Policies(100, "drop", "drop", filters=(Scorer(spec, 10),))
    store = prepare_split(source, tokenizers, tmp_path / "store", policies, num_workers=num_workers)
    assert store.num_pairs == store.meta["scorer"] == store.meta["dropped"] == 2
    listed = list(list_dropped(source, tokenizers, policies, num_workers=num_workers))
    assert [(where[-6:], reason) for where, reason in listed] == [
        ("line 1", "scorer"),
        ("line 3", "scorer"),
    ]


def drops(function, pairs=PAIRS):
    return Scorer(f"{FILE}:{function}", 0.0).drops([Pair(*pair, [5], [6], 0) for pair in pairs])


@pytest.mark.parametrize(
    ("function", "names"),
    [
        ("broken", ("line 10:", "ZeroDivisionError:")),
        ("few", ("1 scores", "5 pairs")),
        ("not_a_number", ("nan", "('a', 'ein')")),
        ("text", ("ValueError:",)),
        ("absent", ()),
    ],
)
def test_errors_of_the_function_name_its_file_and_line(function, names):
    with refused("filters.scorer", f"scorer.py:{function}", *names):
        drops(function, [*PAIRS, ("zero", "zero")])


@pytest.mark.parametrize(
    ("content", "names"),
    [
        ("import nothing_such\n", ("line 1:", "ModuleNotFoundError:", "'nothing_such'")),
        ("\ndef score(pairs):\n  return [\n", ("line 3:", "SyntaxError:")),
        (None, ()),
    ],
)
def test_a_file_that_cannot_be_imported_is_refused_before_work_begins(tmp_path, content, names):
    if content is not None:
        (tmp_path / "own.py").write_text(content)
    keys = {
        "data.train": "toy:train:30",
        "data.vocab_size": "300",
        "filters.scorer": f"{tmp_path / 'own.py'}:score",
    }
    with refused("filters.scorer", f"{tmp_path}/own.py", *names):
        prepare_corpus(task_of(resolve(override(default_config(), keys))), tmp_path / "run")
    assert not (tmp_path / "run" / "tokenizer").exists()


@pytest.mark.parametrize(
    "content",
    ["raise RuntimeError('no GPU')\n", "import nothing_such\n", "import b\n", "def f(:\n"],
)
def test_a_package_that_cannot_be_imported_is_named(tmp_path, monkeypatch, content):
    package = tmp_path / f"bad_package_{len(content)}"
    package.mkdir()
    (package / "__init__.py").write_text(content)
    (package / "m.py").write_text("def score(pairs):\n    return [1 for _ in pairs]\n")
    monkeypatch.syspath_prepend(tmp_path)
    for module in (f"{package.name}.m", "no_such_module", "no_such_package.m"):
        with refused("filters.scorer", module, *(["Error:"] if package.name in module else [])):
            Scorer(f"{module}:score", 0.0).as_stored()


def test_a_file_may_have_dataclasses_and_change_the_list_that_it_is_given(tmp_path):
    """dataclasses look for the module by its name; two files of one name are two modules."""
    texts = ["from __future__ import annotations", "import dataclasses", "@dataclasses.dataclass", "class Least:",
             "    least: dataclasses.InitVar[float] = VALUE", "def score(pairs):", "    count = len(pairs)",
             "    pairs.clear()", "    return [Least.least] * count"]  # fmt: skip
    rules = []
    for value in ("0.2", "0.8"):
        (tmp_path / value).mkdir()
        (tmp_path / value / "own.py").write_text("\n".join(texts).replace("VALUE", value))
        rules.append(Scorer(f"{tmp_path / value / 'own.py'}:score", 0.5))
    pairs = [Pair(*pair, [5], [6], 0) for pair in PAIRS]
    assert [rule.drops(pairs) for rule in (*rules, rules[0])] == [
        [True] * 4,
        [False] * 4,
        [True] * 4,
    ]
    modules = [loaded(rule.spec)[1].__module__ for rule in rules]
    assert len({*modules}) == 2 and all(sys.modules[name].Least for name in modules)


def test_the_file_and_the_threshold_are_part_of_the_recipe(tmp_path):
    stored = []
    for content, least in (("0", 0.5), ("1", 0.5), ("1", 0.6)):
        (tmp_path / "own.py").write_text(
            f"def score(pairs):\n    return [{content} for _ in pairs]\n"
        )
        loaded.cache_clear()
        stored.append(str(Scorer(f"{tmp_path / 'own.py'}:score", least).as_stored()))
    assert len(set(stored)) == 3
