"""A trained run, restored from its workdir alone, on whatever devices there are."""

import dataclasses
import logging
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from etils import epath

from t2t_flax import config as config_lib
from t2t_flax.config import Config
from t2t_flax.data.task import task_of
from t2t_flax.data.tokenizers import TokenizerPair
from t2t_flax.decoding.attention_maps import AttentionMaps, attention_maps
from t2t_flax.decoding.forced import PairIds, PairScore, encode_pairs, score_pairs
from t2t_flax.decoding.translator import Translation, Translator
from t2t_flax.errors import UserError
from t2t_flax.files import check_reachable, numbered
from t2t_flax.models.transformer import Transformer
from t2t_flax.parallel import mesh as mesh_lib
from t2t_flax.parallel.pod import Pod
from t2t_flax.training.checkpoint import Checkpoints, DamagedCheckpoint, check_same_model
from t2t_flax.training.optimizer import make_optimizer
from t2t_flax.training.state import init_state, make_model

log = logging.getLogger("t2t_flax")


@dataclasses.dataclass(frozen=True)
class Loaded:
    """Parameters (of the checkpoints `steps`, newest first, averaged where there are several) and all that they need.
    asked: which were asked for, and among which (`asked_for`).
    """

    workdir: epath.Path
    config: Config
    tokenizers: TokenizerPair
    mesh: jax.sharding.Mesh
    model: Transformer
    params: Any
    steps: tuple[int, ...]
    asked: dict[str, Any] = dataclasses.field(default_factory=dict)

    def translate(
        self,
        lines: Sequence[str],
        *,
        prefixes: Sequence[str] | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> list[Translation]:
        """One Translation for each line, in order; see `decoding.translator`. Raises UserError for prefixes where the run's
        task has none.
        """
        task = task_of(self.config)
        if prefixes and not task.prefixes:
            raise UserError(f"outputs of data.task = {self.config.data.task} cannot be given a prefix.")
        lines = [task.source(line) for line in lines]
        eos = self.config.data.source_eos
        translator = Translator(self.model, self.tokenizers, self.mesh, self.config.decode, source_eos=eos)
        return translator.translate(self.params, lines, prefixes=prefixes, progress=progress)

    def score(
        self, pairs: Sequence[tuple[str, str]], *, where: Callable[[int], str] = "pair {}".format
    ) -> list[PairScore]:
        """The log-probability of each target given its source, in order; see `decoding.forced`.

        Raises UserError, naming `where(number)`, for a pair with an empty side, one that is too long, and a target that
        the task cannot have.
        """
        ids = self._ids(pairs, where)
        batch_size = self.config.decode.batch_size
        return score_pairs(self.model, self.params, self.tokenizers, self.mesh, ids, batch_size=batch_size)

    def attend(self, source: str, target: str | None = None) -> AttentionMaps:
        """Attention of every layer and head for a pair; without a target, for the run's own translation.

        Raises UserError for an empty or too long side.
        """
        if target is None:
            self._encoded([(source, source)], "source {}".format)  # an impossible one is told before it is translated
            target = task_of(self.config).answer(source, self.translate([source])[0].text)
            if not target.strip():
                raise UserError("the run's own translation of this source is empty: give a --target.")
        (pair,) = self._ids([(source, target)], "pair {}".format)
        return attention_maps(self.model, self.params, self.tokenizers, pair)

    def _ids(self, pairs: Sequence[tuple[str, str]], where: Callable[[int], str]) -> list[PairIds]:
        task, made = task_of(self.config), []
        for number, (source, target) in enumerate(pairs, 1):
            try:
                told = task.target(source, target) if source.strip() and target.strip() else target
            except UserError as error:
                raise UserError(f"{where(number)}: {error}") from None
            made.append((task.source(source), told))
        return self._encoded(made, where)

    def _encoded(self, pairs: Sequence[tuple[str, str]], where: Callable[[int], str]) -> list[PairIds]:
        limit, model = self.config.decode.max_source_length, self.config.model
        limit = min(limit, model.position_max) if model.position == "learned" else limit
        return encode_pairs(self.tokenizers, pairs, source_eos=self.config.data.source_eos, limit=limit, where=where)


def stored_config(workdir: str | epath.Path, overrides: dict[str, str] | None = None) -> Config:
    """The resolved config of a run, with `{"decode.beam_size": "8"}` overrides. Raises UserError where the folder holds
    no run, or an override is impossible.
    """
    check_reachable(workdir)
    path = epath.Path(workdir) / "config.json"
    if not path.exists():
        raise UserError(f"{workdir} holds no run: there is no {path.name}. Give the --workdir of a `train` command.")
    return _changed(config_lib.from_json(path.read_text()), overrides)


def _changed(stored: Config, overrides: dict[str, str] | None) -> Config:
    if not overrides:
        return stored
    return config_lib.resolve(config_lib.override(config_lib.to_config_dict(stored), overrides))


def load(
    workdir: str | epath.Path,
    *,
    step: int | None = None,
    average: int = 0,
    at_most: bool = False,
    overrides: dict[str, str] | None = None,
    pod: Pod | None = None,
) -> Loaded:
    """Restores a run: the newest whole checkpoint, checkpoint `step`, or the mean of the last `average` up to it.

    An average leaves out checkpoints that are there only because the run was stopped between two regular ones. With
    `at_most` it takes fewer where there are fewer, or some are damaged.
    `overrides` such as `{"decode.beam_size": "8"}` change how it decodes. Of several processes (`pod`) all take the same
    checkpoints. Needs nothing but the workdir. Raises UserError for a folder without a run, an unknown step, or damage.
    """
    workdir = epath.Path(workdir)
    stored = stored_config(workdir)
    config = _changed(stored, overrides)
    check_same_model(stored, config, f"the run in {workdir}")
    tokenizers = TokenizerPair.load(workdir / "tokenizer")
    mesh = _mesh(config, workdir, given=any(key.startswith("mesh.") for key in overrides or {}), pod=pod)
    mesh_lib.check_divisibility(config, mesh)
    model = make_model(config, tokenizers.source.vocab_size, tokenizers.target.vocab_size)
    abstract, _ = init_state(config, model, make_optimizer(config), mesh, abstract=True)
    item = "ema" if stored.optimizer.ema_decay else "params"
    params, steps = _restore(workdir, abstract.params, item, step, average, at_most, tokenizers.digest, pod)
    asked = asked_for(workdir, step, average) | ({"at_most": True} if at_most else {})
    return Loaded(workdir, config, tokenizers, mesh, model, params, steps, asked)


def _mesh(config: Config, workdir: epath.Path, *, given: bool, pod: Pod | None) -> jax.sharding.Mesh:
    """That of the config; where it does not fit the devices that are here, and nobody asked for it (`given`), all devices
    share the rows, each with the whole model.
    """
    try:
        return mesh_lib.make_mesh(config.mesh)
    except UserError as error:
        if given:
            raise
        if pod is None or pod.lead:
            log.warning("%s was trained on another mesh: %s Here all devices share the rows.", workdir, error)
        return mesh_lib.make_mesh(dataclasses.replace(config.mesh, data=-1, fsdp=1, tensor=1, slices=0))


def asked_for(workdir: str | epath.Path, step: int | None, average: int) -> dict[str, Any]:
    """A choice of checkpoints with what there was to choose from, as JSON values: the same choice later is the same."""
    return {"step": step, "average": average, "of": numbered(epath.Path(workdir) / "checkpoints")}


def _restore(
    workdir: epath.Path,
    abstract: Any,
    item: str,
    step: int | None,
    average: int,
    at_most: bool,
    tokenizer_digest: str,
    pod: Pod | None,
):
    folder = workdir / "checkpoints"
    if not folder.exists():
        raise UserError(f"{workdir} has no checkpoint yet.")
    checkpoints = Checkpoints(folder, keep_last=10**6, pod=pod)
    try:
        steps = checkpoints.steps()
        if not steps or (step is not None and step not in steps):
            raise UserError(
                f"{workdir} has no checkpoint{'' if step is None else f' of step {step}'}: it has {steps or 'none'}."
            )
        candidates = [s for s in reversed(steps) if step is None or s <= step]
        taken, trees, means, unscheduled = [], [], {}, []
        for s in candidates:
            try:
                meta = checkpoints.meta(s)
                digest = meta["digests"]["tokenizer"]
                if average and not meta.get("scheduled", True) and s != step:
                    unscheduled.append(s)
                    continue
                if digest != tokenizer_digest:
                    raise UserError(
                        f"checkpoint {s} in {workdir} belongs to another tokenizer (digest {digest[:12]}) than "
                        f"{workdir / 'tokenizer'} (digest {tokenizer_digest[:12]}): bring the run's own tokenizer back."
                    )
                trees.append(checkpoints.restore_params(s, abstract, item))
                taken.append(s)
                means[s] = tuple(part for _, part in meta.get("averaged", []))
            except DamagedCheckpoint as damage:
                if (step is not None or average) and not at_most:
                    raise UserError(f"checkpoint {s} in {workdir} is damaged: {damage}") from damage
                log.warning("checkpoint %d in %s is damaged (%s); using the one before", s, workdir, damage)
            if len(taken) == max(1, average):
                break
    finally:
        checkpoints.close()
    if not taken and unscheduled and at_most:
        return _restore(workdir, abstract, item, step, 0, at_most, tokenizer_digest, pod)
    if not taken and unscheduled:
        raise UserError(
            f"{workdir} has no regular checkpoint yet, only {unscheduled} from when it was stopped: leave out --average, or "
            "train on to the next one."
        )
    if not taken:
        raise UserError(f"all checkpoints in {workdir} are damaged.")
    if average > len(taken) and not at_most:
        left_out = f" (left out, made when it was stopped: {unscheduled})" if unscheduled else ""
        raise UserError(f"an average of {average} checkpoints was asked for; {workdir} has {sorted(taken)}{left_out}.")
    return mean(trees), (len(taken) == 1 and means[taken[0]]) or tuple(taken)


def mean(trees: list[Any]) -> Any:
    """The arithmetic mean of parameter trees, in float32 (6.1)."""
    if len(trees) == 1:
        return trees[0]
    return jax.tree.map(lambda *x: sum(jnp.asarray(a, jnp.float32) for a in x) / len(x), *trees)
