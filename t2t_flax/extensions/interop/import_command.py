"""`import`: turn another program's trained model into a run."""

import argparse
import shlex

from t2t_flax.cli import arguments
from t2t_flax.errors import OK, UserError


def _new_language(text: str) -> tuple[str, str]:
    new, equals, like = text.partition("=")
    if not (new and equals and like):
        raise argparse.ArgumentTypeError(f"{text!r}: expected NEW=LIKE, as in hsb_Latn=ces_Latn")
    return new, like


def run(argv: list[str]) -> int:
    """Return exit code 0 when the workdir is written."""
    parser = arguments.parser(
        "import",
        "Reads a trained model of Hugging Face (OPUS-MT, M2M-100, NLLB), of CTranslate2, or of"
        " `export`, and writes it as a\nworkdir that translate, evaluate, score, attend, export and"
        " finetuning.init_from accept like a run's.\nWhat is read is recognized by its files.",
        epilog=(
            "Examples:\n  python -m t2t_flax import --from=opus-mt-en-de --workdir=runs/opus\n "
            " python -m t2t_flax import --from=hub:Helsinki-NLP/opus-mt-en-de --workdir=runs/opus\n"
            "  python -m t2t_flax import --from=hub:facebook/nllb-200-distilled-600M"
            " --workdir=runs/nllb\n"
            "  python -m t2t_flax import --from=toy-ct2 --workdir=runs/from-ct2\n  python -m"
            " t2t_flax import --from=ct2 --num-heads=8 --source-language=ar --target-language=en"
            " --workdir=runs/aren"
        ),
    )
    parser.add_argument(
        "--from",
        dest="source",
        required=True,
        metavar="DIR|FILE|hub:USER/NAME[@REVISION]",
        help="folder of the model, its file of weights, or a model on the Hugging Face Hub",
    )
    arguments.add_workdir(parser, "folder to create")
    parser.add_argument(
        "--source-language", default="", metavar="CODE", help="if the folder does not say it"
    )
    parser.add_argument(
        "--target-language", default="", metavar="CODE", help="if the folder does not say it"
    )
    parser.add_argument(
        "--new-language",
        action="append",
        default=[],
        type=_new_language,
        metavar="NEW=LIKE",
        help="add the language NEW to M2M-100 or NLLB; its token starts with the embedding of LIKE;"
        " may be repeated",
    )
    parser.add_argument(
        "--num-heads",
        type=arguments.count(1),
        default=0,
        metavar="N",
        help="attention heads, if the weights do not say it",
    )
    args, overrides = arguments.parse(parser, argv)
    arguments.check_output("--workdir", args.workdir, folder=True)

    from t2t_flax import config as config_lib
    from t2t_flax.extensions.shared.directions import model_directions
    from t2t_flax.files import check_workdir, refuse_existing
    from t2t_flax.model_forms import check_writable
    from t2t_flax.process_setup import prepare_process

    check_workdir(args.workdir)
    prepare_process(config_lib.resolve(config_lib.override(config_lib.default_config(), overrides)))
    from t2t_flax.config.overrides import check_same_model
    from t2t_flax.extensions.interop.hub import is_hub, pull
    from t2t_flax.extensions.interop.import_model import read_model
    from t2t_flax.extensions.interop.imported import move_to_jax
    from t2t_flax.extensions.shared.parameters_run import write_params_run
    from t2t_flax.training.checksums import array_shapes, shape_differences
    from t2t_flax.training.train_state import count_params, make_model, parameter_shapes

    check_writable(args.workdir, "give a new folder as --workdir")
    refuse_existing(args.workdir, "--workdir")
    new = [code for code, _ in args.new_language]
    if repeated := next((code for code in new if new.count(code) > 1), ""):
        raise UserError(f"--new-language: {repeated} is named twice.")
    languages = args.source_language, args.target_language
    source = pull(args.source) if is_hub(args.source) else args.source
    model = read_model(
        source,
        num_heads=args.num_heads,
        languages=languages,
        new_languages=dict(args.new_language),
    )
    config = config_lib.resolve(
        config_lib.override(config_lib.to_config_dict(model.config), overrides)
    )
    check_same_model(model.config, config, args.source)
    expected = parameter_shapes(make_model(config, *model.tokenizers.vocab_sizes))
    if differ := shape_differences(array_shapes(model.params), array_shapes(expected)):
        raise UserError(
            f"{args.source} does not hold the parameters of its config and tokenizer: {differ}."
        )
    origin = {"step": model.step, "imported": model.kind}
    move_to_jax(model.params)
    write_params_run(
        args.workdir,
        config,
        model.tokenizers,
        model.params,
        origin,
        flag="--workdir",
        command="import",
    )
    c, sizes = config.model, model.tokenizers.vocab_sizes
    count = count_params(model.params, config, *sizes)
    directions, _ = model_directions(config, model.tokenizers.source)
    more = f" and {len(directions) - 10} more directions" if len(directions) > 10 else ""
    print(
        f"{args.workdir}: {model.kind}, {', '.join(map(str, directions[:10]))}{more}, {count:,}"
        f" parameters, {c.num_encoder_layers} + {c.num_decoder_layers} layers, d_model {c.d_model},"
        f" vocabulary {' and '.join(f'{size:,}' for size in sorted(set(sizes)))}"
    )
    for note in model.notes:
        print(f"note: {note}")
    symbols = model.tokenizers.source.target_languages
    flags = [f"--target-language={language}" for language in list(symbols)[:1]]
    if model.tokenizers.source.source_languages:
        flags += [f"--source-language={directions[0].source}"]
    choice = f" {' '.join(flags)} (or another of its languages)" if flags else ""
    start = ["python", "-m", "t2t_flax"]
    translate = shlex.join([*start, "translate", f"--workdir={args.workdir}"])
    train_flags = [
        f"--config={args.workdir}/config.json",
        f"--config.finetuning.init_from={args.workdir}",
    ]
    print(
        f"Translate: {translate}{choice}. Fine-tune: {shlex.join([*start, 'train', *train_flags])}"
        " --config.data.train=... --workdir=NEW"
    )
    return OK
