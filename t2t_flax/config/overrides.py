"""Build a checked, frozen `Config` from keys and overrides.

Also convert configs to and from JSON, and compare two.
"""

import difflib
import functools
import json
import logging
import math
import shlex
from collections.abc import Callable, Container, Iterable, Mapping

import ml_collections

from t2t_flax.config import keys
from t2t_flax.config.keys import MODEL, OF_USER, RUN, TRAINING, Value, Values
from t2t_flax.config.schema import (
    CORE_GROUPS,
    HIGHER_IS_BETTER,
    Config,
    Data,
    Mesh,
    Model,
    conditions,
    fields,
    groups,
    keys_of_kind,
    keys_that_change,
    unmet,
)
from t2t_flax.errors import UserError
from t2t_flax.json_file import parse_json
from t2t_flax.language import Language
from t2t_flax.registry import SOURCES

log = logging.getLogger("t2t_flax")
NOT_A_CONFIG = (
    "this is not the config.json of a run; nothing was changed. Name another folder, or restore the"
    ' file: each checkpoint holds a copy under "config" in checkpoints/N/meta/metadata'
)


def default_config() -> ml_collections.ConfigDict:
    """Return all keys with their defaults as a locked `ConfigDict`.

    A config file edits and returns it.
    """
    return ml_collections.ConfigDict(
        {name: _asdict(group) for name, group in groups().items()}
    ).lock()


def to_config_dict(config: Config) -> ml_collections.ConfigDict:
    """Return a resolved config as a `ConfigDict`.

    It is locked: a new key is an error.
    """
    return ml_collections.ConfigDict(
        {name: _asdict(config.group(name)) for name in groups()}
    ).lock()


def _asdict(group: Value) -> Values:
    return {item.name: getattr(group, item.name) for item in keys.keys_of(group)}


def override(config: ml_collections.ConfigDict | Values, overrides: dict[str, str]) -> Values:
    """Return a copy of `config` with `overrides`, in plain, unchecked dicts.

    Values of `config` that have no effect with the overrides go back to the default, with a
    warning. Raises UserError for an unknown key (naming the nearest known one), for text that does
    not fit the key's type, and if `config` is not a dict of groups.

    Args:
        overrides: text by dotted key, parsed by the key's type.
    """
    before, values = _groups_of(config), _groups_of(config)
    for name, text in overrides.items():
        group, item = _known(name).split(".")
        values.setdefault(group, {})[item] = keys.parse_value(name, fields()[name], text)
    _reset_unread(values, before, overrides)
    return values


def _reset_unread(values: Values, before: Values, given: Container[str]) -> None:
    """Remove values of keys that are read with `before`, but not with `values`.

    Keys in `given` stay.
    """
    now, then = _value_of(values), _value_of(before)

    def is_lost(name: str) -> bool:
        if name in given or now(name) == fields()[name].default:
            return False
        return unmet(name, now) is not None and unmet(name, then) is None

    while lost := [name for name in conditions() if is_lost(name)]:
        for name in lost:
            when, default = unmet(name, now), fields()[name].default
            assert when
            _warn(
                f"config.{name} = {keys.show(now(name))} goes back to {default!r}: it has an effect"
                f" only with {when.text}."
            )
        for name in lost:
            group, _, item = name.partition(".")
            del values[group][item]


def _value_of(groups: Mapping[str, Mapping[str, Value]]) -> Callable[[str], Value]:
    """Return a function from a dotted key to its value.

    Keys missing in `groups` have their defaults.
    """

    def value_of(name: str) -> Value:
        group, _, item = name.partition(".")
        return groups.get(group, {}).get(item, fields()[name].default)

    return value_of


@functools.cache  # once in a process: a command reads a config several times
def _warn(message: str) -> None:
    log.warning(message)


def _groups_of(config: Value) -> Values:
    """Return a copy, two levels deep.

    Raises UserError if `config` is not a dict of groups.
    """
    values = config.to_dict() if isinstance(config, ml_collections.ConfigDict) else config
    if not isinstance(values, dict):
        raise UserError(f"expected a config (default_config(), edited), got {keys.show(values)}.")
    for group, items in values.items():
        if group not in groups():
            hint = keys.hint(difflib.get_close_matches(str(group), groups(), n=1))
            raise UserError(
                f"config has no group {keys.show(group)}.{hint} Groups: {', '.join(groups())}."
                " A module of your own adds its groups if T2T_EXTENSIONS names it."
            )
        if not isinstance(items, dict):
            raise UserError(
                f"config.{group} is a group of keys, not a value: got {keys.show(items)}."
            )
    return {group: dict(items) for group, items in values.items()}


def resolve(config: ml_collections.ConfigDict | Values) -> Config:
    """Check names, types, ranges and combinations, and freeze the config.

    Raises UserError, naming the key.
    """
    values = _groups_of(config)
    for group, items in values.items():
        for item in items:
            _known(f"{group}.{item}")
    frozen = {
        name: group(
            **{
                item: _checked(f"{name}.{item}", value)
                for item, value in values.get(name, {}).items()
            }
        )
        for name, group in groups().items()
    }
    set_groups = {
        name: group
        for name, group in frozen.items()
        if name not in CORE_GROUPS and group != type(group)()
    }
    resolved = Config(**{name: frozen[name] for name in CORE_GROUPS}).with_extensions(set_groups)
    check_combinations(resolved)
    return resolved


def _checked(name: str, value: Value) -> Value:
    return keys.check_value(name, fields()[name], value)


def to_json(config: Config) -> str:
    """Return the resolved config as JSON text.

    It has the groups of the core, and the groups of extensions that the run sets.
    """
    return json.dumps(as_json(config), indent=2) + "\n"


def as_json(config: Config) -> Values:
    """Return the resolved config as plain JSON values, see `to_json`."""
    names = (*CORE_GROUPS, *dict(config.extensions))
    return json.loads(json.dumps({name: _asdict(config.group(name)) for name in names}))


def from_json(text: str) -> Config:
    """Return a resolved config from the text of `to_json`, for comparisons only.

    Pass it through `from_elsewhere` before use. Raises UserError for any other text.
    """
    try:
        values = parse_json(text)
    except ValueError as error:
        raise UserError(f"{NOT_A_CONFIG} (not JSON: {error}).") from None
    if not isinstance(values, dict) or not CORE_GROUPS.keys() <= values.keys():
        raise UserError(f"{NOT_A_CONFIG} (it lacks groups of keys).")
    return resolve(values)


def values_of_user(config: Config) -> Values:
    """Return the values of a config that a stored config cannot have.

    They name programs and code to run, and paths to write: the values of `keys.OF_USER`, and
    data.root if a source would write files there.
    """
    names = (*keys_of_kind(*OF_USER), *(["data.root"] if _writes_to_root(config.data) else []))
    return {
        name: value for name in names if (value := config.value(name)) != fields()[name].default
    }


def from_elsewhere(stored: Config, given: Container[str] = ()) -> tuple[Config, Values]:
    """Return a stored config without its `values_of_user`, and these values.

    It can come from somebody else. Keys in `given`, which the user overrides, are kept for the
    override.
    """
    lost = {name: value for name, value in values_of_user(stored).items() if name not in given}
    defaults = {name: str(fields()[name].default) for name in lost}
    return (resolve(override(to_config_dict(stored), defaults)), lost) if lost else (stored, {})


def _writes_to_root(data: Data) -> bool:
    """Return whether opening a source of the data would write files to data.root."""
    specs = (*data.train_sources.values(), *data.valid_sets.values(), *data.test_sets.values())
    for spec in map(str.strip, specs if data.root else ()):
        name = next(
            (name for name, form in SOURCES.items() if spec.startswith(f"{form.prefix or None}:")),
            None,
        )
        writes = name and getattr(SOURCES.load(name), "writes", None)
        if writes and writes(spec, data.root):
            return True
    return False


def warn_of_lost(lost: Mapping[str, Value], where: str) -> None:
    """Warn of values that name a program or code and were lost from a stored config.

    See `from_elsewhere`.
    """
    if run := [name for name in lost if fields()[name].metadata["kind"] in RUN]:
        _warn(
            f"{where} sets {_shown(run, lost)}, which a stored config cannot: it names what is run."
            f" {_flags(run, lost)}"
        )


def check_lost(lost: Mapping[str, Value]) -> None:
    """Raise UserError for lost values that name a program or code; warn of others."""
    run = [name for name in lost if fields()[name].metadata["kind"] in RUN]
    if run:
        raise UserError(
            f"a stored config cannot set {_shown(run, lost)}: it names what is run."
            f" {_flags(run, lost)} Give an empty value to leave it out."
        )
    if lost:
        _warn(
            f"{_shown(lost, lost)} is not taken over: it names a folder that is written."
            f" {_flags(lost, lost)}"
        )


def _shown(names: Iterable[str], values: Mapping[str, Value]) -> str:
    return ", ".join(f"config.{name} = {keys.show(values[name])}" for name in names)


def _flags(names: Iterable[str], values: Mapping[str, Value]) -> str:
    flags = " ".join(
        shlex.quote(f"--config.{name}={keys.show(values[name], quote=False)}") for name in names
    )
    return f"If it is yours, give {flags}."


def differences(a: Config, b: Config) -> dict[str, tuple[Value, Value]]:
    """Return keys whose values differ, by dotted name, with both values."""
    pairs = {name: (a.value(name), b.value(name)) for name in fields()}
    return {name: (x, y) for name, (x, y) in pairs.items() if x != y}


def immutable_differences(stored: Config, current: Config) -> dict[str, tuple[Value, Value]]:
    """Return the differences in keys that a resumed run must not change.

    train.precision = auto means the precision at the first start.
    """
    if current.train.precision == "auto":
        current = current.with_values({"train.precision": stored.train.precision})
    return {
        k: v for k, v in differences(stored, current).items() if not fields()[k].metadata["mutable"]
    }


def check_changes(stored: Config, given: Config, step: int) -> None:
    """Raise UserError if a run cannot change a mutable key after update `step`."""
    for group in given.extension_groups.values():
        group.check_change(stored, given, step)


def format_differences(
    differ: dict[str, tuple[Value, Value]], first: str, second: str, *, indent: str = "  "
) -> str:
    """Return a line for each key of `differences`.

    With `first` = "in the workdir" and `second` = "now" a line is
    `model.d_model: 512 in the workdir, 1024 now`.
    """
    return "\n".join(
        f"{indent}{name}: {a!r} {first}, {b!r} {second}" for name, (a, b) in differ.items()
    )


def _known(name: str) -> str:
    if name in fields():
        return name
    group, _, item = name.rpartition(".")
    shown = keys.show(name, quote=False)
    near = difflib.get_close_matches(shown, fields(), n=1, cutoff=0.75)
    near = (
        near
        or [key for key in fields() if key.endswith(f".{item}")]
        or difflib.get_close_matches(shown, fields(), n=1)
    )
    hint = keys.hint(near)
    raise UserError(
        f"unknown config key {shown!r}.{hint} `python -m t2t_flax explain --keys` lists all keys."
    )


def changes_of_training(stored: Config, given: Config) -> dict[str, list]:
    """Return the changed mutable keys that affect training.

    Each key has a list [stored value, given value].
    """
    recorded = {key for key in keys_that_change(TRAINING) if fields()[key].metadata["mutable"]}
    return {
        key: list(values) for key, values in differences(stored, given).items() if key in recorded
    }


def recorded_changes(meta: Values) -> list[Values]:
    """Return the changes recorded in a checkpoint's or average's metadata.

    The oldest is first.
    """
    return meta.get("config_changes") or meta.get("progress", {}).get("config_changes", [])


def stored_config(meta: Values) -> Config:
    """Return the config in a checkpoint's metadata. Raises UserError if there is none."""
    return from_json(json.dumps(meta["config"]))


def check_same_model(stored: Config, given: Config, what: str) -> None:
    """Raise UserError naming the model keys in which `stored` and `given` differ.

    Args:
        what: name of the stored run, for the message.
    """
    of_model = keys_that_change(MODEL)
    differ = {k: v for k, v in differences(stored, given).items() if k in of_model}
    if differ:
        lines = format_differences(differ, "there", "here")
        raise UserError(f"{what} is of another model:\n{lines}")


def check_combinations(c: Config) -> None:
    """Raise UserError for the first impossible combination of values.

    Single values must be valid already.
    """
    _check_keys_are_read(c)
    _check_model(c.model)
    _check_data(c)
    _check_decode(c)
    _check_mesh(c.mesh)
    for group in c.extension_groups.values():
        group.check(c)


def _check_keys_are_read(c: Config) -> None:
    """Raise UserError for a set key that has no effect because of another key's value."""
    for name in conditions():
        value = c.value(name)
        if value != fields()[name].default and (when := unmet(name, c.value)):
            here = ", ".join(
                f"config.{chooser} = {keys.show(c.value(chooser))}" for chooser, _ in when.tests
            )
            raise UserError(
                f"config.{name} = {keys.show(value)} has no effect: it is read only with"
                f" {when.text}. Here {here}."
            )


def _check_model(m: Model) -> None:
    if (not m.d_k or not m.d_v) and m.d_model % m.num_heads:
        raise UserError(
            f"config.model.d_model = {m.d_model} is not a multiple of config.model.num_heads ="
            f" {m.num_heads}: choose another number of heads, or set model.d_k and model.d_v."
        )
    if m.position.startswith("sinusoid") and m.d_model % 2:
        raise UserError(
            f"config.model.d_model = {m.d_model} is odd: sinusoids come in pairs (3.5)."
        )
    if m.num_kv_heads and m.num_heads % m.num_kv_heads:
        raise UserError(
            f"config.model.num_kv_heads = {m.num_kv_heads} does not divide config.model.num_heads ="
            f" {m.num_heads}."
        )


def _check_data(c: Config) -> None:
    d, m = c.data, c.model
    for side in ("source", "target"):
        Language.read(getattr(d, f"{side}_language"), f"data.{side}_language")
    if m.tie_embeddings == "all" and not d.joint_vocabulary:
        raise UserError(
            "config.model.tie_embeddings = 'all' needs config.data.joint_vocabulary = true: two"
            " vocabularies cannot share one matrix. Use model.tie_embeddings = 'decoder'."
        )
    if d.batch_tokens < 2 * d.max_length:
        raise UserError(
            f"config.data.batch_tokens = {d.batch_tokens} must hold at least two of the longest"
            f" pairs (config.data.max_length = {d.max_length})."
        )
    if d.batching == "packed" and d.batch_tokens < d.pack_length:
        raise UserError(
            f"config.data.batch_tokens = {d.batch_tokens} is less than one row of"
            f" config.data.pack_length = {d.pack_length}: raise the first or lower the second."
        )
    if m.position == "learned" and d.max_length > m.max_positions:
        raise UserError(
            f"config.model.max_positions = {m.max_positions} learned positions are fewer than "
            f"config.data.max_length = {d.max_length}."
        )
    if both := d.test_sets.keys() & d.valid_sets.keys():
        raise UserError(
            f"config.data.test: {min(both)!r} is the name of a validation set; give the test set"
            " another name."
        )


def _check_decode(c: Config) -> None:
    d = c.decode
    if d.strategy not in ("sample", "greedy") and d.n_best > d.beam_size:
        raise UserError(
            f"config.decode.n_best = {d.n_best} is more than config.decode.beam_size ="
            f" {d.beam_size}."
        )


def _check_mesh(m: Mesh) -> None:
    sizes = [m.data, m.fsdp, m.tensor]
    if sizes.count(-1) > 1 or 0 in sizes:
        raise UserError(
            "config.mesh.data, mesh.fsdp and mesh.tensor are sizes; one of them may be -1, none may"
            " be 0."
        )
    _ = m.sharding


def check_evaluation(c: Config) -> None:
    """Raise UserError if an evaluation that a new run relies on never takes place.

    Warns as `check_average` and `check_patience` do, and if the warm-up does not end. Stored runs
    are not checked.
    """
    check_average(c)
    check_patience(c)
    if c.optimizer.warmup_steps > c.train.steps:
        _warn(
            f"config.optimizer.warmup_steps = {c.optimizer.warmup_steps:,} is more than"
            f" config.train.steps = {c.train.steps:,}: the learning rate still rises at the end."
        )
    if c.eval.decode_every_steps and not c.data.valid:
        raise UserError(
            f"config.eval.decode_every_steps = {c.eval.decode_every_steps} needs config.data.valid,"
            " which is empty: name a validation set, or set eval.decode_every_steps = 0."
        )


def check_patience(c: Config, updates_per_epoch: int = 0) -> None:
    """Raise UserError if a key depends on eval.metric, but it is never computed.

    Warns if patience cannot end the run.

    Args:
        updates_per_epoch: 0 = not known yet; evaluations by epochs are then not counted.
    """
    e, steps = c.eval, c.train.steps
    decoded = e.metric not in HIGHER_IS_BETTER
    if c.data.valid and e.every_epochs and not (decoded or updates_per_epoch):
        return
    intervals = (
        [e.decode_every_steps] if decoded else [e.every_steps, e.every_epochs * updates_per_epoch]
    )
    needed = "eval.decode_every_steps" if decoded else "eval.every_steps or eval.every_epochs"
    for name, unused in (("eval.patience", 0), ("checkpoint.keep_best", 1)):
        if not (c.data.valid and any(intervals)) and c.value(name) > unused:
            raise UserError(
                f"config.{name} = {c.value(name)} depends on eval.metric = {e.metric}, which is"
                f" never computed: set config.data.valid and {needed}."
            )
    if e.patience > (count := _count_due(steps, *intervals)):
        _warn(
            f"config.eval.patience = {e.patience} is never reached: config.train.steps = {steps}"
            f" updates have {count} evaluations. Lower eval.patience or {needed}."
        )


def _count_due(steps: int, *intervals: int) -> int:
    """Return the number of updates up to `steps` that end an interval.

    There are up to two intervals. An interval of 0 never ends.
    """
    lengths = [length for length in intervals if length]
    return sum(steps // length for length in lengths) - (
        steps // math.lcm(*lengths) if len(lengths) > 1 else 0
    )


def check_average(c: Config, updates_per_epoch: int = 0) -> None:
    """Warn if the final average covers more checkpoints than the run will have.

    Args:
        updates_per_epoch: 0 = not known yet; nothing is then checked if checkpoints go by epochs.
    """
    k, steps = c.checkpoint, c.train.steps
    if not c.data.test or (k.every_epochs and not updates_per_epoch):
        return
    count = _count_due(steps, k.every_steps, k.every_epochs * updates_per_epoch)
    if not k.every_epochs and not (k.every_steps and steps % k.every_steps == 0):
        count += 1  # the last update
    if k.average_last > max(1, count):
        every = (
            f"every_epochs = {k.every_epochs}"
            if k.every_epochs
            else f"every_steps = {k.every_steps}"
        )
        _warn(
            f"config.checkpoint.average_last = {k.average_last} is never reached:"
            f" config.train.steps = {steps} updates with config.checkpoint.{every} give {count}"
            " regular checkpoints. Lower average_last or the interval."
        )
