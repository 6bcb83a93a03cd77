"""Tests the devices of a run at its start."""

from typing import Any

import jax
from etils import epath

from t2t_flax.config import Config
from t2t_flax.distributed.coordination import ProcessGroup
from t2t_flax.extensions.selftest import SelfTest
from t2t_flax.training.hooks import Hook


class SelfTestHook(Hook):
    """Raises UserError, in all processes, where the devices compute something else than the CPU. Nothing is trained then."""

    def __init__(self, workdir: epath.Path, group: ProcessGroup):
        self._workdir, self._group = workdir, group

    def on_start(self, run: Any, progress: Any) -> None:
        from t2t_flax.extensions.selftest.run import run_test  # which most runs on CPU do not need

        sizes = run.corpus.tokenizers.vocab_sizes
        shape = max(run.batches.shapes, key=lambda shape: shape.size)
        report = run_test(run.config, run.mesh, sizes, shape, self._workdir, self._group)
        self._group.say(report.summary)
        report.raise_if_faulty()


def hook(config: Config, workdir: epath.Path, group: ProcessGroup) -> Hook:
    """See `registry.HOOKS`."""
    when = SelfTest.of(config).at_start
    wanted = when == "always" or when == "auto" and jax.default_backend() != "cpu"
    return SelfTestHook(workdir, group) if wanted else Hook()
