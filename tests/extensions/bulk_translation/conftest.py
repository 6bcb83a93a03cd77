"""The run that processes translate with."""

import pytest
from helpers.runs import start, tiny_run

from t2t_flax.training import loop


@pytest.fixture(scope="session")
def workdir(tmp_path_factory, cache):
    """A run of two updates."""
    folder = tmp_path_factory.mktemp("pairs") / "run"
    search = dict(batch_size=4, beam_size=2, max_length_offset=3)
    config = tiny_run(folder, steps=2, checkpoint=dict(every_steps=1, keep_last=2), decode=search)
    loop.train(start(config, folder, cache), score=None)
    return folder
