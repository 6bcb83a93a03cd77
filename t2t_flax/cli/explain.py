"""`explain`: show the parameters and schedule of a config, and keys.

`--diff` shows a config's differences from a preset, `--keys` all keys.
"""

from t2t_flax import config as config_lib
from t2t_flax.cli import arguments
from t2t_flax.config.keys import OF_USER, type_name
from t2t_flax.config.presets import find, preset, presets
from t2t_flax.config.schema import conditions, fields, unmet
from t2t_flax.errors import UserError
from t2t_flax.process_setup import prepare_process


def run(argv: list[str]) -> int:
    """Return 0, even if --diff finds differences."""
    parser = arguments.parser(
        "explain",
        "Shows parameters by group, batches, learning rates and memory of a config, without"
        " training.",
        epilog=(
            "Examples:\n"
            "  python -m t2t_flax explain --config=configs/wmt14_ende.py:big\n"
            "  python -m t2t_flax explain --config=configs/multi30k.py --diff=aiayn_base\n"
            "  python -m t2t_flax explain --workdir=runs/toy --diff=aiayn_base\n"
            f"\npresets: {', '.join(presets())}"
        ),
    )
    of = parser.add_mutually_exclusive_group()
    of.add_argument(
        "--config", metavar="FILE.py[:variant]", help="config file, or the name of a preset"
    )
    of.add_argument("--workdir", metavar="DIR", help="use the config of this run instead")
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--diff", metavar="PRESET", help="list every key whose value differs from this preset"
    )
    what.add_argument(
        "--keys", action="store_true", help="list all keys: value, type, meaning, unit"
    )
    what.add_argument(
        "--presets",
        action="store_true",
        help="list the presets with their sources and published results",
    )
    args, overrides = arguments.parse(parser, argv)
    if args.presets:
        if args.config or args.workdir or overrides:
            raise UserError(
                "--presets lists all presets: leave out --config, --workdir and --config.KEY."
            )
        print("\n".join(_preset_line(name) for name in presets()))
        return 0
    config = _config(args, overrides)
    if config is None and (overrides or not args.keys):
        raise UserError(
            "say what to explain: --config=FILE.py[:variant] or a preset, --workdir=DIR, --keys,"
            " --presets."
        )
    if args.keys:
        print("\n".join(_keys(config or config_lib.Config())))
        return 0
    assert config
    if args.diff:
        print(_difference(config, args.diff))
        return 0
    prepare_process(config)
    from t2t_flax.training.model_summary import describe

    print(describe(config))
    return 0


def _config(args, overrides: dict[str, str]) -> config_lib.Config | None:
    if args.workdir:
        from t2t_flax.evaluation.restore import read_config

        stored = config_lib.to_config_dict(read_config(args.workdir))
        return config_lib.resolve(config_lib.override(stored, overrides))
    return config_lib.load_config(args.config, overrides) if args.config else None


def _preset_line(name: str) -> str:
    entry = find(name)
    return f"{name:22} {entry.source}" + (
        f"\n{'':22} published: {entry.published}" if entry.published else ""
    )


def _difference(config: config_lib.Config, name: str) -> str:
    """Return every key that differs from the preset, by group.

    Keys fixed for a run come first.
    """
    differ = config_lib.differences(config_lib.resolve(preset(name)), config)
    if not differ:
        return f"no difference from {name}"
    lines = [f"{len(differ)} keys differ from {name} ({find(name).source})"]
    for mutable, heading in (
        (False, "fixed once a run has begun"),
        (True, "may change when a run is resumed or evaluated"),
    ):
        group = ""
        part = {k: pair for k, pair in differ.items() if fields()[k].metadata["mutable"] == mutable}
        lines += ["", f"{heading}:"] if part else []
        for key, (theirs, mine) in part.items():
            if key.split(".")[0] != group:
                group = key.split(".")[0]
                lines.append(f"  {group}")
            lines.append(f"    {key:28} {theirs!r} in {name}, {mine!r} here")
    return "\n".join(lines)


def _keys(config: config_lib.Config) -> list[str]:
    lines, group = [], ""
    for name, item in fields().items():
        if name.split(".")[0] != group:
            group = name.split(".")[0]
            lines.append(f"\n{group}")
        value = getattr(config.group(group), item.name)
        changed = "" if value == item.default else f" (default {item.default!r})"
        unit = f" [{item.metadata['unit']}]" if item.metadata["unit"] else ""
        lines.append(
            f"  {name} = {value!r}{changed}{unit}\n      {type_name(item)}: {item.metadata['doc']}"
        )
        kind = item.metadata["kind"]
        lines += [f"      {kind}: never taken from a stored config"] if kind in OF_USER else []
        if needed := conditions().get(name):
            here = " (not here)" if unmet(name, config.value) else ""
            lines.append(f"      read with {' and '.join(when.text for when in needed)}{here}")
    return lines
