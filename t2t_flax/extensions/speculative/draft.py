"""Restores the draft of a model."""

import dataclasses
import os
from typing import Any

from t2t_flax.distributed.coordination import ProcessGroup
from t2t_flax.errors import UserError
from t2t_flax.evaluation.restore import StoredRun, TrainedModel, open_run
from t2t_flax.extensions.speculative import Speculative
from t2t_flax.extensions.speculative.model import WithDraft
from t2t_flax.filesystem import is_remote
from t2t_flax.models.attention import SelfAttention, mixer_class
from t2t_flax.training.checkpoint_selection import CheckpointChoice, mean
from t2t_flax.training.precision import decoding_precision
from t2t_flax.training.train_state import count_params, make_model


def extend(
    loaded: TrainedModel, choice: CheckpointChoice, overrides: dict[str, str], group: ProcessGroup | None
) -> TrainedModel:
    """The run with the newest checkpoint of its draft, on its mesh and in its precision. Raises UserError, naming the draft, for
    one that does not fit.
    """
    settings = Speculative.of(loaded.config)
    run = open_run(settings.draft, None, group, mesh=loaded.mesh)
    _check(loaded, run, settings.draft)
    model = make_model(run.config, *run.tokenizers.vocab_sizes, precision=decoding_precision(loaded.config))
    run = dataclasses.replace(run, model=model)
    draft = TrainedModel(**vars(run), checkpoint=mean(run.restore(CheckpointChoice(), group)))
    together: Any = WithDraft(loaded.model, draft.model, settings.tokens)
    both = dataclasses.replace(loaded, model=together, models=tuple(map(_record, (loaded, draft))))
    return both.with_params({"model": loaded.params, "draft": draft.params})


def _record(run: TrainedModel) -> dict[str, Any]:
    parameters = count_params(run.params, run.config, *run.tokenizers.vocab_sizes)
    workdir = str(run.workdir) if is_remote(run.workdir) else os.path.abspath(run.workdir)
    return {"workdir": workdir, "steps": list(run.steps), "parameters": parameters}


def _check(loaded: TrainedModel, run: StoredRun, draft: str) -> None:
    shown = f"config.speculative.draft = {draft}"
    for side in ("target", "source"):
        if getattr(loaded.tokenizers, side).digest != getattr(run.tokenizers, side).digest:
            raise UserError(
                f"{shown} has another {side} tokenizer than {loaded.workdir}, so that the same ids mean other text: train the "
                "draft with the tokenizer of the model (config.data.tokenizer_model)."
            )
    for workdir, config in ((loaded.workdir, loaded.config), (draft, run.config)):
        if not issubclass(mixer_class(config.model), SelfAttention):
            raise UserError(
                f"{workdir} has config.model.mixer = {config.model.mixer}, whose state cannot go back to a token before: "
                "speculative decoding needs a mixer with attention."
            )
