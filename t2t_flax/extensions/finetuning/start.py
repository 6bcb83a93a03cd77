"""The parameters that a new run starts from: those of another run or an exported model, see config.finetuning.init_from."""

from collections.abc import Callable
from typing import Any

from t2t_flax.config.overrides import check_same_model
from t2t_flax.data.tokenizers import TokenizerPair
from t2t_flax.distributed.coordination import ProcessGroup
from t2t_flax.errors import UserError
from t2t_flax.extensions.finetuning import of, parse_init_checkpoint
from t2t_flax.extensions.finetuning.vocabulary import tables_by_piece
from t2t_flax.model_forms import run_folder
from t2t_flax.training.checkpoint_selection import CheckpointChoice, mean, restore_chosen
from t2t_flax.training.setup import TrainingSetup
from t2t_flax.training.train_state import abstract_params, make_model
from t2t_flax.training.workdir import read_model_config


def start_params(
    setup: TrainingSetup, own: dict[str, Any], group: ProcessGroup | None = None, say: Callable[[str], None] = print
) -> dict[str, Any]:
    """The parameters of the run that finetuning.init_from names, on the run's devices.

    own: the run's initial parameters. Raises UserError for another model, and where there are none.
    """
    config, keys = setup.config, of(setup.config)
    workdir = run_folder(keys.init_from)
    stored = read_model_config(workdir)
    if stored is None:
        raise UserError(f"config.finetuning.init_from = {workdir} holds no run: it has no config.json.")
    check_same_model(stored, config, f"config.finetuning.init_from = {workdir}")
    old, new = TokenizerPair.load(workdir / "tokenizer"), setup.corpus.tokenizers
    abstract = abstract_params(config.mesh, make_model(config, *old.vocab_sizes), setup.mesh)
    choice = CheckpointChoice(**parse_init_checkpoint(keys.init_checkpoint))
    try:
        part = mean(restore_chosen(workdir, stored, choice, abstract, old.digest, group))
    except UserError as error:
        raise UserError(f"config.finetuning.init_checkpoint = {keys.init_checkpoint}: {error}") from None
    steps = (
        f"update {part.steps[0]}" if len(part.steps) == 1 else f"the mean of updates {', '.join(map(str, part.steps))}"
    )
    say(f"parameters start from {workdir}, {steps}")
    if old.digest == new.digest:
        return part.params
    try:
        params, counts = tables_by_piece(setup.model, own, part.params, old, new)
    except UserError as error:
        raise UserError(f"config.finetuning.init_vocabulary = by_piece: {error}") from None
    say(f"vocabulary: {'; '.join(counts)}")
    return params
