"""FLOPs of matrix products by formula, from the shapes of a model's kernels; and model FLOPs utilization (MFU): FLOP/s of a
run over those that its devices can do.

XLA's count is not used: it counts the body of a loop once, and is per device.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from etils import epath
from flax.traverse_util import flatten_dict

from t2t_flax.config import Config, Model
from t2t_flax.data.batching.batches import Batch
from t2t_flax.data.workers import num_cores
from t2t_flax.distributed.coordination import ProcessGroup
from t2t_flax.extensions.planning.chips import data_sheet_peak
from t2t_flax.models.attention import SelfAttention, mixer_class
from t2t_flax.training.hooks import Hook
from t2t_flax.training.setup import DeviceBatch, TrainingSetup
from t2t_flax.training.train_state import TrainProgress, TrainState, parameters_of


class Tokens(NamedTuple):
    """Tokens of an update, and the pairs of tokens that attention compares.

    Real: summed over sentence pairs i, so `cross` is the sum of S_i * T_i. Padded: over rows. `target_self` counts both
    triangles: a masked product computes both.
    """

    source: float
    target: float
    source_self: float
    target_self: float
    cross: float


def real_tokens(source_lengths: np.ndarray, target_lengths: np.ndarray) -> Tokens:
    """Tokens of sentence pairs with these lengths, int [pairs]."""
    s, t = source_lengths.astype(np.float64), target_lengths.astype(np.float64)
    return Tokens(s.sum(), t.sum(), (s * s).sum(), (t * t).sum(), (s * t).sum())


def padded_tokens(rows: int, length: int) -> Tokens:
    """Tokens of rows of `length` slots on each side, padding included."""
    slots = float(rows * length)
    return Tokens(slots, slots, slots * length, slots * length, slots * length)


class Products(NamedTuple):
    """Matrix products. source, target: multiply-adds of kernels, and of the softmax, for each token of that side. The others: in
    how many layers pairs of tokens are compared, in products of queries with keys and of weights with values.
    """

    source: float
    target: float
    encoder_mixers: int
    decoder_mixers: int
    cross_attentions: int

    def flops(self, model: Model, tokens: Tokens) -> float:
        """FLOPs, 2 for each multiply-add."""
        pairs = self.encoder_mixers * _compared(model, tokens.source, tokens.source_self)
        pairs += self.decoder_mixers * _compared(model, tokens.target, tokens.target_self)
        pairs += self.cross_attentions * tokens.cross
        of_pairs = pairs * model.num_heads * sum(model.head_widths)
        return 2.0 * (self.source * tokens.source + self.target * tokens.target + of_pairs)


def _compared(model: Model, tokens: float, pairs: float) -> float:
    """Pairs that a mixer compares, of `pairs` in the same segment: all in self-attention, unless its class has the static method
    `compared_pairs(model, tokens, pairs)`; none in other mixers, which have only kernels.
    """
    mixer = mixer_class(model)
    if hasattr(mixer, "compared_pairs"):
        return mixer.compared_pairs(model, tokens, pairs)
    return pairs if issubclass(mixer, SelfAttention) else 0.0


def forward_products(model: Model, vocab: int, params: Mapping[str, Any]) -> Products:
    """The products of a forward pass of a model with parameters of these shapes. vocab: of the target."""
    sides = {"source": 0.0, "target": model.d_model * vocab}
    for path, size in _kernels(params):
        sides[_side(path)] += size
    layers = (model.num_encoder_layers, model.num_decoder_layers, model.num_decoder_layers)
    return Products(sides["source"], sides["target"], *layers)


def training_products(config: Config, vocab: int, params: Mapping[str, Any]) -> Products:
    """The products of a forward and a backward pass of a run with parameters of these shapes.

    With frozen parameters: a kernel has a gradient if it is trained, and its input if a parameter is trained in its stack or
    before it. What lies below the lowest trained layer of a stack is counted too.
    """
    model, forward = config.model, forward_products(config.model, vocab, params)
    trained = parameters_of(config).with_gradient(params)
    if trained is None:
        return Products(*(3 * count for count in forward))
    in_encoder = any(path.startswith(("shared_embedding/", "source_", "encoder_")) for path in trained)
    inputs = {"source": in_encoder, "target": True}
    sides = {"source": forward.source, "target": forward.target}
    for path, size in _kernels(params):
        side = _side(path)
        sides[side] += size * ((path in trained) + inputs[side])
    table = {"all": "shared_embedding", "decoder": "target_embedding", "none": "output_embedding"}[model.tie_embeddings]
    sides["target"] += model.d_model * vocab * (1 + any(path.startswith(f"{table}/") for path in trained))
    encoder = forward.encoder_mixers * (3 if in_encoder else 1)
    return Products(
        **sides,
        encoder_mixers=encoder,
        decoder_mixers=3 * forward.decoder_mixers,
        cross_attentions=3 * forward.cross_attentions,
    )


def _kernels(params: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """(path, size) of each kernel of the layers; one entry is one multiply-add for each token."""
    for path, leaf in flatten_dict(params, sep="/").items():
        if path.endswith("/kernel") and path.startswith(("encoder_", "decoder_")):
            yield path, math.prod(leaf.shape)


def _side(path: str) -> str:
    """Of whose tokens a kernel is applied to each: keys and values of cross-attention are made from the source."""
    of_source = path.startswith("encoder") or "/cross_attention/key/" in path or "/cross_attention/value/" in path
    return "source" if of_source else "target"


def lines(config: Config, state: TrainState, sizes: tuple[int, int]) -> list[str]:
    """A section of `explain`: FLOPs per target token at three lengths, and those of the whole run."""
    products = training_products(config, sizes[1], state.params)
    frozen = "" if parameters_of(config).with_gradient(state.params) is None else ", none for what is frozen"
    lines = [f"FLOPs of training per target token (forward and backward, 2 per multiply-add{frozen})"]
    per_token = {n: products.flops(config.model, padded_tokens(1, n)) / n for n in (27, 64, 256)}
    for length, flops in per_token.items():
        lines.append(f"  pairs of {length:3} + {length:3} tokens          {flops / 1e6:>11,.1f} million")
    whole = per_token[27] * config.data.batch_tokens * config.train.steps
    lines.append(f"  whole run, pairs of 27 + 27         {whole:>11.2e} in all")
    return lines


_FASTEST = 0.005
"""Seconds of the smallest updates on a device: to launch some hundred kernels."""
_MEASURED = 3
"""Updates by whose batches the time of making one is known: the first takes longer."""


class Mfu(Hook):
    """Adds `mfu` to the lines of metrics.jsonl: of the updates since the line before. Says, with `say`, if batches may be made
    more slowly than they are used.
    """

    def __init__(self, say: Callable[[str], None]):
        self._say, self._seen = say, 0

    def on_start(self, run: TrainingSetup, progress: TrainProgress) -> None:
        self._run = run
        self._products = training_products(run.config, run.model.target_vocab, run.abstract.params)
        self._peaks = peaks_of(run)
        self._hardware = self._useful = self._tokens = 0.0

    def on_update(self, step: int, batch: DeviceBatch, values: dict[str, float]) -> None:
        hardware, useful = update_flops(self._run, batch.batch, self._products)
        self._seen += 1
        if self._seen == _MEASURED and (text := shortage(batch.seconds, self.least_seconds(hardware), num_cores())):
            self._say(text)
        self._hardware += hardware
        self._useful += useful
        self._tokens += batch.batch.target_tokens
        if "target_tokens_per_second" in values:
            seconds = self._tokens / values["target_tokens_per_second"]
            values |= mfu(self._hardware, self._useful, seconds, self._peaks)
            self._hardware = self._useful = self._tokens = 0.0

    def least_seconds(self, flops: float) -> float:
        """Of an update of so many FLOPs: at the peak of the devices."""
        return flops / max(filter(None, self._peaks.values()))


def shortage(seconds: float, update: float, cores: int) -> str:
    """What to tell the user if a process with so many cores may make batches more slowly than they are used; else "". seconds: of
    one core, for a batch; update: the least that it takes on the devices.
    """
    update = max(_FASTEST, update)
    if seconds <= update * max(1, cores - 1):
        return ""
    return (
        f"the devices may wait for batches: at their peak an update takes them {update:.4f} s, and laying it out and filling its "
        f"arrays {seconds:.4f} s of one core. {math.ceil(seconds / update) + 1} cores would do; this process may use {cores}."
    )


def hook(config: Config, workdir: epath.Path, group: ProcessGroup) -> Mfu:
    """Of a run with planning.mfu."""
    return Mfu(group.say)


def update_flops(run: TrainingSetup, batch: Batch, products: Products) -> tuple[float, float]:
    """(FLOPs of all slots of an update's batch, of its real tokens)."""
    shape, lengths = batch.shape, [side.lengths[batch.index] for side in batch.sides]
    slots, real = padded_tokens(shape.rows * shape.micro, shape.length), real_tokens(*lengths)
    return products.flops(run.config.model, slots), products.flops(run.config.model, real)


def peaks_of(run: TrainingSetup) -> dict[str, float | None]:
    """FLOP/s of all devices of a run: measured, and by data sheet; None where it has none or products are not bfloat16."""
    count = run.mesh.size
    sheet = data_sheet_peak(jax.devices()[0]) if run.model.dtype == jnp.bfloat16 else None
    measured = measured_peak(run.model.dtype, precision=run.model.matmul_precision)
    # Simulated devices share cores, which a single product already saturates.
    return {
        "data_sheet": sheet and sheet * count,
        "measured": measured * (1 if jax.default_backend() == "cpu" else count),
    }


def measured_peak(dtype: jnp.dtype, size: int | None = None, *, precision: str | None = None) -> float:
    """FLOP/s of one device in a square product of this type and `jax.default_matmul_precision`; the best of three."""
    size = size or (1024 if jax.default_backend() == "cpu" else 8192)
    # Processors at their power limit multiply ones faster than the numbers of a training.
    x = jax.random.normal(jax.random.key(0), (size, size), dtype)
    product = jax.jit(lambda a, b: jnp.matmul(a, b, precision=precision))
    product(x, x).block_until_ready()
    best = float("inf")
    for _ in range(3):
        start = time.perf_counter()
        product(x, x).block_until_ready()
        best = min(best, time.perf_counter() - start)
    return 2.0 * size**3 / best


def mfu(hardware_flops: float, useful_flops: float, seconds: float, peaks: dict[str, float | None]) -> dict[str, float]:
    """`mfu_hardware_measured`, ...: FLOP/s of all tokens and of real ones, over each known peak of all devices."""
    return {
        f"mfu_{name}_{kind}": flops / seconds / peak
        for kind, peak in peaks.items()
        if peak
        for name, flops in (("hardware", hardware_flops), ("useful", useful_flops))
    }
