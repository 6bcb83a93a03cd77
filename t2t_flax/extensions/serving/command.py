"""`serve`: translation over HTTP."""

import argparse
import functools
import importlib.util
import sys
from pathlib import Path

from t2t_flax.cli import arguments
from t2t_flax.errors import UserError, install_hint
from t2t_flax.registry import FLAGS

_PACKAGES = ("fastapi", "python_multipart", "prometheus_client", "pydantic", "uvicorn")


def run(argv: list[str]) -> int:
    """Return 0 after SIGTERM, SIGHUP or Ctrl-C, with all requests answered.

    1 if the device does not end in time.
    """
    args, overrides = arguments.parse(_parser(), argv)
    missing = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise UserError(
            f"serve needs the package {missing[0].replace('_', '-')}: {install_hint('serve')}"
        )
    if args.max_batch:
        overrides.setdefault("decode.batch_size", str(args.max_batch))
    keys = read_keys(args.api_keys) if args.api_keys else []

    from t2t_flax.decoding.translator import check_decoder
    from t2t_flax.evaluation.restore import load, stored_config
    from t2t_flax.extensions.serving.app import create_app
    from t2t_flax.extensions.serving.metrics import Metrics
    from t2t_flax.extensions.serving.model import ServedModel, model_names
    from t2t_flax.extensions.serving.server import hosts_of, listen, serve, url
    from t2t_flax.extensions.serving.service import Settings
    from t2t_flax.training import precision

    configs = [stored_config(workdir, overrides) for workdir in args.workdir]
    for config in configs:
        check_decoder(config)
        if args.split_sentences:
            FLAGS.load("--split-sentences").check(config)
    listening, metrics, models = listen(args.host, args.port), Metrics(), []
    import jax

    # On a CPU each lane computes in its own thread: queued, its batches would wait for programs
    # that another lane compiles.
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    arguments.prepare_to_load(args.workdir[0], overrides)
    for workdir, name, config in zip(args.workdir, model_names(args.workdir), configs, strict=True):
        restore = functools.partial(
            load, workdir, **arguments.checkpoint(args), overrides=overrides
        )
        limits = dict(max_queue=args.max_queue, health_limit=args.health_limit)
        models.append(
            ServedModel(
                name, config, restore, metrics, max_batch=config.decode.batch_size, **limits
            )
        )
        if faster := precision.advice(config, decoding=True):
            print(faster, file=sys.stderr, flush=True)
    settings = Settings(
        max_text_length=args.max_text_length,
        timeout=args.timeout,
        keys=keys,
        max_client_requests=args.max_client_requests,
        hosts=hosts_of(listening),
        origins=args.cors_origin,
        split_sentences=args.split_sentences,
    )
    print(f"listening on {url(listening)}", flush=True)
    print(f"loading {', '.join(model.name for model in models)} ...", file=sys.stderr, flush=True)
    return serve(
        functools.partial(create_app, models, settings, metrics), models, listening, args.timeout
    )


def read_keys(path: str) -> list[str]:
    """Return the keys in a file, one a line. Raises UserError."""
    try:
        lines = Path(path).read_text("utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--api-keys={path} cannot be read: {error}.") from None
    keys = []
    for number, line in enumerate(map(str.strip, lines), 1):
        if not line or line.startswith("#"):
            continue
        if not line.isascii() or not line.isprintable() or " " in line:  # do not log the key itself
            raise UserError(
                f"--api-keys={path} line {number} is no key: write letters, digits and signs of"
                " ASCII."
            )
        keys.append(line)
    if not keys:
        raise UserError(f"--api-keys={path} has no key: write one a line.")
    return keys


def _parser() -> argparse.ArgumentParser:
    parser = arguments.parser(
        "serve",
        "Translates over HTTP with one or more trained runs: LibreTranslate's API (POST"
        " /translate), our own\n(/api/...), a page at /, metrics for Prometheus at /metrics. The"
        " API is described at /docs.",
        epilog=(
            "Examples:\n  python -m t2t_flax serve --workdir=runs/toy\n  curl"
            " http://127.0.0.1:8000/translate --data-urlencode 'q=It is late.' -d source=en -d"
            " target=de\n  ... --workdir=runs/ende --workdir=runs/enfr --best --port=8001\n  ..."
            " --config.decode.beam_size=1    faster translations"
        ),
    )
    parser.add_argument(
        "--workdir",
        required=True,
        action="append",
        metavar="DIR",
        help=f"{arguments.workdir_help()}; may be given several times",
    )
    arguments.add_checkpoint(parser)
    add = parser.add_argument
    add(
        "--host",
        default="127.0.0.1",
        help="address to listen on; default: 127.0.0.1, this machine alone",
    )
    add(
        "--port",
        type=arguments.count(0, 65535),
        default=8000,
        help="default: 8000; 0 = any free one, printed",
    )
    add(
        "--max-batch", type=arguments.count(1, 2**13), metavar="N",
        help="lines translated at once (default: the run's decode.batch_size)",
    )  # fmt: skip
    add(
        "--max-queue", type=arguments.count(1), default=256, metavar="N",
        help="requests that may wait for a model; more are refused with 429 (default: 256)",
    )  # fmt: skip
    add(
        "--max-client-requests", type=arguments.count(1), default=0, metavar="N",
        help="requests of a key, or without keys an address, at the same time; more are refused"
        " with 429 (default: any)",
    )  # fmt: skip
    add(
        "--max-text-length", type=arguments.count(1), default=20_000, metavar="N",
        help="characters of a request (default: 20000)",
    )  # fmt: skip
    add(
        "--timeout", type=arguments.count(1, 86_400), default=60, metavar="S",
        help="seconds after which a request is answered with 504, and which it has after SIGTERM"
        " (default: 60)",
    )  # fmt: skip
    add(
        "--health-limit", type=arguments.count(1, 86_400), default=60, metavar="S",
        help="seconds of a batch of short lines after which /health fails (default: 60)",
    )  # fmt: skip
    add("--api-keys", metavar="FILE", help="keys of which requests must have one, one a line")
    add(
        "--cors-origin", action="append", default=[], metavar="URL",
        help="origin whose pages may use the server, such as https://example.org, or *; may be"
        " given several times",
    )  # fmt: skip
    text = "translate each sentence of the lines of POST /translate on its own"
    add("--split-sentences", action="store_true", help=text)
    return parser
