"""Changes of the training text that another extension adds."""

import dataclasses
from pathlib import Path

import pytest
from helpers import documented_modules
from helpers.runs import tiny_run

from t2t_flax.data.dataset import prepare_corpus
from t2t_flax.tasks import task_of


@pytest.fixture(autouse=True)
def forget():
    yield
    documented_modules.forget()


def test_changes_of_the_training_text(monkeypatch, tmp_path):
    keys = documented_modules.use(Path(__file__).parent / "shuffled_words.py", monkeypatch).ShuffledWords
    config = dataclasses.replace(tiny_run(tmp_path), extensions=(("shuffled_words", keys(share=0.5)),))
    corpus = prepare_corpus(task_of(config), tmp_path)
    batches, changed = corpus.batches(config), []
    for k in range(batches.updates_per_epoch):
        batch, spell = batches.batch(k), corpus.tokenizers.source.decode
        for pair, at in zip(batch.pairs.tolist(), batch.index.tolist(), strict=True):
            source, target = (side.ids[side.offsets[at] :][: side.lengths[at]].tolist() for side in batch.sides)
            before, after = spell(corpus.train.source(pair).tolist()), spell(source)
            assert sorted(before.split()) == sorted(after.split()) and target == corpus.train.target(pair).tolist()
            changed.append(before != after)
    assert 0.3 < sum(changed) / len(changed) < 0.6
