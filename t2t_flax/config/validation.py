"""Checks combinations of config values, one function per group of keys."""

from t2t_flax.config.schema import HIGHER_IS_BETTER, Config, Mesh, Model, fields
from t2t_flax.config.text_values import parse_test_sets, parse_valid_sets, sharding_rules
from t2t_flax.errors import UserError
from t2t_flax.registry import GROUPS


def check_combinations(c: Config) -> None:
    """Raises UserError for the first impossible combination of a config whose single values are valid."""
    _check_keys_are_read(c)
    _check_model(c.model)
    _check_data(c)
    _check_decode(c)
    _check_mesh(c.mesh)
    for name in GROUPS:
        group = c.group(name)
        if hasattr(group, "check"):
            group.check(c)


def _check_keys_are_read(c: Config) -> None:
    """Raises UserError for a key that is set, but has no effect because of another key's value."""
    for name, item in fields().items():
        read_with, ignored_with = item.metadata["read_with"], item.metadata["ignored_with"]
        if c.value(name) == item.default or not (read_with or ignored_with):
            continue
        chooser, *values = read_with or ignored_with
        if (c.value(chooser) in values) == bool(ignored_with):
            users = f"{'all but ' if ignored_with else ''}config.{chooser} = {' or '.join(values)}"
            raise UserError(f"config.{name} = {c.value(name)} is for {users}; it is {c.value(chooser)}.")


def _check_model(m: Model) -> None:
    if (not m.d_k or not m.d_v) and m.d_model % m.num_heads:
        raise UserError(
            f"config.model.d_model = {m.d_model} is not a multiple of config.model.num_heads = {m.num_heads}: "
            "choose another number of heads, or set model.d_k and model.d_v."
        )
    if m.position.startswith("sinusoid") and m.d_model % 2:
        raise UserError(f"config.model.d_model = {m.d_model} is odd: sinusoids come in pairs (3.5).")
    if m.num_kv_heads and m.num_heads % m.num_kv_heads:
        raise UserError(
            f"config.model.num_kv_heads = {m.num_kv_heads} does not divide config.model.num_heads = {m.num_heads}."
        )


def _check_data(c: Config) -> None:
    d, m = c.data, c.model
    if m.tie_embeddings == "all" and not d.joint_vocabulary:
        raise UserError(
            "config.model.tie_embeddings = 'all' needs config.data.joint_vocabulary = true: two vocabularies cannot "
            "share one matrix. Use model.tie_embeddings = 'decoder'."
        )
    if d.batch_tokens < 2 * d.max_length:
        raise UserError(
            f"config.data.batch_tokens = {d.batch_tokens} must hold at least two of the longest pairs (config.data.max_length = "
            f"{d.max_length})."
        )
    if m.position == "learned" and d.max_length > m.max_positions:
        raise UserError(
            f"config.model.max_positions = {m.max_positions} learned positions are fewer than "
            f"config.data.max_length = {d.max_length}."
        )
    if both := parse_test_sets(d.test).keys() & parse_valid_sets(d.valid).keys():
        raise UserError(
            f"config.data.test: {min(both)!r} is the name of a validation set; give the test set another name."
        )


def _check_decode(c: Config) -> None:
    d = c.decode
    if d.strategy == "beam" and d.n_best > d.beam_size:
        raise UserError(f"config.decode.n_best = {d.n_best} is more than config.decode.beam_size = {d.beam_size}.")
    if d.strategy == "greedy" and d.n_best > 1:
        raise UserError(f"config.decode.n_best = {d.n_best}: greedy search has one output; use beam or sample.")


def _check_mesh(m: Mesh) -> None:
    sizes = [m.data, m.fsdp, m.tensor]
    if sizes.count(-1) > 1 or 0 in sizes:
        raise UserError("config.mesh.data, mesh.fsdp and mesh.tensor are sizes; one of them may be -1, none may be 0.")
    sharding_rules(m.rules)


def check_trainable(c: Config) -> None:
    """Raises UserError if a new training would lack an evaluation that the config relies on.

    Stored runs are not checked: they exist already.
    """
    e = c.eval
    if e.decode_every_steps and not c.data.valid:
        raise UserError(
            f"config.eval.decode_every_steps = {e.decode_every_steps} needs config.data.valid, which is empty: name a "
            "validation set, or set eval.decode_every_steps = 0."
        )
    decoded = e.metric not in HIGHER_IS_BETTER
    evaluated = e.decode_every_steps if decoded else e.every_steps or e.every_epochs
    if c.data.valid and evaluated:
        return
    missing = "config.data.valid is empty"
    if c.data.valid:
        missing = f"config.eval.{'decode_every_steps' if decoded else 'every_steps and eval.every_epochs'} = 0"
    for name, needed in (("eval.patience", e.patience > 0), ("checkpoint.keep_best", c.checkpoint.keep_best > 1)):
        if needed:
            raise UserError(
                f"config.{name} = {c.value(name)} depends on eval.metric = {e.metric}, which is never computed: {missing}."
            )
