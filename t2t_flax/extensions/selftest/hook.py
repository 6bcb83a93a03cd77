"""Tests the devices of a run at its start."""

import dataclasses
import json
import os
from typing import Any

import jax
from etils import epath

from t2t_flax.config import Config, as_json
from t2t_flax.distributed.coordination import ProcessGroup
from t2t_flax.errors import UserError
from t2t_flax.extensions.selftest import SelfTest
from t2t_flax.training.hooks import Hook

_passed: set[tuple[str, ...]] = set()
"""Tests that this process has made and that found nothing: vectorized trials of a sweep differ in rates and seeds alone."""


class SelfTestHook(Hook):
    """Raises UserError, in all processes, where the devices compute something else than the CPU. Nothing is trained then."""

    def __init__(self, workdir: epath.Path, group: ProcessGroup):
        self._workdir, self._group = workdir, group

    def on_start(self, run: Any, progress: Any) -> None:
        from t2t_flax.extensions.selftest.run import run_test  # which most runs on CPU do not need

        sizes = run.corpus.tokenizers.vocab_sizes
        shape = max(run.batches.shapes, key=lambda shape: shape.size)
        model = dataclasses.replace(run.config.model, dropout=0.0, dropout_attention=0.0, dropout_ffn=0.0)
        config = as_json(dataclasses.replace(run.config, model=model))
        del config["seed"], config["optimizer"]
        test = str(run.mesh.devices), str(shape), str(sizes), run.config.optimizer.name, json.dumps(config)
        if test in _passed:
            return
        report = run_test(run.config, run.mesh, sizes, shape, self._workdir, self._group)
        self._group.say(report.summary)
        report.raise_if_faulty()
        _passed.add(test)


def hook(config: Config, workdir: epath.Path, group: ProcessGroup) -> Hook:
    """See `registry.HOOKS`."""
    when = SelfTest.of(config).at_start
    wanted = when == "always" or when == "auto" and jax.default_backend() != "cpu"
    return SelfTestHook(workdir, group) if wanted else Hook()


def check_installed(config: Config) -> None:
    """Raises UserError where the test would find no CPU to compare with. Starts no backend."""
    platforms = os.environ.get("JAX_PLATFORMS", "")
    names = platforms.split(",")
    if platforms and "cpu" not in names and SelfTest.of(config).at_start != "never":
        raise UserError(
            f"the self-test compares with the CPU, which JAX_PLATFORMS={platforms} leaves out: set "
            f"JAX_PLATFORMS={platforms},cpu, or train with --config.selftest.at_start=never."
        )
