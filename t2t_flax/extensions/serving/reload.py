"""Other checkpoints of a run, while the server runs."""

import dataclasses
import logging
from collections.abc import Callable, Iterator

from t2t_flax.errors import UserError, first_line
from t2t_flax.evaluation.restore import TrainedModel
from t2t_flax.extensions.serving.compiling import Stopping
from t2t_flax.extensions.serving.probe import check_finite
from t2t_flax.extensions.serving.warm_up import own_text

log = logging.getLogger("t2t_flax")


def other_checkpoints(
    name: str,
    current: TrainedModel,
    load: Callable[[], TrainedModel],
    watch: Callable[[], object],
    seen: object,
    stopped: Callable[[], bool],
) -> Iterator[TrainedModel]:
    """The run with the parameters of each checkpoint that comes to be chosen, once they have translated a line. One that cannot
    be used is left with a warning, and tried again. watch: what differs once `load` would restore another one; `seen` before.
    stopped: waits, and tells whether to end.
    """
    said = ""
    while not stopped():
        try:
            if (now := watch()) == seen:
                continue
            if other := _other(current, load):
                steps = " and ".join(map(str, other.steps))
                log.warning("%s: step %s in place of %d", name, steps, current.steps[0])
                current = other
                yield other
            seen, said = now, ""
        except Stopping:
            return
        except Exception as error:  # noqa: BLE001 - the server goes on with the parameters that it has
            if said != (said := first_line(error)):
                log.warning("%s stays at step %d: %s", name, current.steps[0], said)


def _other(current: TrainedModel, load: Callable[[], TrainedModel]) -> TrainedModel | None:
    """The run with the parameters of the checkpoint that is chosen now; None if it has them. Raises UserError for another model,
    and NotFinite.
    """
    loaded = load()
    if loaded.steps == current.steps:
        return None
    if (loaded.model, loaded.tokenizers.digest) != (current.model, current.tokenizers.digest):
        raise UserError(f"{loaded.workdir} now holds another model: start serve again")
    made = dataclasses.replace(current, checkpoint=loaded.for_decoding().checkpoint)
    (translation,) = made.translate([own_text(made)])
    check_finite(translation)
    return made
