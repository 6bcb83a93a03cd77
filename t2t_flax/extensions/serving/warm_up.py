"""Which programs requests need, so that JAX compiles them before the first one."""

import functools
from collections.abc import Callable, Iterator, Sequence

from t2t_flax.decoding.batches import plan_batches
from t2t_flax.distributed import mesh as mesh_lib
from t2t_flax.evaluation.restore import TrainedModel

MAX_ATTENTION_TOKENS = 128
"""Tokens of a side whose attention is sent: the answer grows with their product."""


def warm_ups(runs: Sequence[TrainedModel], max_batch: int, lengths: Sequence[int]) -> Iterator[Callable[[], object]]:
    """What to call before the first request. runs: the run for one hypothesis, then those for several.

    Compiles the search for up to `max_batch` lines of these padded lengths, of one line for each of the runs. A decoder that
    does not compile translates a line instead.
    """
    loaded = runs[0]
    if loaded.decoder.name != "jax":
        yield from (functools.partial(run.translate, [own_text(run)]) for run in runs)
        return
    shards = mesh_lib.batch_shards(loaded.mesh)
    for tokens in sorted({min(length, loaded.max_source_length) for length in lengths}):
        plans = (plan_batches([tokens] * count, loaded.config.decode, shards) for count in range(1, max_batch + 1))
        for shape in dict.fromkeys(batch.shape for batches in plans for batch in batches):
            for run in runs if shape[0] == 1 else runs[:1]:
                yield functools.partial(run.decoder.compile, shape)


def own_text(loaded: TrainedModel) -> str:
    """A line of the server's own, in any of the model's languages."""
    return loaded.in_language("a", next(iter(loaded.tokenizers.source.target_languages), None))
