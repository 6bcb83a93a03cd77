"""Pairs that a function of the user's own scores too low are dropped."""

from pathlib import Path

import pytest
from helpers import scorer
from helpers.corpora import open_pairs

from t2t_flax.config import Data, default_config, override, resolve
from t2t_flax.data import preprocess
from t2t_flax.data.dataset import prepare_corpus
from t2t_flax.data.preprocess import Pair, Policies, prepare_split
from t2t_flax.data.tokenizers import train_tokenizers
from t2t_flax.errors import UserError
from t2t_flax.extensions.corpora.list_dropped import list_dropped
from t2t_flax.extensions.corpora.scorer import Scorer, loaded
from t2t_flax.tasks import task_of

FILE = Path(scorer.__file__)
PAIRS = [("a", "ein"), ("some house", "manches Haus"), ("b", "zwei"), ("other house", "anderes Haus")]


@pytest.mark.parametrize("num_workers", [1, 2])
@pytest.mark.parametrize("spec", [f"{FILE}:length", "helpers.scorer:length"])
def test_pairs_with_a_low_score_are_counted_and_listed(tmp_path, monkeypatch, spec, num_workers):
    monkeypatch.setattr(preprocess, "CHUNK_PAIRS", 2)
    monkeypatch.setattr(preprocess, "INLINE_PAIRS", 2)
    source = open_pairs(tmp_path, PAIRS)
    tokenizers = train_tokenizers(source, Data(vocab_size=290))
    policies = Policies(100, "drop", "drop", filters=(Scorer(spec, 10),))
    store = prepare_split(source, tokenizers, tmp_path / "store", policies, num_workers=num_workers)
    assert store.num_pairs == 2 and "2 dropped, 2 scored too low" in store.describe()
    listed = list(list_dropped(source, tokenizers, policies, num_workers=num_workers))
    assert [(where[-6:], reason) for where, reason in listed] == [("line 1", "scorer"), ("line 3", "scorer")]


def drops(function, pairs=PAIRS):
    return Scorer(f"{FILE}:{function}", 0.0).drops([Pair(*pair, [5], [6], 0) for pair in pairs])


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("broken", r"scorer\.py line 10: ZeroDivisionError: division by zero"),
        ("few", "returned 1 scores for 5 pairs"),
        ("not_a_number", r"returned nan, not a number, for \('a', 'ein'\)"),
        ("text", "ValueError: could not convert string to float"),
        ("absent", r"scorer\.py has no function absent"),
    ],
)
def test_errors_of_the_function_name_its_file_and_line(function, message):
    with pytest.raises(UserError, match=f"config.filters.scorer = .*scorer.py:{function}': .*{message}|{message}"):
        drops(function, [*PAIRS, ("zero", "zero")])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("import nothing_such\n", r"own\.py line 1: ModuleNotFoundError: No module named 'nothing_such'"),
        ("\ndef score(pairs):\n  return [\n", r"own\.py line 3: SyntaxError"),
        (None, r"there is no file .*own\.py"),
    ],
)
def test_a_file_that_cannot_be_imported_is_refused_before_work_begins(tmp_path, content, message):
    if content is not None:
        (tmp_path / "own.py").write_text(content)
    keys = {"data.train": "toy:train:30", "data.vocab_size": "300", "filters.scorer": f"{tmp_path / 'own.py'}:score"}
    with pytest.raises(UserError, match=message):
        prepare_corpus(task_of(resolve(override(default_config(), keys))), tmp_path / "run")
    assert not (tmp_path / "run" / "tokenizer").exists()
    with pytest.raises(UserError, match="Python finds no module no_such_module"):
        Scorer("no_such_module:score", 0.0).as_stored()


def test_the_file_and_the_threshold_are_part_of_the_recipe(tmp_path):
    stored = []
    for content, least in (("0", 0.5), ("1", 0.5), ("1", 0.6)):
        (tmp_path / "own.py").write_text(f"def score(pairs):\n    return [{content} for _ in pairs]\n")
        loaded.cache_clear()
        stored.append(str(Scorer(f"{tmp_path / 'own.py'}:score", least).as_stored()))
    assert len(set(stored)) == 3
