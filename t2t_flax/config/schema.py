"""Every configuration key with its type, meaning, default, unit and range.

The groups `data` and `model` are in `data_keys` and `model_keys`. Defaults are the base model of
"Attention Is All You Need" (numbers in parentheses are the paper's sections). A `mutable_key` may
change when a run is resumed; changing any other key is an error, because it would be a different
run.
"""

import dataclasses
import functools
import hashlib
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from etils import epath

from t2t_flax.config.data_keys import Data
from t2t_flax.config.keys import (
    MODEL,
    READ,
    SCORES,
    TEXT,
    TRAINING,
    TRANSLATIONS,
    Value,
    Values,
    When,
    is_set,
    key,
    keys_of,
    mutable_key,
    none_of,
    one_of,
)
from t2t_flax.config.model_keys import Model
from t2t_flax.errors import UserError
from t2t_flax.registry import (
    DECODERS,
    GROUPS,
    OPTIMIZERS,
    SCHEDULES,
    SEARCHES,
    Group,
    load_extensions,
)

HIGHER_IS_BETTER = {"nll": False, "loss": False, "ppl": False, "accuracy": True}
"""Direction of each metric, by its name in eval.metric.

metrics.jsonl has the name after `valid_`.
"""


rate_key = functools.partial(key, mutable=True, changes=TRAINING)
"""Key of the optimization that may change on resume; the change is recorded."""


@dataclass(frozen=True)
class Optimizer:
    name: str = key("adam", "adam (5.3); with weight_decay it is AdamW", choices=OPTIMIZERS)
    schedule: str = key(
        "noam",
        "noam = lr_scale * d_model^-0.5 * min(t^-0.5, t * warmup^-1.5) (5.3). The others warm up"
        " linearly to peak_lr; then inverse_sqrt = peak_lr * sqrt(warmup / t), constant = peak_lr",
        choices=SCHEDULES,
    )
    lr_scale: float = rate_key(
        1.0, "factor of the noam schedule", low=1e-30, when=one_of("optimizer.schedule", "noam")
    )
    peak_lr: float = rate_key(
        5e-4,
        "peak learning rate of every schedule but noam",
        low=1e-30,
        when=none_of("optimizer.schedule", "noam"),
    )
    warmup_steps: int = rate_key(4000, "updates of linear warm-up (5.3)", unit="updates", low=1)
    warmup_init: float = rate_key(
        0.0,
        "learning rate at the start of the warm-up to peak_lr",
        low=0.0,
        when=none_of("optimizer.schedule", "noam"),
    )
    b1: float = key(0.9, "beta 1 of Adam (5.3)", low=0.0, high=0.9999)
    b2: float = key(0.98, "beta 2 of Adam (5.3)", low=0.0, high=0.999999)
    eps: float = key(1e-9, "Adam epsilon (5.3)", low=1e-30, high=1e3)
    schedule_first_step: int = key(
        1, "t of the first update in the schedule: 1, or 0 as in later codebases", low=0, high=1
    )
    max_grad_norm: float = rate_key(
        0.0, "largest global gradient norm; 0 = no clipping, as in the paper", low=0.0
    )
    weight_decay: float = key(
        0.0,
        "decoupled weight decay on matrices, never on biases and norms; 0 = none, as in the paper",
        low=0.0,
    )
    ema_decay: float = key(
        0.0,
        "decay of a moving average of the parameters, which evaluation then uses; 0 = none",
        low=0.0,
        high=0.99999,
    )

    @property
    def averages(self) -> bool:
        """True if an average of the parameters is evaluated in their place."""
        averages_by_itself = "optimizer.ema_decay" in OPTIMIZERS.ignores.get(self.name, ())
        return bool(self.ema_decay) or averages_by_itself


decode_key = functools.partial(key, mutable=True, changes=TRANSLATIONS)
"""Key of the search: each decoding of a run may set it."""
_beam_key = functools.partial(decode_key, when=none_of("decode.strategy", "greedy", "sample"))
_sampling_key = functools.partial(decode_key, when=one_of("decode.strategy", "sample"))


@dataclass(frozen=True)
class Decode:
    strategy: str = decode_key("beam", "how translations are searched for", choices=SEARCHES)
    beam_size: int = _beam_key(4, "hypotheses in the beam (6.1)", low=1, high=256)
    length_penalty: str = _beam_key(
        "gnmt",
        "divisor of the log-probability of L tokens: ((5 + L) / 6)^alpha (6.1), L^alpha, or none",
        choices=("gnmt", "power", "none"),
    )
    alpha: float = decode_key(
        0.6,
        "exponent of the length penalty (6.1)",
        low=0.0,
        high=10.0,
        when=(
            none_of("decode.strategy", "greedy", "sample"),
            none_of("decode.length_penalty", "none"),
        ),
    )
    early_stopping: str = _beam_key(
        "exact",
        "when the search for a sentence ends: once its result can no longer change, once beam_size"
        " hypotheses have finished (fairseq), or once the most likely one has",
        choices=("exact", "beam_full", "top_finished"),
    )
    max_length_offset: int = decode_key(
        50, "output tokens allowed beyond max_length_ratio * source tokens (6.1)", low=0, high=10**5
    )
    max_length_ratio: float = decode_key(
        1.0, "output tokens allowed per source token (6.1)", low=0.0, high=100.0
    )
    n_best: int = decode_key(
        1,
        "translations returned for each sentence, at most beam_size with beam search",
        low=1,
        high=1024,
        when=none_of("decode.strategy", "greedy"),
    )
    temperature: float = _sampling_key(1.0, "divides the logits in sampling", low=1e-4, high=1e4)
    top_k: int = _sampling_key(0, "sample from the k most likely tokens; 0 = all", low=0)
    top_p: float = _sampling_key(
        1.0, "sample from the most likely tokens with this total probability", low=1e-6, high=1.0
    )
    epsilon: float = _sampling_key(
        0.0,
        "sample from the tokens with at least this probability, or the most likely one; 0 = all",
        low=0.0,
        high=1.0,
    )
    seed: int = _sampling_key(0, "seed of sampling", low=-(2**63), high=2**63 - 1)
    engine: str = decode_key(
        "jax", "what decodes: the JAX search, or the decoder of an extension", choices=DECODERS
    )
    precision: str = decode_key(
        "auto",
        "precision of matrix products where a trained run translates, scores or is evaluated; auto"
        " = train.precision, but float32 in place of bfloat16 on GPUs before Ampere and on a CPU,"
        " so that the output does not depend on the CPU",
        choices=("auto", "float32", "tf32", "bfloat16"),
    )
    batch_size: int = key(
        32,
        "sentences decoded at once on each data shard; fewer where sources are long",
        low=1,
        high=2**13,
        mutable=True,
    )
    max_source_length: int = decode_key(
        1024,
        "longer sources are truncated to this length, EOS included, and reported",
        unit="tokens",
        low=2,
    )


@dataclass(frozen=True)
class Loss:
    label_smoothing: float = key(
        0.1, "epsilon_ls, probability mass spread evenly over classes (5.4)", low=0.0, high=0.99
    )
    label_smoothing_over: str = key(
        "all",
        "classes that share label_smoothing: the whole vocabulary, or all but the target",
        choices=("all", "non_target"),
        when=is_set("loss.label_smoothing"),
    )
    logits_chunk_size: int = key(
        0,
        "target tokens per device whose logits are in memory at once; 0 = chosen by platform."
        " Affects memory and speed, not the result",
        unit="tokens",
        low=0,
        high=2**20,
    )


@dataclass(frozen=True)
class Train:
    steps: int = mutable_key(100_000, "updates to train (5.2)", unit="updates", low=1)
    precision: str = key(
        "auto",
        "precision of matrix products; parameters, softmax, norms and loss stay float32; auto ="
        " bfloat16 on TPU and GPU (NVIDIA: Ampere and later), else float32, decided at the first"
        " start and kept on resume; float32 = full float32 on every device; tf32 = float32 arrays"
        " whose products are TensorFloat-32 on GPU (Ampere and later), three bfloat16 passes on TPU"
        " and float32 on CPU",
        choices=("auto", "float32", "tf32", "bfloat16"),
        changes=TRANSLATIONS,
    )
    remat: str = mutable_key(
        "none",
        "what the backward pass recomputes: nothing, everything but matrix products, or whole"
        " layers",
        choices=("none", "dots", "full"),
    )
    non_finite: str = key(
        "stop",
        "an update whose loss, gradient or parameters are not finite is never applied; the run then"
        " stops (exit code 3) or skips it and goes on, up to ten times in a row",
        choices=("stop", "skip"),
        mutable=True,
        changes=TRAINING,
    )


@dataclass(frozen=True)
class Eval:
    every_steps: int = mutable_key(
        1000, "updates between evaluations of the validation loss; 0 = none", unit="updates", low=0
    )
    every_epochs: int = mutable_key(
        0,
        "epochs between evaluations of the validation loss, each of as many updates as the first"
        " pass through the corpus has, or by a sample should have; 0 = by every_steps alone",
        low=0,
    )
    decode_every_steps: int = mutable_key(
        0,
        "updates between decodings of the validation set for the task's main metric; 0 = none",
        low=0,
    )
    decode_sentences: int = mutable_key(
        0,
        "sentences of the validation set decoded during training; 0 = all",
        low=0,
        when=is_set("eval.decode_every_steps"),
    )
    metric: str = key(
        "nll",
        "metric that selects best checkpoints and counts for patience: nll, loss (with label"
        " smoothing), ppl, accuracy (of tokens), or one of the task's (bleu, chrf, ter ...),"
        " computed every eval.decode_every_steps",
        kind=TEXT,
    )
    patience: int = mutable_key(
        0,
        "stop after this many evaluations without a better metric; 0 = never",
        unit="evaluations",
        low=0,
    )
    bootstrap_samples: int = key(
        1000,
        "bootstrap resamples for the confidence intervals of scores; 0 = none",
        low=0,
        high=10**5,
        mutable=True,
        changes=SCORES,
    )
    sacrebleu_tokenizer: str = key(
        "auto",
        "tokenizer of sacreBLEU; auto = what it recommends for the target language: zh, ja-mecab"
        " (Japanese), ko-mecab (Korean), flores200 (Thai, Lao, Khmer, Burmese, Shan, Tibetan,"
        " Dzongkha), else 13a",
        choices=(
            "auto",
            "13a",
            "intl",
            "zh",
            "ja-mecab",
            "ko-mecab",
            "char",
            "flores101",
            "flores200",
            "none",
        ),
        mutable=True,
        changes=SCORES,
    )


LOGICAL_AXES = {
    "vocab": "rows of an embedding",
    "table": "columns of an embedding",
    "embed": "d_model of a matrix",
    "heads": "heads of an attention matrix",
    "kv_heads": (
        "heads of keys and values, if model.num_kv_heads makes them fewer; as `heads` if not named"
    ),
    "kv": "width of a head",
    "mlp": "d_ff",
    "norm": "scales and biases of a norm",
    "position": "rows of learned positions",
}
MESH_AXES = ("data", "fsdp", "tensor")
# Embeddings by rows only: with sharded columns XLA would gather the whole table for every lookup.
DEFAULT_RULES = "vocab=fsdp+tensor embed=fsdp heads=tensor mlp=tensor"


@dataclass(frozen=True)
class Mesh:
    data: int = mutable_key(
        -1,
        "devices that divide the batch, with replicated parameters; -1 = the remaining devices",
        low=-1,
    )
    fsdp: int = mutable_key(
        1, "devices that divide the batch and the parameters; -1 = the remaining devices", low=-1
    )
    tensor: int = mutable_key(
        1, "devices that divide heads, d_ff and vocabulary; -1 = the remaining devices", low=-1
    )
    rules: str = mutable_key(
        DEFAULT_RULES,
        "mesh axes over which each axis of the parameters and their optimizer state is sharded;"
        " other axes are not sharded",
        kind=TEXT,
        when=none_of("mesh.fsdp", 1) | none_of("mesh.tensor", 1),
    )
    fsdp_mode: str = mutable_key(
        "full",
        "what is sharded over the fsdp axis: parameters and optimizer state, or the optimizer state"
        " alone (ZeRO-1)",
        choices=("full", "zero1"),
        when=none_of("mesh.fsdp", 1),
    )
    slices: int = mutable_key(
        0,
        "groups of devices connected by the data-centre network; only the data axis runs across"
        " them; 0 = as the devices report",
        low=0,
    )
    cpu_devices: int = mutable_key(
        1, "simulated devices that the CPU of each process is divided into", low=1, high=1024
    )

    @property
    def sharding(self) -> dict[str, tuple[str, ...]]:
        """Mesh axes for every logical axis: `{"vocab": ("fsdp", "tensor"), ...}`.

        () = not sharded, also for an axis without a rule. Raises UserError for an unknown axis, and
        for an axis that is named twice.
        """
        rules: dict[str, tuple[str, ...]] = {}
        for part in self.rules.replace(",", " ").split():
            name, equals, axes = part.partition("=")
            chosen = tuple(axis for axis in axes.split("+") if axis)
            if not equals or name not in LOGICAL_AXES or name in rules:
                raise UserError(
                    f"config.mesh.rules: {part!r} is not AXIS=MESH_AXIS with each AXIS at most"
                    " once. Axes: "
                    f"{', '.join(f'{axis} ({meaning})' for axis, meaning in LOGICAL_AXES.items())}."
                )
            if not set(chosen) <= set(MESH_AXES) or len(set(chosen)) < len(chosen):
                raise UserError(
                    f"config.mesh.rules: {part!r} is not {', '.join(MESH_AXES)} joined by +."
                )
            rules[name] = chosen
        rules.setdefault("kv_heads", rules.get("heads", ()))
        return {name: rules.get(name, ()) for name in LOGICAL_AXES}


@dataclass(frozen=True)
class Distributed:
    initialization_timeout: int = mutable_key(
        300,
        "how long the processes of a run wait for each other when they start",
        unit="seconds",
        low=1,
        high=10**6,
    )
    heartbeat_timeout: int = mutable_key(
        30,
        "time without a heartbeat after which a process counts as dead; JAX itself aborts after"
        " twice this and 30 s",
        unit="seconds",
        low=3,
        high=10**6,
    )
    hang_timeout: int = mutable_key(
        900,
        "a run without progress (an update, a step of an evaluation) for this long writes the"
        " stacks of its threads and exits; 0 = never",
        unit="seconds",
        low=0,
    )


@dataclass(frozen=True)
class Checkpoint:
    every_steps: int = mutable_key(
        1500, "updates between checkpoints (10 minutes of the paper's base, 6.1); 0 = none", low=0
    )
    every_epochs: int = mutable_key(
        0, "epochs between checkpoints; 0 = by every_steps alone", low=0
    )
    keep_last: int = mutable_key(
        5,
        "newest checkpoints kept",
        low=1,
        when=is_set("checkpoint.every_steps") | is_set("checkpoint.every_epochs"),
    )
    keep_best: int = mutable_key(1, "best checkpoints kept, by eval.metric", low=0)
    average_last: int = mutable_key(
        0,
        "number of last regular checkpoints averaged for the final evaluation (6.1), without those"
        " of a stop or an evaluation; 0 = the last checkpoint alone",
        low=0,
    )


@dataclass(frozen=True)
class Log:
    every_steps: int = mutable_key(
        50, "updates between lines of metrics.jsonl", unit="updates", low=1
    )


@dataclass(frozen=True)
class Seed:
    init: int = key(0, "seed of the initial parameters", low=0, high=2**32 - 1)
    dropout: int = key(0, "seed of the dropout masks", low=0, high=2**32 - 1)
    data: int = key(0, "seed of the order of the training pairs", low=0, high=2**63 - 1)


@dataclass(frozen=True)
class Config:
    """Resolved run: one frozen dataclass for each group of keys."""

    model: Model = field(default_factory=Model)
    data: Data = field(default_factory=Data)
    optimizer: Optimizer = field(default_factory=Optimizer)
    loss: Loss = field(default_factory=Loss)
    train: Train = field(default_factory=Train)
    eval: Eval = field(default_factory=Eval)
    decode: Decode = field(default_factory=Decode)
    mesh: Mesh = field(default_factory=Mesh)
    distributed: Distributed = field(default_factory=Distributed)
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    log: Log = field(default_factory=Log)
    seed: Seed = field(default_factory=Seed)
    extensions: tuple[tuple[str, Value], ...] = ()
    """Groups of extensions by name; a group that is not listed has its defaults."""

    @property
    def extension_groups(self) -> dict[str, Group]:
        """Every group of an extension by name, in the order of registration."""
        load_extensions()
        return {name: self.group(name) for name in GROUPS}

    def group(self, name: str) -> Value:
        """Return the dataclass of a group of keys, in the core or an extension."""
        if name in CORE_GROUPS:
            return getattr(self, name)
        return dict(self.extensions).get(name) or groups()[name]()

    def value(self, name: str) -> Value:
        """Return the value of a key by its dotted name."""
        group, _, item = name.partition(".")
        return getattr(self.group(group), item)

    def compared(self, names: Iterable[str]) -> Values:
        """Return the values of keys by their dotted names.

        An existing file is represented by its SHA-256, wherever it lies.
        """
        found = {name: self.value(name) for name in names}
        for name, value in found.items():
            if fields()[name].metadata["kind"] == READ and value and epath.Path(value).is_file():
                found[name] = (
                    f"SHA-256 {hashlib.sha256(epath.Path(value).read_bytes()).hexdigest()}"
                )
        return found

    def with_values(self, values: Mapping[str, Value]) -> "Config":
        """Return a copy with other values of keys, by their dotted names; not validated."""
        config = self
        for name, value in values.items():
            group, _, item = name.partition(".")
            changed = dataclasses.replace(config.group(group), **{item: value})
            if group in CORE_GROUPS:
                config = dataclasses.replace(config, **{group: changed})
                continue
            others = {other: keys for other, keys in config.extensions if other != group}
            config = config.with_extensions(
                others | ({group: changed} if changed != type(changed)() else {})
            )
        return config

    def with_extensions(self, groups_by_name: Mapping[str, Value]) -> "Config":
        """Return a copy with these groups of extensions.

        `model.extensions` gets the groups with keys that change the model.
        """
        pairs = tuple((name, groups_by_name[name]) for name in groups() if name in groups_by_name)
        of_model = tuple(
            pair for pair in pairs if MODEL in {key.metadata["changes"] for key in keys_of(pair[1])}
        )
        return dataclasses.replace(
            self, extensions=pairs, model=dataclasses.replace(self.model, extensions=of_model)
        )


CORE_GROUPS: dict[str, type] = {
    item.name: typing.cast(type, item.default_factory)
    for item in dataclasses.fields(Config)
    if item.name != "extensions"
}


@functools.cache
def groups() -> dict[str, type]:
    """Return the dataclass of every group by name, the core's first."""
    load_extensions()
    return CORE_GROUPS | GROUPS


@functools.cache
def fields() -> dict[str, dataclasses.Field]:
    """Return every key by its dotted name.

    The core's keys come first, in the order of this file, then keys from extensions.
    """
    return {
        f"{name}.{item.name}": item for name, group in groups().items() for item in keys_of(group)
    }


def keys_of_kind(*kinds: str) -> tuple[str, ...]:
    """Return keys with values of these kinds, see `keys.key`."""
    return tuple(name for name, item in fields().items() if item.metadata["kind"] in kinds)


@functools.cache
def conditions() -> dict[str, tuple[When, ...]]:
    """Return the conditions of each key that is not always read.

    They are the key's own conditions, and one for each table with rows that ignore the key.
    """
    found = {name: list(item.metadata["when"]) for name, item in fields().items()}
    for chooser, item in fields().items():
        ignores = getattr(item.metadata["choices"], "ignores", {})
        for name in dict.fromkeys(ignored for names in ignores.values() for ignored in names):
            found[name].append(
                none_of(chooser, *(row for row, names in ignores.items() if name in names))
            )
    return {name: tuple(conditions) for name, conditions in found.items() if conditions}


def unmet(name: str, value_of: Callable[[str], Value]) -> When | None:
    """Return a key's first condition that does not hold; None if it is read.

    Args:
        value_of: returns the value of a key.
    """
    return next((when for when in conditions().get(name, ()) if not when.holds(value_of)), None)


def keys_that_change(*what: str) -> tuple[str, ...]:
    """Return the keys that change one of these in a trained run, see `keys.key`."""
    return tuple(name for name, item in fields().items() if item.metadata["changes"] in what)
