"""A step function whose logits are a hash of the whole prefix, and the same in NumPy.

The oracle of searches.
"""

import dataclasses
import functools
import itertools

import jax.numpy as jnp
import numpy as np

from t2t_flax.decoding.search_loop import Sentences

PARAMS = {"scale": np.float32(2.0), "eos": np.float32(0.0)}


@dataclasses.dataclass(frozen=True)
class TableModel:
    """`vocab` tokens (0 = padding, 1 = EOS), `rows` rows of logits.

    `flat`: equal logits, so that every choice is a tie.

    The cache holds the tokens of each hypothesis with a time axis and a running hash without one;
    the logits need both, so that a hypothesis with the wrong cache gets wrong scores.
    """

    vocab: int = 5
    rows: int = 8
    flat: bool = False

    def start(self, seeds_B, beams: int, length: int):
        seeds_B = jnp.asarray(seeds_B, jnp.uint32)
        shape = (len(seeds_B), beams)
        history = {
            "tokens": jnp.zeros((*shape, length), jnp.int32),
            "hash": jnp.zeros(shape, jnp.uint32),
        }
        return {"self": history, "cross": {"seed": seeds_B}}

    def __call__(self, params, tokens_BxK, position, cache):
        tokens_BxK = jnp.where(position == 0, 0, tokens_BxK)
        history = cache["self"]["tokens"].at[:, :, position].set(tokens_BxK)
        steps = jnp.arange(history.shape[2])
        terms = jnp.where(
            steps <= position, _term(history.astype(jnp.uint32), steps.astype(jnp.uint32)), 0
        )
        running = _mix(cache["self"]["hash"] * 31 + tokens_BxK.astype(jnp.uint32))
        key = _mix(terms.sum(-1, dtype=jnp.uint32) ^ running ^ cache["cross"]["seed"][:, None])
        logits = self._logits(params, key[..., None], jnp.arange(self.rows, dtype=jnp.uint32))
        return logits, cache | {"self": {"tokens": history, "hash": running}}

    def log_probs(self, seed: int, prefix: tuple[int, ...], params=PARAMS) -> np.ndarray:
        """float64 [vocab]: log softmax after a prefix."""
        return _oracle(self, int(seed), tuple(prefix), float(params["scale"]), float(params["eos"]))

    def score(self, seed: int, tokens: tuple[int, ...], params=PARAMS) -> float:
        """Log-probability of a sequence."""
        return sum(
            self.log_probs(seed, tokens[:i], params)[token] for i, token in enumerate(tokens)
        )

    def _logits(self, params, key, ids):
        unit = (_mix(key + ids * np.uint32(0x9E3779B9)) >> 8).astype(np.float32) / np.float32(2**24)
        logits = (unit - np.float32(0.5)) * params["scale"] * (0 if self.flat else 1) + (
            ids == 1
        ) * params["eos"]
        xp = np if isinstance(logits, np.ndarray) else jnp
        return xp.where(ids < self.vocab, logits, np.float32(-1e9))


def sentences(caps, prefix=None, keys=None, **more) -> Sentences:
    """Inputs of a search, of lists or arrays."""
    named = more if prefix is None else more | {"prefix": np.asarray(prefix, np.int32)}
    return Sentences(
        jnp.asarray(caps, jnp.int32), keys, {name: jnp.asarray(x) for name, x in named.items()}
    )


def outputs(result, b: int) -> list[tuple[int, ...]]:
    """The hypotheses of a sentence."""
    return [
        tuple(ids[:n].tolist())
        for ids, n in zip(result.tokens[b], result.lengths[b], strict=True)
        if n
    ]


def every_output(cap: int):
    """Every output of tokens 2, 3 and 4, ended by EOS or by the cap."""
    for n in range(cap):
        yield from ((*body, 1) for body in itertools.product((2, 3, 4), repeat=n))
    yield from itertools.product((2, 3, 4), repeat=cap)


@functools.cache
def _oracle(
    model: TableModel, seed: int, prefix: tuple[int, ...], scale: float, eos: float
) -> np.ndarray:
    inputs = np.array((0, *prefix), np.uint32)
    running = np.zeros(1, np.uint32)
    for token in inputs:
        running = _mix(running * np.uint32(31) + token)
    terms = _term(inputs, np.arange(len(inputs), dtype=np.uint32)).sum(dtype=np.uint32)
    key = _mix(terms ^ running ^ np.uint32(seed))
    params = {"scale": np.float32(scale), "eos": np.float32(eos)}
    logits = model._logits(params, key, np.arange(model.vocab, dtype=np.uint32)).astype(np.float64)
    return logits - np.log(np.exp(logits).sum())


def _term(tokens, steps):
    return _mix(tokens * np.uint32(7919) + steps * np.uint32(104729) + np.uint32(1))


def _mix(x):
    x = (x ^ (x >> 16)) * np.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * np.uint32(0x846CA68B)
    return x ^ (x >> 16)
