"""`serve`: translation over HTTP."""

import functools
import importlib.util
import os
import sys
from collections.abc import Sequence

from t2t_flax.cli import arguments
from t2t_flax.errors import UserError, install_hint

_PACKAGES = ("fastapi", "prometheus_client", "pydantic", "uvicorn")


def run(argv: list[str]) -> int:
    """Exit code 0 after SIGTERM or Ctrl-C, with every request that had come answered; 1 if the device does not end in time."""
    parser = arguments.parser(
        "serve",
        "Translates over HTTP with one or more trained runs: LibreTranslate's API (POST /translate), our own\n"
        "(/api/...), a page at /, metrics for Prometheus at /metrics. The API is described at /docs.",
        epilog="Examples:\n"
        "  python -m t2t_flax serve --workdir=runs/toy\n"
        "  curl http://127.0.0.1:8000/translate --data-urlencode 'q=It is late.' -d source=en -d target=de\n"
        "  ... --workdir=runs/ende --workdir=runs/enfr --best --port=8001\n"
        "  ... --host=0.0.0.0                 other machines may ask, too: there is no login\n"
        "  ... --config.decode.beam_size=1    faster translations",
    )
    parser.add_argument(
        "--workdir",
        required=True,
        action="append",
        metavar="DIR",
        help=f"{arguments.workdir_help()}; may be given several times",
    )
    arguments.add_checkpoint(parser)
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to listen on; default: 127.0.0.1, this machine alone"
    )
    parser.add_argument(
        "--port", type=arguments.count(0, 65535), default=8000, help="default: 8000; 0 = any free one, printed"
    )
    parser.add_argument(
        "--max-batch", type=arguments.count(1, 2**13), metavar="N",
        help="lines translated at once (default: the run's decode.batch_size)",
    )  # fmt: skip
    parser.add_argument(
        "--max-queue", type=arguments.count(1), default=256, metavar="N",
        help="requests that may wait for a model; more are refused with 429 (default: 256)",
    )  # fmt: skip
    parser.add_argument(
        "--max-text-length", type=arguments.count(1), default=20_000, metavar="N",
        help="characters of a request (default: 20000)",
    )  # fmt: skip
    parser.add_argument(
        "--timeout", type=arguments.count(1, 86_400), default=60, metavar="S",
        help="seconds after which a request is answered with 504 and leaves the queue, and within which SIGTERM ends the server "
        "(default: 60)",
    )  # fmt: skip
    parser.add_argument(
        "--health-limit", type=arguments.count(1, 86_400), default=60, metavar="S",
        help="seconds without a right result of the model after which /health fails: more than its longest batch of short lines "
        "takes (default: 60)",
    )  # fmt: skip
    parser.add_argument(
        "--allowed-host", action="append", metavar="NAME",
        help="name by which requests may call the server, *.NAME for those below it; may be given several times (default: "
        "localhost if the server listens on this machine alone, else any)",
    )  # fmt: skip
    parser.add_argument(
        "--cors-origin", action="append", default=[], metavar="URL",
        help="origin whose pages may use the server, such as https://example.org; may be given several times",
    )  # fmt: skip
    args, overrides = arguments.parse(parser, argv)
    _require_packages()
    if args.max_batch:
        overrides.setdefault("decode.batch_size", str(args.max_batch))

    from t2t_flax.decoding.translator import check_decoder
    from t2t_flax.evaluation.restore import load, stored_config
    from t2t_flax.extensions.serving.app import create_app
    from t2t_flax.extensions.serving.batching import BATCH_WAIT, Batcher
    from t2t_flax.extensions.serving.metrics import Metrics
    from t2t_flax.extensions.serving.model import ServedModel
    from t2t_flax.extensions.serving.server import hosts_of, listen, serve, url
    from t2t_flax.extensions.serving.service import Limits

    configs = [stored_config(workdir, overrides) for workdir in args.workdir]
    for config in configs:
        check_decoder(config)
    listening, metrics, models = listen(args.host, args.port), Metrics(), []
    import jax

    # On a CPU each lane computes in its own thread: queued, its batches would wait for programs that another lane compiles.
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    arguments.prepare_to_load(args.workdir[0], overrides)
    for workdir, name, config in zip(args.workdir, model_names(args.workdir), configs, strict=True):

        def restore(workdir: str = workdir):
            return load(workdir, step=args.step, average=args.average, best=args.best, overrides=overrides)

        max_batch = args.max_batch or config.decode.batch_size
        make_batcher = functools.partial(Batcher, max_batch, BATCH_WAIT, args.max_queue)
        models.append(ServedModel(name, config, restore, make_batcher, max_batch, metrics, args.health_limit))
    limits = Limits(max_text_length=args.max_text_length, timeout=args.timeout)
    print(f"listening on {url(listening)}", flush=True)
    print(f"loading {', '.join(model.name for model in models)} ...", file=sys.stderr, flush=True)
    app = create_app(models, limits, metrics, hosts=args.allowed_host or hosts_of(listening), origins=args.cors_origin)
    serve(app, models, listening, limits.timeout)


def model_names(workdirs: Sequence[str]) -> list[str]:
    """The base names of the folders; "-2", "-3" ... are added to make them unique."""
    names: list[str] = []
    for workdir in workdirs:
        base = os.path.basename(os.path.abspath(workdir)).removeprefix("pretrained:") or "run"
        name, number = base, 1
        while name in names:
            number += 1
            name = f"{base}-{number}"
        names.append(name)
    return names


def _require_packages() -> None:
    missing = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise UserError(f"serve needs the package {missing[0].replace('_', '-')}: {install_hint('serve')}")
