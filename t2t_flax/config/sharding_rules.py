"""Parses mesh.rules: which mesh axes divide which axis of the parameters."""

from t2t_flax.errors import UserError

LOGICAL_AXES = {
    "vocab": "rows of an embedding",
    "table": "columns of an embedding",
    "embed": "d_model of a matrix",
    "heads": "heads of an attention matrix",
    "kv_heads": "heads of keys and values, if model.num_kv_heads makes them fewer; as `heads` if not named",
    "kv": "width of a head",
    "mlp": "d_ff",
    "norm": "scales and biases of a norm",
    "position": "rows of learned positions",
}
MESH_AXES = ("data", "fsdp", "tensor")
# Embeddings by rows only: with divided columns XLA would gather the whole table for every lookup.
DEFAULT_RULES = "vocab=fsdp+tensor embed=fsdp heads=tensor mlp=tensor"


def sharding_rules(text: str) -> dict[str, tuple[str, ...]]:
    """`{"vocab": ("fsdp", "tensor"), ...}` with every logical axis; () = not sharded, as is an axis that is not named.

    Raises UserError for an unknown axis, and for one that is named twice.
    """
    rules: dict[str, tuple[str, ...]] = {}
    for part in text.replace(",", " ").split():
        name, equals, axes = part.partition("=")
        chosen = tuple(axis for axis in axes.split("+") if axis)
        if not equals or name not in LOGICAL_AXES or name in rules:
            raise UserError(
                f"config.mesh.rules: {part!r} is not AXIS=MESH_AXIS with each AXIS at most once. Axes: "
                f"{', '.join(f'{axis} ({meaning})' for axis, meaning in LOGICAL_AXES.items())}."
            )
        if not set(chosen) <= set(MESH_AXES) or len(set(chosen)) < len(chosen):
            raise UserError(f"config.mesh.rules: {part!r} is not {', '.join(MESH_AXES)} joined by +.")
        rules[name] = chosen
    rules.setdefault("kv_heads", rules.get("heads", ()))
    return {name: rules.get(name, ()) for name in LOGICAL_AXES}
