"""Runs of seconds on a few hundred sentences of the built-in corpus."""

import dataclasses
import shutil
from pathlib import Path

import jax
from etils import epath

from helpers.configs import small_config
from t2t_flax.data.dataset import prepare_corpus
from t2t_flax.tasks import task_of
from t2t_flax.training.setup import set_up_training
from t2t_flax.training.workdir import adopt_config

DIRECTIONS = dict(train="en-de=toy:train:150; de-en=toy:train:120", vocab_size=400)
"""Keys of `data` for a run of two directions, with `LANGUAGES`."""
LANGUAGES = dict(directions="by_name, same=en-de")
"""Keys of `languages` for that run, whose test sets include one named `same`."""
SHORT_SEARCH = {
    "decode.beam_size": "2",
    "decode.max_length_offset": "3",
    "decode.max_source_length": "40",
}


def tiny_run(workdir, steps=12, **groups):
    """A run of seconds on 300 sentences of the built-in corpus, with dropout and accumulation."""
    base = dict(
        data=dict(
            train="toy:train:300", valid="toy:valid:30", vocab_size=300, byte_fallback=False, max_length=64, pack_length=64,
            batch_tokens=256, microbatch_tokens=128,
        ),
        mesh=dict(cpu_devices=1, data=1),
        train=dict(steps=steps),
        eval=dict(every_steps=0),
        log=dict(every_steps=1),
        checkpoint=dict(every_steps=4),
    )  # fmt: skip
    for name, keys in groups.items():
        base[name] = base.get(name, {}) | keys
    return small_config(**base)


def copy_at(step: int, run: Path, workdir: Path) -> None:
    """Copy a run to `workdir` as if it was killed some time after it saved checkpoint `step`."""
    shutil.copytree(run, workdir, dirs_exist_ok=True)
    for folder in (workdir / "checkpoints").iterdir():
        if int(folder.name) > step:
            shutil.rmtree(folder)
    assert (workdir / "checkpoints" / str(step)).is_dir()


def start(config, workdir, cache, devices=1):
    """The setup of a run on so many of the simulated devices."""
    config = dataclasses.replace(config, data=dataclasses.replace(config.data, cache=str(cache)))
    adopt_config(epath.Path(workdir), config)
    corpus = prepare_corpus(task_of(config), workdir)
    with jax.default_device(jax.devices()[0]):
        return set_up_training(config, epath.Path(workdir), corpus, devices=jax.devices()[:devices])
