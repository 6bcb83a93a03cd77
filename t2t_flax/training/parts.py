"""State and parts of a run, as plain data.

`train_state`, `optimizer` and `setup` build them.
"""

import dataclasses
import hashlib
import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import flax
import jax
from etils import epath

from t2t_flax.config import Config
from t2t_flax.config.keys import SCORES, TRANSLATIONS
from t2t_flax.config.schema import HIGHER_IS_BETTER, keys_that_change
from t2t_flax.data.batching.batches import Batches
from t2t_flax.data.batching.rows import HostBatch
from t2t_flax.data.dataset import Corpus
from t2t_flax.distributed.mesh import Params, PyTree
from t2t_flax.models.transformer import Transformer
from t2t_flax.training.parametrization import Parametrization


class TrainOptimizer(NamedTuple):
    """Optimizer of the trained parameters: an optax transformation, and an average.

    Attributes:
        average: (old average, new parameters, new optimizer state) -> new average of the
            parameters; None if the run has no average.
    """

    init: Callable[[Params], PyTree]
    update: Callable[..., tuple[Params, PyTree]]
    average: Callable[[Params, Params, PyTree], Params] | None = None


@flax.struct.dataclass
class TrainState:
    """Arrays that a run carries from update to update.

    They are all that a checkpoint needs: dropout depends on (seed, update), batches on (config,
    update).

    Attributes:
        step: number of updates done, int32.
        ema: average of the parameters (`TrainOptimizer.average`), or None.
    """

    step: jax.Array
    params: PyTree
    opt_state: PyTree
    ema: PyTree = None

    @property
    def eval_params(self) -> PyTree:
        """Parameters to evaluate: the average if there is one, else `params`."""
        return self.params if self.ema is None else self.ema


@dataclasses.dataclass
class TrainProgress:
    """Training state on the host, stored in the checkpoint's metadata.

    It holds everything else that a resumed run cannot derive from the config and the step.
    """

    step: int = 0
    metric_digest: str = ""
    """Digest of the data and keys behind eval.metric, see `TrainingSetup.metric_digest`.

    Metrics with different digests cannot be compared.
    """
    best_metric: float | None = None
    best_step: int = 0
    evaluations_without_better: int = 0
    evaluation_pending: bool = False
    """True if the run stopped before or during the evaluation of `step`.

    The resumed run starts with this evaluation.
    """
    seconds: dict[str, float] = dataclasses.field(default_factory=dict)
    """Seconds by bucket: compile, data, step, eval, save."""
    source_tokens: int = 0
    target_tokens: int = 0
    """Real tokens of all updates up to `step`; `source_tokens` likewise.

    They cannot be derived from `step`: batches may grow during a run.
    """
    skipped_updates: int = 0
    skipped_in_a_row: int = 0
    """Consecutive skipped updates up to `step`."""
    config_changes: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    """{"step", "changed"} of each resume with changed optimization keys, oldest first."""

    def rounded_seconds(self) -> dict[str, float]:
        """Return `seconds`, rounded to milliseconds."""
        return {name: round(value, 3) for name, value in self.seconds.items()}

    def evaluation_fields(self) -> dict[str, Any]:
        """Return the fields that an evaluation changes."""
        changed = (
            "metric_digest",
            "best_metric",
            "best_step",
            "evaluations_without_better",
            "evaluation_pending",
            "seconds",
        )
        return {name: getattr(self, name) for name in changed}


@dataclasses.dataclass(frozen=True)
class TrainingSetup:
    """Parts of a run, all stateless.

    Batch k and update k are functions of the config and k.

    Attributes:
        parametrization: which parameters are trained, and how they form the model's.
        tx: optimizer.
        abstract: shapes, dtypes and shardings of the state.
        shardings: shardings of the state.
    """

    config: Config
    workdir: epath.Path
    corpus: Corpus
    mesh: jax.sharding.Mesh
    model: Transformer
    parametrization: Parametrization
    tx: TrainOptimizer
    abstract: TrainState
    shardings: TrainState
    batches: Batches

    @property
    def digests(self) -> dict[str, str]:
        """Digests of tokenizer and training data. They must match on resume."""
        return {
            "tokenizer": self.corpus.tokenizers.digest,
            "training data": self.corpus.train.digest,
        }

    @property
    def metric_digest(self) -> str:
        """Digest of all that eval.metric depends on besides the parameters.

        It covers the validation sets and, if the metric scores translations, the config keys that
        change translations or scores. It may change when a run is resumed.
        """
        parts: dict[str, Any] = {name: store.digest for name, store in self.corpus.valid.items()}
        if self.config.eval.metric not in HIGHER_IS_BETTER:
            names = {"eval.decode_sentences", *keys_that_change(TRANSLATIONS, SCORES)}
            # Validation during training decodes with JAX, in the precision of the training.
            parts |= self.config.compared(
                names - {"eval.bootstrap_samples", "decode.engine", "decode.precision"}
            )
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


class DeviceBatch(NamedTuple):
    """Batch on the mesh: int32 arrays [A, B, L], and the batch on the host."""

    arrays: dict[str, jax.Array]
    host: HostBatch


@dataclasses.dataclass(frozen=True)
class TrainingEnd:
    """End of the training of a run.

    Attributes:
        state: final state; None once it was dropped to free its memory.
        reason: "steps", "patience" or the name of a signal.
        seconds: seconds by bucket, see `TrainProgress`.
        hooks: hooks of the run. After a finished run they wait for the final scores.
    """

    state: TrainState | None
    step: int
    reason: str
    seconds: dict[str, float]
    hooks: Sequence[Any] = ()

    @property
    def finished(self) -> bool:
        return not self.reason.startswith("SIG")
