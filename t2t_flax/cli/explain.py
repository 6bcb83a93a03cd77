"""`explain`: what a run will be, in what it leaves a preset, and every config key."""

from t2t_flax import config as config_lib
from t2t_flax.cli import arguments
from t2t_flax.config.overrides import type_name
from t2t_flax.config.presets import PRESETS, find, preset
from t2t_flax.config.schema import fields
from t2t_flax.errors import UserError
from t2t_flax.process_setup import prepare_process


def run(argv: list[str]) -> int:
    """Exit code 0 when it was explained; --diff says the same with and without differences."""
    parser = arguments.parser(
        "explain",
        "Says what a run of a config will be: parameters by group, FLOPs, batches, learning rates, memory.",
        epilog="Examples:\n"
        "  python -m t2t_flax explain --config=configs/wmt14_ende.py:big\n"
        "  python -m t2t_flax explain --config=configs/multi30k.py --diff=aiayn_base\n"
        "  python -m t2t_flax explain --workdir=runs/toy --diff=aiayn_base\n"
        f"\npresets: {', '.join(PRESETS)}",
    )
    parser.add_argument("--config", metavar="FILE.py[:variant]", help="config file, or the name of a preset")
    parser.add_argument("--workdir", metavar="DIR", help="the config of this run instead")
    parser.add_argument("--diff", metavar="PRESET", help="list every key in which the config leaves this preset")
    parser.add_argument("--keys", action="store_true", help="list all keys: value, type, meaning, unit")
    parser.add_argument("--presets", action="store_true", help="list the presets with their sources and results")
    args, overrides = arguments.parse(parser, argv)
    _refuse_without_effect(args, overrides)
    if args.presets:
        print("\n".join(_preset_line(name) for name in PRESETS))
        return 0
    config = _config(args, overrides)
    if args.keys:
        print("\n".join(_keys(config or config_lib.Config())))
        return 0
    if config is None:
        raise UserError(
            "say what to explain: --config=FILE.py[:variant] or a preset, --workdir=DIR, --keys, --presets."
        )
    if args.diff:
        print(_difference(config, args.diff))
        return 0
    prepare_process(config)
    from t2t_flax.training.model_summary import describe

    print(describe(config))
    return 0


def _refuse_without_effect(args, overrides: dict[str, str]) -> None:
    """Raises UserError where one of the flags would silently do nothing."""
    what = [name for name in ("diff", "keys", "presets") if getattr(args, name)]
    if len(what) > 1:
        raise UserError(f"--{what[0]} and --{what[1]} are two questions: ask them one after the other.")
    if args.presets and (args.config or args.workdir or overrides):
        raise UserError(
            "--presets lists all presets, whatever the config: leave out --config, --workdir and --config.KEY."
        )
    if not args.config and not args.workdir and (overrides or args.diff):
        given = "--diff" if args.diff else f"--config.{next(iter(overrides))}"
        raise UserError(f"{given} is about a config: give --config=FILE.py[:variant] or a preset, or --workdir=DIR.")


def _config(args, overrides: dict[str, str]) -> config_lib.Config | None:
    if args.config and args.workdir:
        raise UserError("give --config or --workdir, not both.")
    if args.workdir:
        from t2t_flax.evaluation.restore import read_config

        stored = config_lib.to_config_dict(read_config(args.workdir))
        return config_lib.resolve(config_lib.override(stored, overrides))
    return config_lib.load_config(args.config, overrides) if args.config else None


def _preset_line(name: str) -> str:
    found = find(name)
    return f"{name:22} {found.source}" + (f"\n{'':22} published: {found.published}" if found.published else "")


def _difference(config: config_lib.Config, name: str) -> str:
    """Every key in which the config leaves the preset, by group: what a run keeps throughout, then the rest."""
    differ = config_lib.differences(config_lib.resolve(preset(name)), config)
    if not differ:
        return f"no difference from {name}"
    lines = [f"{len(differ)} keys differ from {name} ({find(name).source})"]
    for live, heading in (
        (False, "fixed once a run has begun"),
        (True, "may change when a run goes on, or is evaluated"),
    ):
        group = ""
        part = {k: pair for k, pair in differ.items() if fields()[k].metadata["mutable"] == live}
        lines += ["", f"{heading}:"] if part else []
        for key, (theirs, mine) in part.items():
            if key.split(".")[0] != group:
                group = key.split(".")[0]
                lines.append(f"  {group}")
            lines.append(f"    {key:28} {theirs!r} there, {mine!r} here")
    return "\n".join(lines)


def _keys(config: config_lib.Config) -> list[str]:
    lines, group = [], ""
    for name, item in fields().items():
        if name.split(".")[0] != group:
            group = name.split(".")[0]
            lines.append(f"\n{group}")
        value = getattr(getattr(config, group), item.name)
        changed = "" if value == item.default else f" (default {item.default!r})"
        unit = f" [{item.metadata['unit']}]" if item.metadata["unit"] else ""
        lines.append(f"  {name} = {value!r}{changed}{unit}\n      {type_name(name)}: {item.metadata['doc']}")
    return lines
