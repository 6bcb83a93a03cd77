"""`serve`: translation over HTTP."""

import argparse
import functools
import importlib.util
import ipaddress
import os
import re
import sys
from collections.abc import Sequence

from t2t_flax.cli import arguments
from t2t_flax.errors import UserError, install_hint
from t2t_flax.registry import ANALYSES, FLAGS

_HOST = re.compile(r"\*|(\*\.)?[\w.-]+|\[[0-9A-Fa-f:.]+\]")
_ORIGIN = re.compile(r"\*|null|[a-z][a-z0-9+.-]*://([a-z0-9.-]+|\[[0-9a-f:.]+\])(:\d+)?")
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
        "  ... --host=0.0.0.0 --api-keys=keys.txt --characters-per-minute=20000   for others, too\n"
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
    _add_operation(parser)
    args, overrides = arguments.parse(parser, argv)
    _require_packages()
    check_operation(args)
    if args.max_batch:
        overrides.setdefault("decode.batch_size", str(args.max_batch))

    from t2t_flax.decoding.translator import check_decoder
    from t2t_flax.evaluation.restore import load, stored_config
    from t2t_flax.extensions.serving.access import Access, Allowance, Keys
    from t2t_flax.extensions.serving.access_log import open_access_log
    from t2t_flax.extensions.serving.app import create_app
    from t2t_flax.extensions.serving.batching import BATCH_WAIT, Batcher
    from t2t_flax.extensions.serving.metrics import Metrics
    from t2t_flax.extensions.serving.model import ServedModel
    from t2t_flax.extensions.serving.server import hosts_of, listen, serve, url
    from t2t_flax.extensions.serving.service import Limits

    configs = [stored_config(workdir, overrides) for workdir in args.workdir]
    for config in configs:
        check_decoder(config)
        if args.split_sentences:
            FLAGS.load("--split-sentences").check(config)
    access = Access(Keys(args.api_key, args.api_keys), Allowance(args.requests_per_minute, args.characters_per_minute))
    access_log = open_access_log(args.access_log) if args.access_log else None
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
        watch = functools.partial(checkpoints_of, workdir, args.best) if args.reload else None
        options = dict(health_limit=args.health_limit, watch=watch, every=args.reload)
        models.append(ServedModel(name, config, restore, make_batcher, max_batch, metrics, **options))
    longest = min(args.max_text_length, args.characters_per_minute or args.max_text_length)
    limits = Limits(max_text_length=longest, timeout=args.timeout)
    print(f"listening on {url(listening)}", flush=True)
    print(f"loading {', '.join(model.name for model in models)} ...", file=sys.stderr, flush=True)
    hosts = args.allowed_host or hosts_of(listening)
    options = dict(access=access, access_log=access_log, split=bool(args.split_sentences))
    app = create_app(models, limits, metrics, hosts=hosts, origins=args.cors_origin, **options)
    serve(app, models, listening, limits.timeout, drain=args.drain, proxies=args.trusted_proxy)


def _add_operation(parser: argparse.ArgumentParser) -> None:
    """Who may use the server, what it writes down, and how it follows the run and ends."""
    parser.add_argument(
        "--allowed-host", action="append", metavar="NAME",
        help="name by which requests may call the server, *.NAME for those below it; may be given several times (default: "
        "localhost if the server listens on this machine alone, else any)",
    )  # fmt: skip
    parser.add_argument(
        "--cors-origin", action="append", default=[], metavar="URL",
        help="origin whose pages may use the server, such as https://example.org, or * for any; may be given several times",
    )  # fmt: skip
    parser.add_argument(
        "--api-key", action="append", default=[], metavar="KEY",
        help="key that requests must have; may be given several times (other users of this machine can see it)",
    )  # fmt: skip
    parser.add_argument(
        "--api-keys",
        metavar="FILE",
        help="keys that requests must have, one in a line, perhaps with a name after a space",
    )
    parser.add_argument(
        "--requests-per-minute", type=arguments.count(1), default=0, metavar="N",
        help="of each key or, without keys, each address; more are refused with 429 (default: any number)",
    )  # fmt: skip
    parser.add_argument(
        "--characters-per-minute", type=arguments.count(1), default=0, metavar="N",
        help="of the texts of each key or address (default: any number)",
    )  # fmt: skip
    parser.add_argument(
        "--trusted-proxy", action="append", default=[], metavar="ADDRESS",
        help="address or network of a reverse proxy, whose X-Forwarded-For is the client's address; may be given several times",
    )  # fmt: skip
    parser.add_argument(
        "--access-log", metavar="FILE", help='a line of JSON for each request, without its text; "-": standard error'
    )
    parser.add_argument(
        "--reload", type=arguments.count(1, 86_400), default=0, nargs="?", const=60, metavar="S",
        help="look for other checkpoints every S seconds (60), and change to them without a pause",
    )  # fmt: skip
    parser.add_argument(
        "--drain", type=arguments.count(0, 3600), default=0, metavar="S",
        help="seconds after SIGTERM for which /ready fails while requests are still taken (default: 0)",
    )  # fmt: skip
    if "sentences" in ANALYSES:
        text = "translate each sentence of the lines of POST /translate on its own"
        parser.add_argument("--split-sentences", action="store_true", help=text)
    else:
        parser.set_defaults(split_sentences=False)


def check_operation(args: argparse.Namespace) -> None:
    """Raises UserError for values that nothing would match, flags that do not go together, and a missing package."""
    for name in args.allowed_host or ():
        if not _HOST.fullmatch(name):
            raise UserError(
                f"--allowed-host={name}: expected a name without a port, *.NAME for those below it, or * for any."
            )
    for origin in args.cors_origin:
        if not _ORIGIN.fullmatch(origin):
            raise UserError(
                f"--cors-origin={origin}: expected https://NAME or https://NAME:PORT without a path, as browsers send it, or *."
            )
    for address in args.trusted_proxy:
        try:
            ipaddress.ip_network(address)
        except ValueError as error:
            raise UserError(
                f"--trusted-proxy={address}: expected an address, or a network such as 10.0.0.0/8: {error}."
            ) from None
    if args.reload and args.step is not None:
        raise UserError("--reload looks for other checkpoints than the one of --step: give one of them.")
    if args.split_sentences:
        ANALYSES.load("sentences")  # its package may be missing


def checkpoints_of(workdir: str, best: bool) -> object:
    """What changes when another checkpoint of a run would be chosen: the steps, or with `best` also their metrics."""
    from etils import epath

    from t2t_flax.model_forms import run_folder
    from t2t_flax.training.checkpoint_files import finished_steps, scheduled_and_metric

    folder = epath.Path(run_folder(workdir)) / "checkpoints"
    if not folder.exists():
        return None
    return scheduled_and_metric(folder) if best else finished_steps(folder)


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
