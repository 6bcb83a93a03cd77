"""Restore a trained run, or a model of another form, on this machine's devices."""

import dataclasses
import functools
import logging
import os
from collections.abc import Callable, Container, Iterator, Sequence
from typing import Any

import jax
from etils import epath

from t2t_flax import config as config_lib
from t2t_flax.config import Config
from t2t_flax.config.data_keys import EOS, PAD
from t2t_flax.config.overrides import check_same_model, from_elsewhere, warn_of_lost
from t2t_flax.data.hooks import config_of_set
from t2t_flax.data.tokenizers import TokenizerPair
from t2t_flax.decoding.batches import read_lines, source_ids, source_limit
from t2t_flax.decoding.translator import Decoder, Translation, check_decoder, in_compute_type
from t2t_flax.distributed import mesh as mesh_lib
from t2t_flax.distributed.coordination import ProcessGroup
from t2t_flax.distributed.mesh import Params
from t2t_flax.errors import UserError
from t2t_flax.evaluation.scoring import PairIds, PairScore, pair_log_probs
from t2t_flax.files import check_workdir
from t2t_flax.language import near_codes
from t2t_flax.model_forms import run_folder
from t2t_flax.models.transformer import Transformer
from t2t_flax.registry import DECODERS, FLAGS
from t2t_flax.tasks import task_of
from t2t_flax.training import workdir as workdir_lib
from t2t_flax.training.checkpoint_selection import (
    CheckpointChoice,
    RestoredParams,
    mean,
    restore_chosen,
)
from t2t_flax.training.precision import decoding_precision
from t2t_flax.training.train_state import abstract_params, make_model

log = logging.getLogger("t2t_flax")


@dataclasses.dataclass(frozen=True)
class StoredRun:
    """A run without its parameters.

    Args:
        stored: config of the run without overrides.
        config: config with overrides.
    """

    workdir: epath.Path
    stored: Config
    config: Config
    tokenizers: TokenizerPair
    mesh: jax.sharding.Mesh
    model: Transformer

    def restore(
        self, choice: CheckpointChoice, group: ProcessGroup | None = None
    ) -> Iterator[RestoredParams]:
        """Yield the chosen checkpoints; see `checkpoint_selection.restore_chosen`."""
        abstract = abstract_params(self.config.mesh, self.model, self.mesh)
        return restore_chosen(
            self.workdir, self.stored, choice, abstract, self.tokenizers.digest, group
        )


@dataclasses.dataclass(frozen=True)
class TrainedModel(StoredRun):
    """A run with the parameters of a checkpoint, or the mean of several.

    Args:
        checkpoint: restored parameters with their steps.
        models: description of each model in records, if several decode together
            (`registry.Group.ensemble`). Then `model` and `params` cover all models, and everything
            else belongs to the first.
        elsewhere: whether `workdir` is a folder for records of several runs, not the run's own.
    """

    checkpoint: RestoredParams
    models: tuple[dict[str, Any], ...] = ()
    elsewhere: bool = False

    @property
    def params(self) -> Params:
        """Parameters, with the shardings of the mesh."""
        return self.checkpoint.params

    @property
    def steps(self) -> tuple[int, ...]:
        """Steps of the averaged checkpoints, newest first; one without averaging."""
        return self.checkpoint.steps

    def with_params(self, params: Params) -> "TrainedModel":
        """Return a copy with other parameters."""
        return dataclasses.replace(
            self, checkpoint=dataclasses.replace(self.checkpoint, params=params)
        )

    def for_decoding(self) -> "TrainedModel":
        """Return a copy that holds matrices in the type in which JAX multiplies them.

        In bfloat16 this halves the memory, with the same outputs. For another decode.engine returns
        the object itself.
        """
        if self.config.decode.engine != "jax":
            return self
        return self.with_params(in_compute_type(self.model, self.params))

    def translate(
        self,
        lines: Sequence[str],
        *,
        prefixes: Sequence[str] | None = None,
        first_line: int = 0,
        progress: Callable[[int, int], None] | None = None,
    ) -> list[Translation]:
        """Translate lines in order, one Translation each; see `decoding.translator`.

        Raises UserError for prefixes if the run's task does not support them, and as `in_language`.
        """
        task = task_of(self.config)
        if prefixes and not task.supports_prefixes:
            raise UserError(
                f"outputs of data.task = {self.config.data.task} cannot be given a prefix."
            )
        lines = [self.in_language(task.preprocess_source(line)) for line in lines]
        return self.decoder.translate(
            lines, prefixes=prefixes, first_line=first_line, progress=progress
        )

    def check_line(self, line: str, number: int = 0) -> None:
        """Raise the error that `translate` raises because of this source line.

        Args:
            number: number of the line, counted from 0.
        """
        text = self.in_language(task_of(self.config).preprocess_source(line))
        texts, _ = read_lines(self.config, self.tokenizers, [text], number)
        source_ids(self.tokenizers.source, texts[0])

    def in_language(self, text: str, language: str | None = None) -> str:
        """Return the text with the symbols of its languages before it, such as `<2de>`.

        The text is unchanged if it begins with them, or if the model has no such symbols. Raises
        UserError for a language that the model does not write, and for None if there are several;
        and as `from_language`.
        """
        tokenizer, data = self.tokenizers.source, self.config.data
        languages = list(tokenizer.target_languages) or [data.target_language]
        if language not in (None, *languages):
            origin = "" if tokenizer.target_languages else f"from {data.source_language} "
            raise UserError(
                f"the model translates {origin}into {_some(languages, language)}, not into"
                f" {language!r}."
            )
        text = self.from_language(text)
        if not tokenizer.lacks_symbol(text, tokenizer.target_languages):
            return text
        if language is None and len(languages) > 1:
            raise UserError(
                f"the model translates into {_some(languages)}: begin each line with the symbol of"
                f" one, such as <2{languages[0]}>{_or_flag('--target-language', languages[0])}."
            )
        return f"<2{language or languages[0]}> {text}"

    def from_language(self, text: str, language: str | None = None) -> str:
        """Return the text with the symbol of its language before it, if the model needs one.

        Raises UserError for a language that the model does not read. None = data.source_language.
        """
        languages = list(self.tokenizers.source.source_languages)
        known, own = languages or [self.config.data.source_language], language
        if own not in (None, *known):
            raise UserError(
                f"the model translates from {_some(known, own)}, not from {language!r}."
            )
        if not self.tokenizers.source.lacks_symbol(text, self.tokenizers.source.source_languages):
            return text
        own = own or self.config.data.source_language
        if own not in languages:
            raise UserError(
                f"the model translates from {_some(languages)}: begin each line with the symbol of"
                f" one, such as <from:{languages[0]}>{_or_flag('--source-language', languages[0])}."
            )
        return f"<from:{own}> {text}"

    def check_single(self, what: str) -> None:
        """Raise UserError, saying that `what` needs one model, if several decode together."""
        if self.models:
            names = ", ".join(str(model["workdir"]) for model in self.models)
            raise UserError(f"{what} needs one model, not {names} together.")

    @functools.cached_property
    def decoder(self) -> Decoder:
        """Decoder of this run (config.decode.engine).

        Raises UserError if it is not available.
        """
        check_decoder(self.config)
        return DECODERS.load(self.config.decode.engine)(self)

    def score(
        self,
        pairs: Sequence[tuple[str, str]],
        *,
        where: Callable[[int], str] = "pair {}".format,
    ) -> list[PairScore]:
        """Return the log-probability of each target given its source, in order.

        Raises UserError, naming `where(number)`, for a pair with an empty or too long side or a
        target that is invalid for the task, and as `in_language`.
        """
        encoded = []
        for number, pair in enumerate(pairs, 1):
            try:
                encoded.append(self.encode_pair(*pair))
            except UserError as error:
                raise UserError(f"{where(number)}: {error}") from None
        return self.score_pairs(encoded)

    def score_pairs(
        self, pairs: Sequence[PairIds], progress: Callable[[int, int], None] | None = None
    ) -> list[PairScore]:
        """Return the score of each encoded pair, in order.

        Args:
            progress: called after each batch with (pairs done, total).
        """
        batch_size, pieces = self.config.decode.batch_size, self.tokenizers.target.pieces
        found = pair_log_probs(self.model, self.params, self.mesh, pairs, batch_size, progress)
        return [
            PairScore(tuple(pieces(pair.target)), tuple(map(float, log_probs)))
            for pair, log_probs in zip(pairs, found, strict=True)
        ]

    def encode_source(self, source: str) -> list[int]:
        """Return the token ids of a source sentence.

        Raises UserError for an empty or too long sentence, and as `in_language`.
        """
        return self._encode_source(source)[0]

    def _encode_source(self, source: str) -> tuple[list[int], list[int]]:
        """Return the ids of a source sentence, and those before the target text."""
        text = self.in_language(task_of(self.config).preprocess_source(source))
        ids, start, _ = source_ids(self.tokenizers.source, text)
        self._check_side("source", source, ids)
        return ids + [EOS] * self.config.data.source_eos, [start] * (start != PAD)

    def encode_pair(self, source: str, target: str) -> PairIds:
        """Return the token ids of a pair.

        Raises UserError as `encode_source`, and for a target that is empty, too long or invalid for
        the task.
        """
        if source.strip() and target.strip():
            target = task_of(self.config).preprocess_target(source, target)
        source_tokens, start = self._encode_source(source)
        target_tokens = self.tokenizers.target.encode_text(target)
        self._check_side("target", target, target_tokens)
        return PairIds(source_tokens, start + target_tokens + [EOS])

    def _check_side(self, side: str, text: str, ids: list[int]) -> None:
        limit = self.max_source_length
        if not text.strip() or not ids:
            raise UserError(f"the {side} is empty: it must have text.")
        if len(ids) + 1 > limit:
            raise UserError(
                f"the {side} has {len(ids) + 1} tokens with EOS, more than the {limit} allowed"
                " (config.decode.max_source_length, or config.model.max_positions with learned"
                " positions)."
            )

    def for_set(self, name: str) -> "TrainedModel":
        """Return the run with the config of a validation or test set."""
        config, stored = (config_of_set(config, name) for config in (self.config, self.stored))
        if (config, stored) == (self.config, self.stored):
            return self  # its decoder may be costly to make
        return dataclasses.replace(self, config=config, stored=stored)

    @property
    def max_source_length(self) -> int:
        """Length of the longest source that is not truncated, EOS included."""
        return source_limit(self.config.decode, self.config.model)


def _some(names: Sequence[str], near: str | None = None) -> str:
    """Return some of the codes as text, the ones most like `near` first."""
    first = near_codes(near, names) if near and len(names) > 20 else []
    shown = first or list(names[:20])
    return ", ".join(shown) + (f" and {more} more" if (more := len(names) - len(shown)) else "")


def _or_flag(flag: str, value: str) -> str:
    return f", or give {flag}={value}" if flag in FLAGS else ""


def stored_config(workdir: str | epath.Path, overrides: dict[str, str] | None = None) -> Config:
    """Return the resolved config of a run for use on this machine.

    Runs are untrusted input: programs, code and paths to write come only from `overrides`, see
    `read_config`. Raises UserError if the folder holds no run or an override is invalid.

    Args:
        overrides: such as `{"decode.beam_size": "8"}`.
    """
    stored = read_config(workdir, overrides or {})
    return (
        config_lib.resolve(config_lib.override(config_lib.to_config_dict(stored), overrides))
        if overrides
        else stored
    )


def read_config(workdir: str | epath.Path, given: Container[str] = ()) -> Config:
    """Return the usable config of a run, or of a model of another form.

    See `config.overrides.from_elsewhere`. Raises UserError if the folder holds neither.
    """
    check_workdir(workdir)
    folder = run_folder(workdir)
    stored = workdir_lib.read_model_config(folder)
    if stored is None:
        raise UserError(
            f"{workdir} holds no run: it has no config.json. Give the --workdir of a `train`"
            " command."
        )
    config, lost = from_elsewhere(stored, given)
    warn_of_lost(lost, os.fspath(workdir))
    return config


def open_run(
    workdir: str | epath.Path,
    overrides: dict[str, str] | None = None,
    group: ProcessGroup | None = None,
    *,
    local: bool = False,
    mesh: jax.sharding.Mesh | None = None,
) -> StoredRun:
    """Read a run without its parameters.

    Raises UserError for a folder without a run, for overrides that change the model or that its
    task does not support, and for a model that the mesh cannot divide.

    Args:
        local: see `load`.
        mesh: by default the mesh of the run's config.
    """
    workdir = run_folder(workdir)
    stored = read_config(workdir, overrides or {})
    config = stored_config(workdir, overrides)
    check_same_model(stored, config, f"the run in {workdir}")
    task_of(config).validate_config()
    tokenizers = TokenizerPair.load(workdir / "tokenizer")
    requested = any(key.startswith("mesh.") for key in overrides or {})
    mesh = mesh or _mesh(config, workdir, requested=requested, group=group, local=local)
    mesh_lib.check_divisibility(config, mesh)
    model = decoding_model(config, tokenizers, decoding_precision(config))
    return StoredRun(workdir, stored, config, tokenizers, mesh, model)


def decoding_model(config: Config, tokenizers: TokenizerPair, precision: str) -> Transformer:
    """Return the module that decodes for a run.

    Attention is einsum: JAX keeps its compiled programs.
    """
    einsum = dataclasses.replace(config.model, attention_kernel="einsum")
    return make_model(
        dataclasses.replace(config, model=einsum), *tokenizers.vocab_sizes, precision=precision
    )


def load(
    workdir: str | epath.Path,
    *,
    step: int | None = None,
    average: int = 0,
    best: bool = False,
    at_most: bool = False,
    overrides: dict[str, str] | None = None,
    group: ProcessGroup | None = None,
    local: bool = False,
) -> TrainedModel:
    """Restore a run from its workdir; nothing else is needed.

    Raises UserError for a folder without a run, an unknown step, or a damaged checkpoint.

    Args:
        step: checkpoint to restore; by default the newest.
        average: restores the mean of the last `average` checkpoints up to `step`. Only regular
            checkpoints count, not those written at a stop or kept only as best.
        best: restores the best checkpoint by eval.metric.
        at_most: an average uses fewer checkpoints if there are fewer, and `best` falls back to the
            newest if no checkpoint has a metric.
        overrides: config keys such as `{"decode.beam_size": "8"}`.
        group: all its processes restore the same checkpoints.
        local: each process uses a mesh of only its own devices.
    """
    run = open_run(workdir, overrides, group, local=local)
    if best and (stored := run.stored.eval.metric) != run.config.eval.metric:
        raise UserError(
            f"--best is by config.eval.metric = {stored}, which the run had in training: leave out "
            f"--config.eval.metric={run.config.eval.metric}."
        )
    choice = CheckpointChoice(step, average, best, at_most)
    loaded = TrainedModel(**vars(run), checkpoint=mean(run.restore(choice, group)))
    for keys in run.config.extension_groups.values():
        loaded = keys.ensemble(loaded, choice, overrides or {}, group)
    return loaded


def _mesh(
    config: Config, workdir: epath.Path, *, requested: bool, group: ProcessGroup | None, local: bool
) -> jax.sharding.Mesh:
    """Return the config's mesh, or data parallelism if it does not fit the devices.

    A mesh that was `requested` explicitly must fit.
    """
    devices = jax.local_devices() if local else None
    try:
        return mesh_lib.make_mesh(config.mesh, devices)
    except UserError as error:
        if requested:
            here = (
                " Each process translates on its own devices, so config.mesh cannot span several."
                if local
                else ""
            )
            raise UserError(f"{error}{here}") from None
        if group is None or group.is_lead:
            log.warning(
                "%s was trained on another mesh: %s Using data parallelism on all devices.",
                workdir,
                error,
            )
        return mesh_lib.make_mesh(
            dataclasses.replace(config.mesh, data=-1, fsdp=1, tensor=1, slices=0), devices
        )
