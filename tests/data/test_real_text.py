"""Real captions from T2T_FLAX_DATA: nothing is lost between files and batches."""

import gzip

import numpy as np
import pytest

from t2t_flax.config import load_config
from t2t_flax.data.batching.batches import Batches
from t2t_flax.data.dataset import prepare_corpus
from t2t_flax.data.splits import split_source
from t2t_flax.tasks import task_of


@pytest.mark.real_data
def test_multi30k_from_files_to_batches(real_data, tmp_path):
    from pathlib import Path

    raw = real_data / "multi30k" / "raw"
    overrides = {
        "data.root": str(raw),
        "data.train": "train.en.gz,train.de.gz",
        "data.valid": "val.en.gz,val.de.gz",
        "data.test": "test2016.en.gz,test2016.de.gz",
    }
    config = load_config(str(Path(__file__).parents[2] / "configs" / "text.py"), overrides)
    corpus = prepare_corpus(task_of(config), tmp_path)
    assert corpus.train.meta["pairs_read"] == 29_000
    assert (
        corpus.train.num_pairs + corpus.train.meta["dropped"] == 29_000
        and corpus.train.meta["dropped"] < 30
    )
    assert corpus.valid["valid"].num_pairs == 1014
    with gzip.open(raw / "test2016.de.gz", "rt", encoding="utf-8", newline="\n") as file:
        references = file.read().split("\n")[:-1]
    pairs = list(split_source(task_of(config), "test").pairs())
    assert len(pairs) == 1000 and [t for _, t in pairs] == references
    tokenizer = corpus.tokenizers.target
    unchanged = sum(tokenizer.decode(tokenizer.encode(t)) == t for t in references)
    # The others contain characters that nmt_nfkc normalizes.
    assert unchanged >= 0.97 * len(references)

    batches = Batches(corpus.train, config.data, seed=0)
    filled = [batches.batch(k) for k in range(batches.updates_per_epoch)]
    assert len(set(np.concatenate([b.pairs for b in filled]).tolist())) == corpus.train.num_pairs
    assert len({b.shape for b in filled}) == 1
    assert np.mean([max(b.source_tokens, b.target_tokens) / b.shape.slots for b in filled]) > 0.96
