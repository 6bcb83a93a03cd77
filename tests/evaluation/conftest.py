"""A finished run for the tests of this folder."""

import pytest
from helpers.runs import start, tiny_run

from t2t_flax.training import loop


@pytest.fixture(scope="session")
def finished(tmp_path_factory, cache):
    """The workdir and the outcome of a run of 6 updates with checkpoints 2, 4 and 6.

    Tests only add evaluations.
    """
    workdir = tmp_path_factory.mktemp("finished")
    config = tiny_run(
        workdir,
        steps=6,
        optimizer=dict(ema_decay=0.5),
        checkpoint=dict(every_steps=2, keep_last=3),
        data=dict(test="toy:test:30", source_language="en", corpus="built-in captions"),
        eval=dict(bootstrap_samples=50),
        decode=dict(beam_size=2, max_length_offset=4, max_length_ratio=0.2),
    )
    return workdir, loop.train(start(config, workdir, cache), score=None)
