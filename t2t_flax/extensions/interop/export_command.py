"""`export`: a trained model for other programs."""

import logging

from etils import epath

from t2t_flax.cli import arguments
from t2t_flax.config import Config
from t2t_flax.errors import OK, UserError, first_line
from t2t_flax.extensions.interop import hub
from t2t_flax.extensions.interop.model_card import Score, is_license, scores_of_record
from t2t_flax.files import is_remote, refuse_existing
from t2t_flax.json_file import parse_json

log = logging.getLogger("t2t_flax")


def run(argv: list[str]) -> int:
    """Return exit code 0 when the folder is written."""
    parser = arguments.parser(
        "export",
        "Writes a trained model to a folder that other programs read: CTranslate2, Hugging Face's"
        " Marian, or\nsafetensors of the parameters with the config. The tokenizers lie beside it,"
        " and a README says how\nto use it.",
        epilog=(
            "Examples:\n  python -m t2t_flax export --workdir=runs/toy --format=ctranslate2"
            " --output=toy-ct2\n  python -m t2t_flax export --workdir=runs/toy --best"
            " --format=ctranslate2 --quantization=int8 --output=toy-int8\n  python -m t2t_flax"
            " export --workdir=runs/toy --format=huggingface --output=toy-marian\n  python -m"
            " t2t_flax export --workdir=runs/toy --average=3 --format=safetensors"
            " --output=toy-safetensors\n  python -m t2t_flax export --workdir=runs/toy"
            " --format=huggingface --output=toy-marian --push=hub:USER/toy"
        ),
    )
    arguments.add_workdir(parser)
    arguments.add_checkpoint(parser)
    parser.add_argument(
        "--format", required=True, choices=("ctranslate2", "huggingface", "safetensors")
    )
    parser.add_argument(
        "--quantization",
        metavar="TYPE",
        help="type of the weights: int8, float16 ...; default: float32",
    )
    parser.add_argument("--output", required=True, metavar="DIR", help="folder to create")
    parser.add_argument(
        "--license",
        default="",
        metavar="ID",
        help="licence in the model card, such as apache-2.0 or cc-by-4.0",
    )
    parser.add_argument(
        "--push",
        metavar="hub:USER/NAME",
        help="also upload the folder to the Hugging Face Hub, as a private model",
    )
    parser.add_argument(
        "--public", action="store_true", help="with --push: a model that is new there is public"
    )
    args, overrides = arguments.parse(parser, argv)
    if args.public and not args.push:
        raise UserError("--public is for --push=hub:USER/NAME.")
    if args.license and not is_license(args.license):
        raise UserError(
            f"--license={args.license}: expected the identifier of a licence in small letters, such"
            " as apache-2.0, mit or cc-by-4.0."
        )
    if args.push:
        hub.check_push(args.push)  # check before the export
    if is_remote(args.output):
        raise UserError(
            f"--output={args.output}: name a folder on this machine, and copy it there afterwards."
        )
    refuse_existing(args.output, "--output")
    arguments.check_output("--output", args.output, folder=True)

    from t2t_flax.evaluation.restore import stored_config
    from t2t_flax.extensions.interop.export import check_export, export
    from t2t_flax.training.checkpoint_selection import named_steps

    check_export(stored_config(args.workdir, overrides), args.format, args.quantization)
    loaded = arguments.load_run(args, overrides)
    loaded.check_single("export")
    steps = named_steps(loaded.steps)
    notes = export(
        args.output,
        args.format,
        loaded.config,
        loaded.params,
        loaded.tokenizers,
        steps=loaded.steps,
        quantization=args.quantization,
        origin=f"{loaded.workdir.name}, {steps}",
        scores=_scores(loaded.workdir, loaded.steps, loaded.config),
        license=args.license,
    )
    print(
        f"{args.output}: {steps} of {args.workdir} as {args.format},"
        f" {args.quantization or 'float32'}"
    )
    for note in notes:
        print(f"note: {note}")
    if args.push:
        print(f"pushed: {hub.push(args.output, args.push, public=args.public)}")
    return OK


def _scores(workdir: epath.Path, steps: tuple[int, ...], config: Config) -> list[Score]:
    """Return the scores of these checkpoints in the run's evaluation records.

    Each appears once.

    Args:
        config: config of the exported model.
    """
    scores: dict[Score, None] = {}
    for path in sorted((workdir / "eval").glob("*.json")):
        try:
            record = parse_json(path.read_bytes())
            checkpoint = record["checkpoint"]
            # Not an ensemble's scores.
            if checkpoint["averaged"] == list(steps) and not checkpoint.get("models"):
                scores |= dict.fromkeys(scores_of_record(record, config))
        except (UserError, OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            log.warning(
                "%s is no evaluation record, so the README does not list it: %s",
                path,
                first_line(error),
            )
    return list(scores)
