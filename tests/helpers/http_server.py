"""The real HTTP server of `serve` in a thread, on a free port. Needs the extra `serve` and httpx."""

import contextlib
import dataclasses
import functools
import threading
import time

import httpx

from t2t_flax.extensions.serving.app import create_app
from t2t_flax.extensions.serving.batching import Batcher
from t2t_flax.extensions.serving.metrics import Metrics
from t2t_flax.extensions.serving.model import ServedModel
from t2t_flax.extensions.serving.server import listen, make_server, url
from t2t_flax.extensions.serving.service import Limits


@contextlib.contextmanager
def serving(
    runs,
    *,
    limits=None,
    max_batch=4,
    wait=0.02,
    max_queue=64,
    ready=True,
    health_limit=60.0,
    max_connections=512,
    drain=0.0,
    proxies=(),
    watch=None,
    **keys,
):
    """A running server of `{name: run}`; with `ready`, once its models are warmed up. watch: of `ServedModel`, asked often; then the
    values of `runs` are functions that return a run. keys: of `create_app`.
    """
    metrics, failed, all_ready = Metrics(), threading.Event(), threading.Semaphore(0)
    make_batcher = functools.partial(Batcher, max_batch, wait, max_queue)
    models = [
        ServedModel(name, load().config, load, make_batcher, 1, metrics, health_limit, watch, every=0.01)
        for name, load in (runs if watch else {name: lambda run=run: run for name, run in runs.items()}).items()
    ]
    limits = limits or Limits(timeout=120)
    app = create_app(models, limits, metrics, **keys)
    server = make_server(app, limits.timeout, max_connections, drain=drain, proxies=proxies)
    listening = listen("127.0.0.1", 0)
    thread = threading.Thread(target=server.run, args=([listening],))
    running = Running(url(listening), server, thread, models, failed)
    thread.start()
    try:
        for model in models:
            model.start(lambda _: all_ready.release(), failed.set)
        for _ in models if ready else ():
            assert all_ready.acquire(timeout=250), [model.error for model in models]
        yield running
    finally:
        server.should_exit = server.force_exit = True
        thread.join(60)
        for model in models:
            model.stop()


@dataclasses.dataclass
class Running:
    url: str
    server: object
    thread: threading.Thread
    models: list
    failed: threading.Event

    def end(self):
        self.server.end()

    def get(self, path, **keys):
        return httpx.get(self.url + path, timeout=150, **keys)

    def post(self, path, json=None, **keys):
        return httpx.post(self.url + path, json=json, timeout=150, **keys)


def with_two(run):
    """The run with the search that requests of several hypotheses share."""
    decode = dataclasses.replace(run.config.decode, n_best=run.config.decode.beam_size)
    return dataclasses.replace(run, config=dataclasses.replace(run.config, decode=decode))


def wait_for(condition, what, seconds=200.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"no {what} after {seconds} s"
        time.sleep(0.01)
