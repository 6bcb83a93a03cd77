"""Runs that write to trackers, and a tracker whose server is a dict."""

import struct
from types import SimpleNamespace

from etils import epath
from helpers.configs import small_config

from t2t_flax.distributed.coordination import ProcessGroup
from t2t_flax.extensions.trackers import hook
from t2t_flax.training.hooks import call_hooks
from t2t_flax.training.parts import TrainProgress
from t2t_flax.training.progress import MetricsWriter


def config_of(names: str, group: str = "", **optimizer):
    return small_config(trackers=dict(names=names, group=group), optimizer=optimizer)


class Memory:
    """A tracker whose server is a dict: {id: [(step, name, value)]}."""

    def __init__(self):
        self.runs, self.opened, self.fails_at = {}, [], None

    def open(self, run, id):
        self.opened.append((run.name, run.group, id))
        tracker = MemoryRun(self, id if id in self.runs else f"run{len(self.runs)}")
        self.runs.setdefault(tracker.id, [])
        return tracker

    def sent(self, id="run0"):
        return [(step, name) for step, name, _ in self.runs[id]]


class MemoryRun:
    place = ""

    def __init__(self, server, id):
        self.server, self.id, self.closed = server, id, False

    def write(self, step, values):
        if self.server.fails_at == step:
            raise ConnectionError("the server is gone")
        self.server.runs[self.id] += [(step, name, value) for name, value in values.items()]

    def close(self):
        self.closed = True


def write_run(workdir, config, first, last, *, resume=None, close=True, scores=None):
    """Log updates first to last, every second one with an evaluation, from checkpoint `resume`."""
    resume = first - 1 if resume is None else resume
    writer = MetricsWriter(workdir, resume_step=resume)
    run = SimpleNamespace(config=config, workdir=epath.Path(workdir))
    trackers = hook.hooks(run, TrainProgress(step=resume), ProcessGroup())

    def log(step, values):
        writer.write(step, values)
        call_hooks(trackers, "log", step, values)

    for step in range(first, last + 1):
        log(step, {"loss": 1.0 / step, "seconds": {"step": 0.1}})
        if step % 2 == 0:
            log(step, {"valid_nll": 2.0 / step, "note": "text"})
    writer.close()
    if close:
        call_hooks(trackers, "end", last, scores or {})
    return trackers


def expected(last):
    return sorted(
        [(step, "loss") for step in range(1, last + 1)]
        + [(step, "valid_nll") for step in range(2, last + 1, 2)]
    )


def board(workdir):
    """Return {(name, step): value} of the event files, as TensorBoard shows them.

    A restart drops the values at or after its step.
    """
    from tensorboardX.proto.event_pb2 import Event, SessionLog

    values = {}
    for file in sorted(
        (workdir / "tensorboard").iterdir(), key=lambda path: path.stat().st_mtime_ns
    ):
        data, at = file.read_bytes(), 0
        while at < len(data):
            (size,) = struct.unpack_from("<Q", data, at)
            event = Event.FromString(data[at + 12 : at + 12 + size])
            at += 12 + size + 4
            if event.session_log.status == SessionLog.START:
                values = {key: value for key, value in values.items() if key[1] < event.step}
            for value in event.summary.value:
                assert (value.tag, event.step) not in values, "twice"
                values[value.tag, event.step] = value.simple_value
    return values
