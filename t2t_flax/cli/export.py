"""`export`: a trained model for other programs."""

import json
from pathlib import Path

from etils import epath

from t2t_flax.cli import arguments
from t2t_flax.errors import OK, UserError


def run(argv: list[str]) -> int:
    """Exit code 0 when the folder is written."""
    parser = arguments.parser(
        "export",
        "Writes a trained model to a folder that other programs read: CTranslate2, Hugging Face's Marian, or\n"
        "safetensors of the parameters with the config. The tokenizers lie beside it, and a README says how\n"
        "to use it.",
        epilog="Examples:\n"
        "  python -m t2t_flax export --workdir=runs/toy --format=ctranslate2 --output=toy-ct2\n"
        "  python -m t2t_flax export --workdir=runs/toy --best --format=ctranslate2 --quantization=int8 --output=toy-int8\n"
        "  python -m t2t_flax export --workdir=runs/toy --format=huggingface --output=toy-marian\n"
        "  python -m t2t_flax export --workdir=runs/toy --average=3 --format=safetensors --output=toy-safetensors",
    )
    arguments.add_workdir(parser)
    arguments.add_checkpoint(parser)
    parser.add_argument("--format", required=True, choices=("ctranslate2", "huggingface", "safetensors"))
    parser.add_argument(
        "--quantization", metavar="TYPE", help="type of the weights: int8, float16 ...; default: float32"
    )
    parser.add_argument("--output", required=True, metavar="DIR", help="folder to create")
    args, overrides = arguments.parse(parser, argv)
    if Path(args.output).exists():
        raise UserError(f"--output={args.output} already exists: name a new folder.")
    arguments.check_output("--output", args.output, folder=True)

    from t2t_flax.evaluation.restore import stored_config
    from t2t_flax.interop.export import check_export, export

    check_export(stored_config(args.workdir, overrides), args.format, args.quantization)
    loaded = arguments.load_run(args, overrides)
    steps = " and ".join(map(str, loaded.steps))
    export(
        args.output,
        args.format,
        loaded.config,
        loaded.params,
        loaded.tokenizers,
        steps=loaded.steps,
        quantization=args.quantization,
        origin=f"step {steps} of {loaded.workdir.name}",
        scores=_scores(loaded.workdir, loaded.steps),
    )
    print(f"{args.output}: step {steps} of {args.workdir} as {args.format}, {args.quantization or 'float32'}")
    return OK


def _scores(workdir: epath.Path, steps: tuple[int, ...]) -> list[str]:
    """A line for each score of the run's evaluation records of one checkpoint."""
    lines = []
    for path in sorted((workdir / "eval").glob(f"*-{steps[0]}.json")) if len(steps) == 1 else ():
        record = json.loads(path.read_text())
        for name in ("sacrebleu", "chrf"):
            if score := record["scores"].get(name):
                lines.append(
                    f"{name} {score['score']:.2f} on {record['data']['spec']}, signature `{score['signature']}`"
                )
    return lines
