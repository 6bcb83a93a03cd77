"""What a model has compiled before requests need it."""

import functools
from collections.abc import Callable, Iterator, Sequence

from t2t_flax.decoding.batches import plan_batches
from t2t_flax.distributed import mesh as mesh_lib
from t2t_flax.evaluation.restore import TrainedModel

USUAL_LENGTHS = (32, 128)
"""Padded lengths of the lines whose programs are compiled without being asked for, those of the first before the first request.
Each has a lane of its own; what else is asked for, and may have to be compiled, has the last one.
"""
WarmUp = Callable[[Sequence[TrainedModel], int], Iterator[Callable[[], object]]]
"""(the run for one hypothesis and that for several, the most lines at once) -> what to call."""


def usual(runs: Sequence[TrainedModel], max_batch: int) -> Iterator[Callable[[], object]]:
    """What to call before the first request: the search for short lines, up to `max_batch` at once, with outputs for which the
    first cache has room. A decoder that does not compile translates a line instead. runs: the run for one hypothesis, then
    those for several.
    """
    if runs[0].decoder.name != "jax":
        yield from (functools.partial(run.translate, [own_text(run)]) for run in runs)
        return
    for shape in _shapes(runs[0], max_batch, USUAL_LENGTHS[:1]):
        yield functools.partial(runs[0].decoder.compile, shape, 1)


def rest_of_usual(runs: Sequence[TrainedModel], max_batch: int) -> Iterator[Callable[[], object]]:
    """What to call after `usual`: one line with several hypotheses, longer lines, longer outputs."""
    if runs[0].decoder.name != "jax":
        return
    shapes = _shapes(runs[0], max_batch, USUAL_LENGTHS)
    for longest in (1, 2**31):
        for shape in shapes:
            for run in runs if shape[0] == 1 else runs[:1]:
                yield functools.partial(run.decoder.compile, shape, longest)


def _shapes(loaded: TrainedModel, max_batch: int, lengths: Sequence[int]) -> list[tuple[int, int]]:
    """`Batch.shape` of up to `max_batch` lines of each of these padded lengths."""
    shards, shapes = mesh_lib.batch_shards(loaded.mesh), {}
    for tokens in sorted({min(length, loaded.max_source_length) for length in lengths}):
        for count in range(1, max_batch + 1):
            batches = plan_batches([tokens] * count, loaded.config.decode, shards)
            shapes |= dict.fromkeys(batch.shape for batch in batches)
    return list(shapes)


def own_text(loaded: TrainedModel) -> str:
    """A line of the server's own, in any of the model's languages."""
    return loaded.in_language("a", next(iter(loaded.tokenizers.source.target_languages), None))
