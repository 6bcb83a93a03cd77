"""By which scores the trials of a sweep can be told apart."""

from t2t_flax.config import Config, parse_test_sets
from t2t_flax.errors import UserError
from t2t_flax.tasks import task_of


def default_score(config: Config) -> str:
    """The task's own on the test set, where there is one; else the validation loss."""
    return task_of(config).primary_metric.name if config.data.test else "valid_nll"


def check_score(name: str, config: Config) -> None:
    """Raises UserError where a run of this config will not have the score; `SET:score` is one of a named test set."""
    test_set, _, name = name.rpartition(":")
    named = parse_test_sets(config.data.test)
    if test_set and name.startswith("valid_"):
        raise UserError(f"{name} is of the validation set, which has no name: give --score={name}.")
    if test_set and test_set not in named:
        raise UserError(
            f"there is no score {test_set}:{name}: config.data.test has {', '.join(named) or 'no test set'}."
        )
    task = task_of(config)
    final = (*(metric.name for metric in task.metrics), "nll", "perplexity")
    losses = ("valid_nll", "valid_ppl", "valid_loss")
    decoded = [f"valid_{metric.training_name}" for metric in task.validation_metrics()]
    if name not in (*final, *losses, *decoded):
        known = ", ".join([*final, *losses, *decoded])
        raise UserError(f"there is no score {name!r} in data.task = {config.data.task}; there are {known}.")
    if name in final and not config.data.test:
        raise UserError(f"the score {name} is of the test set, and config.data.test is empty.")
    if name not in final and not config.data.valid:
        raise UserError(f"the score {name} is of the validation set, and config.data.valid is empty.")
    if name in losses and not (config.eval.every_steps or config.eval.every_epochs):
        raise UserError(f"the score {name} needs config.eval.every_steps or eval.every_epochs.")
    if name in decoded and not config.eval.decode_every_steps:
        raise UserError(f"the score {name} needs config.eval.decode_every_steps.")
