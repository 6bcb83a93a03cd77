"""Loss and token metrics of the validation sets."""

import functools
import itertools
from collections.abc import Callable, Mapping

import jax
import numpy as np

from t2t_flax.config import Config
from t2t_flax.config.data_keys import VALID_PREFIX
from t2t_flax.data.batching.batches import validation_batches
from t2t_flax.data.batching.rows import Shape
from t2t_flax.data.splits import split_source
from t2t_flax.data.token_store import TokenStore
from t2t_flax.distributed import mesh as mesh_lib
from t2t_flax.distributed.mesh import Params, PyTree
from t2t_flax.errors import UserError
from t2t_flax.models.transformer import Transformer
from t2t_flax.tasks import task_of
from t2t_flax.training.losses import means, validation_sums
from t2t_flax.training.parametrization import model_part
from t2t_flax.training.parts import TrainingSetup
from t2t_flax.training.setup import Program, batch_struct, compile_programs


def validation_loss(setup: TrainingSetup) -> Callable[..., dict[str, float]] | None:
    """Return the function (params, after_batch) -> losses of the validation sets.

    None if the config never asks for them.
    """
    if not (
        setup.corpus.valid and (setup.config.eval.every_steps or setup.config.eval.every_epochs)
    ):
        return None
    resident = setup.abstract.opt_state, setup.abstract.ema
    params = model_part(setup.parametrization, setup.abstract.params)
    programs: dict[tuple[int, ...], jax.stages.Compiled] = {}
    losses = {
        name: ValidationLoss(
            setup.config, setup.model, setup.mesh, params, store, name, resident, programs
        )
        for name, store in setup.corpus.valid.items()
    }
    return lambda params, after_batch: average_over_sets(
        {name: loss(params, after_batch) for name, loss in losses.items()}
    )


def average_over_sets(values: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Average {set: {metric: value}} over sets: {metric: mean, "metric/SET": value}.

    All sets have the same weight, whatever their size. Only named sets get a value of their own.
    """
    first, *_ = values.values()
    mean = {
        metric: float(np.mean([of_set[metric] for of_set in values.values()])) for metric in first
    }
    named = [
        (name.removeprefix(VALID_PREFIX), of_set)
        for name, of_set in values.items()
        if name != "valid"
    ]
    return mean | {
        f"{metric}/{name}": value for name, of_set in named for metric, value in of_set.items()
    }


class ValidationLoss:
    """Losses and token metrics over a whole store, without dropout.

    Programs are compiled once for each shape. Raises UserError, with the pair's place, where a pair
    is longer than the learned positions, and where a program does not fit in memory.

    Args:
        params: parameters, or their abstract shapes and shardings.
        split: name of the store, as in `split_source`.
        resident: other arrays on the devices during the evaluation, such as the optimizer state.
        programs: compiled programs by shape, shared with other stores of the run. New ones are
            added.
    """

    def __init__(
        self,
        config: Config,
        model: Transformer,
        mesh: jax.sharding.Mesh,
        params: Params,
        store: TokenStore,
        split: str = "valid",
        resident: PyTree = (),
        programs: dict[tuple[int, ...], jax.stages.Compiled] | None = None,
    ):
        self._mesh, self._config, self._store, self._split = mesh, config, store, split
        if model.config.position == "learned" and store.longest > model.config.max_positions:
            raise UserError(
                f"{self._longest()}; config.model.max_positions = {model.config.max_positions}"
                " learned positions end before it. Shorten that pair."
            )
        shards = mesh_lib.batch_shards(mesh)
        tokens = min(8192, config.data.microbatch_tokens * shards or 8192)
        shardings = jax.tree.map(lambda x: x.sharding, params)
        self._parts = list(validation_batches(store, config.data, shards=shards, tokens=tokens))
        self._programs = {} if programs is None else programs
        rows, whole = (mesh_lib.named(mesh, spec) for spec in (mesh_lib.ROWS, mesh_lib.REPLICATED))
        sums = functools.partial(validation_sums, config, model)
        function = jax.jit(sums, in_shardings=(shardings, rows), out_shardings=whole)

        def inputs(shape: Shape) -> tuple:
            return params, batch_struct((shape.rows, shape.length), rows)

        def describe(shape: Shape) -> tuple[str, str]:
            advice = "Lower config.data.microbatch_tokens."
            if shape.rows == shards and shape.length > config.data.pack_length:
                advice = f"{self._longest(shape.length)}: shorten that pair, or leave it out."
            return f"the loss of config.data.{split} for {shape}", advice

        new = [shape for shape, _ in self._parts if shape.array_shape not in self._programs]
        program = Program(function, inputs, describe)
        self._programs.update(compile_programs(program, new, mesh, resident=resident))

    def _longest(self, limit: int | None = None) -> str:
        """Describe the longest pair of the store.

        Args:
            limit: describe the longest pair of at most this many tokens.
        """
        longer = np.maximum(*self._store.lengths)
        i = int(np.argmax(np.where(longer <= limit, longer, 0) if limit else longer))
        source = split_source(task_of(self._config), self._split)
        kept = (number for number, row in enumerate(source.rows()) if not isinstance(row, str))
        where = source.where(next(itertools.islice(kept, i, None)))
        tokens = [int(x[i]) for x in self._store.lengths]
        return (
            f"config.data.{self._split}: {where} has {tokens[0]} source and {tokens[1]} target"
            " tokens"
        )

    def __call__(
        self, params: Params, after_batch: Callable[[], None] = lambda: None
    ) -> dict[str, float]:
        """Return loss, nll and the token metrics, per real target token of the store."""
        sharding = mesh_lib.named(self._mesh, mesh_lib.ROWS)
        sums = []
        for shape, batches in self._parts:
            for batch in batches():

                def rows(first, last, batch=batch):
                    return {k: x[0] for k, x in batch.rows(first, last).items()}

                arrays = mesh_lib.to_global(rows, (shape.rows, shape.length), sharding)
                sums.append(self._programs[shape.array_shape](params, arrays))
                after_batch()
        names = list(sums[0])
        total = np.sum([[float(each[name]) for name in names] for each in sums], axis=0)
        return {
            name: float(mean) for name, mean in means(dict(zip(names, total, strict=True))).items()
        }
