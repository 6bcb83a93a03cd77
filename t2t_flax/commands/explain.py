"""`explain`: every config key with its type, meaning and default."""

from t2t_flax import config as config_lib
from t2t_flax.commands import flags
from t2t_flax.config.resolve import type_name
from t2t_flax.config.schema import fields
from t2t_flax.errors import UserError


def run(argv: list[str]) -> int:
    """Prints the keys; with --config, their values there."""
    arguments = flags.parser("explain", "Lists every config key: value, type, meaning and unit.")
    arguments.add_argument("--keys", action="store_true", help="all keys with their defaults")
    arguments.add_argument("--config", metavar="FILE.py[:variant]", help="show this config's values")
    args, overrides = flags.parse(arguments, argv)
    if not args.keys and not args.config:
        raise UserError("say what to explain: --keys, or --config=FILE.py[:variant].")
    config = config_lib.load_config(args.config, overrides) if args.config else config_lib.Config()
    group = ""
    for name, item in fields().items():
        if name.split(".")[0] != group:
            group = name.split(".")[0]
            print(f"\n{group}")
        value = getattr(getattr(config, group), item.name)
        changed = "" if value == item.default else f" (default {item.default!r})"
        unit = f" [{item.metadata['unit']}]" if item.metadata["unit"] else ""
        print(f"  {name} = {value!r}{changed}{unit}\n      {type_name(name)}: {item.metadata['doc']}")
    return 0
