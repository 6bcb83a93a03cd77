"""The loss of the validation sets during training, and of a test set."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from t2t_flax.config import Config
from t2t_flax.config.data_keys import VALID_PREFIX
from t2t_flax.data.batching.batches import Shape, validation_batches
from t2t_flax.data.dataset import split_source
from t2t_flax.data.token_store import TokenStore
from t2t_flax.distributed import mesh as mesh_lib
from t2t_flax.errors import UserError
from t2t_flax.models.transformer import Transformer
from t2t_flax.tasks import task_of
from t2t_flax.training.losses import means
from t2t_flax.training.parameters import parameters_of
from t2t_flax.training.setup import TrainingSetup, batch_struct, check_fits_in_memory
from t2t_flax.training.train_step import make_eval_step


def validation_loss(run: TrainingSetup) -> Callable[..., dict[str, float]] | None:
    """The function that computes the validation losses, see `ValidationLoss` and `with_means`; None if the config does not need
    it.
    """
    if not (run.corpus.valid and (run.config.eval.every_steps or run.config.eval.every_epochs)):
        return None
    besides = run.abstract.opt_state, run.abstract.ema
    params = parameters_of(run.config).of_model(run.abstract.params)
    programs: dict[Any, Any] = {}
    losses = {
        name: ValidationLoss(run.config, run.model, run.mesh, params, store, name, besides, programs)
        for name, store in run.corpus.valid.items()
    }
    return lambda params, after_batch: with_means({name: loss(params, after_batch) for name, loss in losses.items()})


def with_means(values: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """{metric: its mean over the validation sets, "metric/SET": that of each set with a name} from {set: {metric: value}}.

    The mean does not weigh the sets by their size: every direction of a model counts as much as any other.
    """
    first, *_ = values.values()
    means = {metric: float(np.mean([of_set[metric] for of_set in values.values()])) for metric in first}
    named = [(name.removeprefix(VALID_PREFIX), of_set) for name, of_set in values.items() if name != "valid"]
    return means | {f"{metric}/{name}": value for name, of_set in named for metric, value in of_set.items()}


class ValidationLoss:
    """Losses and token metrics over a whole store, without dropout; compiled once for each shape.

    `params`: parameters, or their abstract shapes and shardings. `split`: of the store, as in `split_source`. `besides`: other
    arrays on the devices while it runs, such as the optimizer state. `programs`: compiled for other stores of the run, to
    which new ones are added. Raises UserError, naming the pair, where a pair is
    longer than the positions, and where a program does not fit in memory.
    """

    def __init__(
        self,
        config: Config,
        model: Transformer,
        mesh: jax.sharding.Mesh,
        params: Any,
        store: TokenStore,
        split: str = "valid",
        besides: Any = (),
        programs: dict[Shape, jax.stages.Compiled] | None = None,
    ):
        self._mesh, self._config, self._store, self._split = mesh, config, store, split
        if model.config.position == "learned" and store.longest > model.config.max_positions:
            raise UserError(
                f"{self._longest()}; config.model.max_positions = {model.config.max_positions} learned positions end before "
                "it. Shorten that pair."
            )
        shards = mesh_lib.batch_shards(mesh)
        tokens = min(8192, config.data.microbatch_tokens * shards or 8192)
        shardings = jax.tree.map(lambda x: x.sharding, params)
        step = make_eval_step(config, model, mesh, shardings)
        self._parts, programs = [], {} if programs is None else programs
        for shape, batches in validation_batches(store, config.data, shards=shards, tokens=tokens):
            struct = batch_struct((shape.rows, shape.length), mesh_lib.named(mesh, mesh_lib.ROWS))
            if shape not in programs:
                with mesh_lib.use(mesh):
                    programs[shape] = step.lower(params, struct).compile()
            advice = "Lower config.data.microbatch_tokens."
            if shape.rows == shards and shape.length > config.data.pack_length:
                advice = f"{self._longest(shape.length)}: shorten that pair, or leave it out."
            what = f"the loss of config.data.{split} for {shape}"
            check_fits_in_memory(what, programs[shape], advice, besides=besides)
            self._parts.append((programs[shape], shape, batches))

    def _longest(self, limit: int | None = None) -> str:
        """Describes the longest pair of the store, or the longest of at most `limit` tokens."""
        longer = np.maximum(*self._store.lengths)
        i = int(np.argmax(np.where(longer <= limit, longer, 0) if limit else longer))
        where = split_source(task_of(self._config), self._split).where(i)
        source, target = (int(x[i]) for x in self._store.lengths)
        return f"config.data.{self._split}: {where} has {source} source and {target} target tokens"

    def __call__(self, params: Any, after_batch: Callable[[], None] = lambda: None) -> dict[str, float]:
        """{"loss": ..., "nll": ..., and each token metric: ...}, per real target token of the store."""
        sharding = mesh_lib.named(self._mesh, mesh_lib.ROWS)
        sums = []
        for program, shape, batches in self._parts:
            for batch in batches():
                rows = lambda first, last, batch=batch: {k: x[0] for k, x in batch.rows(first, last).items()}  # noqa: E731
                arrays = mesh_lib.to_global(rows, (shape.rows, shape.length), sharding)
                sums.append(program(params, arrays))
                after_batch()
        names = list(sums[0])
        total = np.sum([[float(each[name]) for name in names] for each in sums], axis=0)
        return {name: float(mean) for name, mean in means(dict(zip(names, total, strict=True))).items()}
