"""Which programs requests need, so that JAX compiles them before the first one."""

import functools
from collections.abc import Callable, Iterator, Sequence

from t2t_flax.config import Decode
from t2t_flax.decoding.batches import PREFIX_LENGTHS, SOURCE_LENGTHS, plan_batches, round_up
from t2t_flax.distributed import mesh as mesh_lib
from t2t_flax.evaluation.restore import TrainedModel
from t2t_flax.registry import ANALYSES

MAX_ATTENTION_TOKENS = 128
"""Tokens of a side whose attention is sent: the answer grows with their product."""


def warm_ups(
    runs: Sequence[TrainedModel], max_batch: int, lengths: Sequence[int] | None
) -> Iterator[Callable[[], object]]:
    """What to call before the first request. runs: the run for one hypothesis, then those for several.

    Compiles the search for up to `max_batch` lines of these padded lengths, of one line for each of the runs; without lengths,
    all that a request can need. A decoder that does not compile translates a line instead.
    """
    loaded, every = runs[0], lengths is None
    if loaded.decoder.name != "jax":
        yield from (functools.partial(run.translate, [own_text(run)]) for run in runs)
        return
    limit = loaded.max_source_length
    for tokens in sorted({min(length, limit) for length in lengths or _padded_lengths(limit)}):
        for shape in _shapes(loaded, max_batch, tokens, PREFIX_LENGTHS if every else (0,)):
            for run in runs if every or shape[0] == 1 else runs[:1]:
                yield functools.partial(run.decoder.compile, shape)
    for length in SOURCE_LENGTHS if every else ():
        if length <= round_up(limit, SOURCE_LENGTHS):
            pair = 2 * [_text_of(min(length, limit) - 1, loaded)]
            yield functools.partial(loaded.score, [pair])
            if length <= MAX_ATTENTION_TOKENS and "attend" in ANALYSES:
                yield functools.partial(ANALYSES.load("attend"), loaded, *pair)


def own_text(loaded: TrainedModel) -> str:
    """A line of the server's own, in any of the model's languages."""
    return loaded.in_language("a", next(iter(loaded.tokenizers.source.target_languages), None))


def _padded_lengths(limit: int) -> list[int]:
    """Those of batches of lines of up to `limit` tokens."""
    return sorted({plan_batches([n], Decode())[0].source_length for n in range(1, limit + 1)})


def _shapes(loaded: TrainedModel, max_batch: int, tokens: int, prefixes: Sequence[int]) -> list[tuple[int, int, int]]:
    """`Batch.shape` of all batches of up to `max_batch` lines of so many tokens."""
    shards, shapes = mesh_lib.batch_shards(loaded.mesh), {}
    for prefix in prefixes:
        for count in range(1, max_batch + 1):
            batches = plan_batches([tokens] * count, loaded.config.decode, shards, [prefix])
            shapes |= dict.fromkeys(batch.shape for batch in batches)
    return list(shapes)


def _text_of(tokens: int, loaded: TrainedModel) -> str:
    """A line of about so many tokens, at most."""
    text = own_text(loaded)
    while len(loaded.tokenizers.source.encode(longer := text + " a")) <= tokens and len(text) < 8 * tokens:
        text = longer
    return text
