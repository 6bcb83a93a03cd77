"""State and parts of a run, as plain data. `train_state`, `optimizer` and `setup` build them."""

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import flax
import jax
from etils import epath

from t2t_flax.config import Config
from t2t_flax.config.keys import SCORES, TRANSLATIONS
from t2t_flax.config.schema import HIGHER_IS_BETTER, keys_that_change
from t2t_flax.data.batching.batches import Batch, Batches
from t2t_flax.data.corpus import Corpus
from t2t_flax.distributed.mesh import PyTree
from t2t_flax.models.transformer import Transformer
from t2t_flax.training.parameters import Parameters

if TYPE_CHECKING:  # restoring parameters needs no optimizer
    import optax


@flax.struct.dataclass
class TrainState:
    """Arrays that a run carries between updates.

    Nothing else is restored: dropout depends on (seed, update), batches on (config, update).

    Attributes:
      step: updates done; int32.
      ema: average of the parameters (`optimizer.make_average`), or None.
    """

    step: jax.Array
    params: PyTree
    opt_state: PyTree
    ema: PyTree = None

    @property
    def eval_params(self) -> PyTree:
        """The parameters for evaluation: the average if there is one, else the parameters."""
        return self.params if self.ema is None else self.ema


@dataclasses.dataclass
class TrainProgress:
    """Training state on the host, stored in the checkpoint's metadata.

    It holds everything that a resumed run cannot derive from the config and the step.
    """

    step: int = 0
    metric_of: str = ""
    """`TrainingSetup.metric_of`: metrics with another one cannot be compared."""
    best_metric: float | None = None
    best_step: int = 0
    evaluations_without_better: int = 0
    evaluation_due: bool = False
    """The run stopped before or during the evaluation of `step`; the resumed run starts with it."""
    seconds: dict[str, float] = dataclasses.field(default_factory=dict)
    """By bucket: compile, data, step, eval, save."""
    source_tokens: int = 0
    target_tokens: int = 0
    """Real tokens of all updates up to `step`, which batches that grow do not share evenly."""
    skipped_updates: int = 0
    skipped_in_a_row: int = 0
    """Consecutive skipped updates that end at `step`."""
    config_changes: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    """`{"step", "changed"}` of each resume with other keys of optimization, oldest first."""

    def rounded_seconds(self) -> dict[str, float]:
        """The seconds to milliseconds."""
        return {name: round(value, 3) for name, value in self.seconds.items()}

    def of_evaluation(self) -> dict[str, Any]:
        """The values that an evaluation changes."""
        changed = (
            "metric_of", "best_metric", "best_step", "evaluations_without_better", "evaluation_due", "seconds"
        )  # fmt: skip
        return {name: getattr(self, name) for name in changed}


@dataclasses.dataclass(frozen=True)
class TrainingSetup:
    """The parts of a run. All are stateless: batch k and update k are functions of the config and k."""

    config: Config
    workdir: epath.Path
    corpus: Corpus
    mesh: jax.sharding.Mesh
    model: Transformer
    parameters: Parameters
    tx: "optax.GradientTransformation"
    abstract: TrainState
    shardings: TrainState
    batches: Batches

    @property
    def digests(self) -> dict[str, str]:
        """Digests of the tokenizer and the training data, which must match on resume."""
        return {"tokenizer": self.corpus.tokenizers.digest, "training data": self.corpus.train.digest}

    @property
    def metric_of(self) -> str:
        """Digest of the validation sets and, for a metric of translations, of the keys that change these.

        They may change when a run is resumed.
        """
        parts: dict[str, Any] = {name: store.digest for name, store in self.corpus.valid.items()}
        if self.config.eval.metric not in HIGHER_IS_BETTER:
            names = {"eval.decode_sentences", *keys_that_change(TRANSLATIONS, SCORES)}
            # The model decodes by itself, in the precision of its training.
            parts |= self.config.compared(names - {"eval.bootstrap_samples", "decode.engine", "decode.precision"})
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


class DeviceBatch(NamedTuple):
    """A batch on the mesh: its arrays, int32 [A, B, L], and the batch of the host."""

    arrays: dict[str, jax.Array]
    batch: Batch


@dataclasses.dataclass(frozen=True)
class TrainingEnd:
    """How the training of a run ended.

    Attributes:
      state: None once it has been dropped to free its memory.
      reason: "steps", "patience" or the name of a signal.
      seconds: by bucket, see `TrainProgress`.
      hooks: hooks of the run. After a finished run they await the scores of the final evaluation.
    """

    state: TrainState | None
    step: int
    reason: str
    seconds: dict[str, float]
    hooks: Sequence[Any] = ()

    @property
    def finished(self) -> bool:
        return not self.reason.startswith("SIG")
