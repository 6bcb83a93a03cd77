"""A run that was killed and resumed equals one that was not, whatever it trains with."""

import jax
import numpy as np
import pytest
from helpers.runs import DIRECTIONS, LANGUAGES, copy_at, start, tiny_run

from t2t_flax.registry import load_extensions
from t2t_flax.training import loop
from t2t_flax.training.progress import read_metrics

load_extensions()
OPTIMIZERS = ("adafactor", "muon", "schedule_free_adamw")
SETS = dict(valid="en-de=toy:valid:12; de-en=toy:valid:9", test="same=toy:test:4")
SOURCES = dict(train="many=toy:train:300; few=toy:train:60")
FEATURES = {
    "statistics of layers": dict(eval=dict(every_steps=3), inspection=dict(layers_every=3)),
    "moving average, decay and clipping": dict(
        optimizer=dict(ema_decay=0.9, weight_decay=0.1, max_grad_norm=0.5), eval=dict(every_steps=3)
    ),
    "adapters": dict(finetuning=dict(lora_rank=2, lora_modules="*/query */value */out */Einsum_1")),
    "frozen parameters": dict(
        finetuning=dict(freeze="encoder_* shared_embedding"),
        optimizer=dict(ema_decay=0.9, max_grad_norm=0.5),
    ),
    "shares and sizes that change, sampled subwords": dict(
        data=SOURCES,
        mixtures=dict(
            shares="many=3, few=1; 2: few=1; 5: many=1, few=1",
            tags="few=<t>",
            batch_tokens="2: 384; 6: 768",
        ),
        subwords=dict(bpe_dropout=0.2),
    ),
    "directions": dict(
        data=DIRECTIONS | SETS,
        languages=LANGUAGES,
        eval=dict(every_steps=3),
        filters=dict(duplicates=True),
        mixtures=dict(temperature=4.0),
    ),
    **{name: dict(optimizer=dict(name=name, weight_decay=0.1)) for name in OPTIMIZERS},
}
FAST = ("moving average, decay and clipping",)


def lines(workdir) -> list[dict]:
    """What the run has logged, without times."""
    return [
        {
            name: value
            for name, value in line.items()
            if "second" not in name and not name.startswith("mfu")
        }
        for line in read_metrics(workdir)
    ]


@pytest.mark.parametrize(
    "feature",
    [pytest.param(name, marks=[] if name in FAST else [pytest.mark.slow]) for name in FEATURES],
)
def test_a_resumed_run_equals_one_that_was_not_stopped(tmp_path, cache, feature):
    config = tiny_run("", 8, **FEATURES[feature])
    if config.value("finetuning.lora_rank"):
        loop.train(start(tiny_run("", 1), tmp_path / "base", cache), score=None)
        config = config.with_values({"finetuning.init_from": str(tmp_path / "base")})
    whole = loop.train(start(config, tmp_path / "whole", cache), score=None).state
    copy_at(4, tmp_path / "whole", tmp_path / "parts")
    parts = loop.train(start(config, tmp_path / "parts", cache), score=None).state
    jax.tree.map(np.testing.assert_array_equal, parts, whole)
    assert lines(tmp_path / "parts") == lines(tmp_path / "whole")
    assert sum("loss" in line for line in lines(tmp_path / "whole")) == 8
