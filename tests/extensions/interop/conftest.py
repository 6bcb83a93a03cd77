"""A run of two updates, which the tests of this folder export and import."""

import pytest
from helpers.runs import start, tiny_run

from t2t_flax.training import loop


@pytest.fixture(scope="session")
def workdir(tmp_path_factory, cache):
    """A run whose decoding other programs have, too, but for the length penalty.

    With both checkpoints.
    """
    folder = tmp_path_factory.mktemp("interop") / "run"
    config = tiny_run(
        folder,
        steps=2,
        data=dict(test="toy:test:12"),
        model=dict(norm_eps=1e-5),
        optimizer=dict(ema_decay=0.5),
        checkpoint=dict(every_steps=1, keep_last=2),
        eval=dict(bootstrap_samples=0),
        decode=dict(max_length_ratio=0.0, max_length_offset=12),
    )
    loop.train(start(config, folder, cache), score=None)
    return folder
