"""Restoration of models that decode together with a run."""

import dataclasses
import os
from typing import Any

from t2t_flax.decoding.batches import positions
from t2t_flax.distributed.coordination import ProcessGroup
from t2t_flax.errors import UserError
from t2t_flax.evaluation.restore import StoredRun, TrainedModel, decoding_model, open_run
from t2t_flax.extensions.ensembles import Ensembles
from t2t_flax.extensions.ensembles.ensemble import Ensemble
from t2t_flax.files import is_remote
from t2t_flax.training.checkpoint_selection import CheckpointChoice, mean
from t2t_flax.training.precision import decoding_precision
from t2t_flax.training.train_state import count_params


def extend(
    loaded: TrainedModel,
    choice: CheckpointChoice,
    overrides: dict[str, str],
    group: ProcessGroup | None,
) -> TrainedModel:
    """Return the run together with the models of ensembles.members.

    They use its mesh and its precision. Raises UserError, naming the model, for one that cannot
    decode together with the run.

    Args:
        choice: checkpoints of all models whose item names no step.
    """
    settings = Ensembles.of(loaded.config)
    weights = settings.shares()
    models, records = [loaded.model], [_record(str(loaded.workdir), loaded, weights[0])]
    params = {"members_0": loaded.params}
    own = {name: value for name, value in overrides.items() if not name.startswith("ensembles.")}
    for number, name in enumerate(settings.each(), 1):
        workdir, step = _place(name)
        alone = own | {"ensembles.members": "", "ensembles.weights": ""}
        run = open_run(workdir, alone, group, mesh=loaded.mesh)
        _check(loaded, run, workdir)
        model = decoding_model(run.config, run.tokenizers, decoding_precision(loaded.config))
        run = dataclasses.replace(run, model=model)
        part = mean(run.restore(choice if step is None else CheckpointChoice(step), group))
        member = TrainedModel(**vars(run), checkpoint=part)
        record = _record(str(workdir), member, weights[number])
        for other in records:
            if (other["workdir"], other["steps"]) == (record["workdir"], record["steps"]):
                raise UserError(
                    f"the model of {workdir} is given twice: set config.ensembles.weights instead."
                )
        models.append(model)
        records.append(record)
        params[f"members_{number}"] = member.params
    ensemble: Any = Ensemble(tuple(models), weights, settings.mean)
    together = dataclasses.replace(loaded, model=ensemble, models=tuple(records))
    return together.with_params(params)


def _place(name: str) -> tuple[str, int | None]:
    """Return the workdir of an item of ensembles.members, and its step if it has one."""
    workdir, at, step = name.rpartition("@")
    return (workdir, int(step)) if at and step.isdecimal() else (name, None)


def _record(workdir: str, member: TrainedModel, weight: float) -> dict[str, Any]:
    parameters = count_params(member.params, member.config, *member.tokenizers.vocab_sizes)
    workdir = workdir if is_remote(workdir) else os.path.abspath(workdir)
    return {
        "workdir": workdir,
        "steps": list(member.steps),
        "weight": weight,
        "parameters": parameters,
    }


def _check(first: TrainedModel, run: StoredRun, workdir: str) -> None:
    for side in ("target", "source"):
        if getattr(first.tokenizers, side).digest != getattr(run.tokenizers, side).digest:
            raise UserError(
                f"{workdir} has another {side} tokenizer than {first.workdir}, so that the same ids"
                " mean other text: models decode together that were trained with one tokenizer"
                " (config.data.tokenizer_model)."
            )
    for key in ("data.task", "data.source_eos"):
        here, there = first.config.value(key), run.config.value(key)
        if here != there:
            raise UserError(
                f"config.{key} = {here} of {first.workdir} and {there} of {workdir}: they cannot"
                " decode together."
            )
    if (limit := positions(run.config.model)) < positions(first.config.model):
        raise UserError(
            f"{workdir} has learned positions for {limit} tokens, fewer than {first.workdir}: give"
            " it as the first --workdir."
        )
