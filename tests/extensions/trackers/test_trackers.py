"""Experiment trackers: each client in its real offline mode, resuming, groups, and clients that fail."""

import json
import os
import struct
import threading
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
from etils import epath
from helpers.configs import small_config
from helpers.runs import start, tiny_run

from t2t_flax.config import resolve
from t2t_flax.errors import UserError
from t2t_flax.extensions.storage.mirror import Mirror
from t2t_flax.extensions.trackers import NAMES, Trackers, hook
from t2t_flax.extensions.trackers import clients as clients_lib
from t2t_flax.extensions.trackers.clients import without_credentials
from t2t_flax.process_setup import RUNS_FOLDER
from t2t_flax.training import loop
from t2t_flax.training.progress import GrowingFiles, MetricsWriter, read_metrics

DAMAGED = "not JSON"


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


@pytest.fixture(autouse=True)
def no_thread_stays():
    """A thread that a test left behind would log into the next one."""
    before = threading.enumerate()
    yield
    for thread in threading.enumerate():
        if thread.name.startswith("tracker-") and thread not in before:
            thread.join(60)


@pytest.fixture
def memory(monkeypatch):
    server = Memory()
    monkeypatch.setitem(hook.CLIENTS, "wandb", server.open)
    return server


def write_run(workdir, config, first, last, *, resume=None, close=True, scores=None):
    """Updates first to last with an evaluation after every second, after a checkpoint at `resume`."""
    resume = first - 1 if resume is None else resume
    writer = MetricsWriter(workdir, resume_step=resume)
    trackers = hook.TrackersHook(config, epath.Path(workdir))
    trackers.on_start(None, SimpleNamespace(step=resume))

    def log(step, values):
        writer.write(step, values)
        trackers.on_log(step, values)

    for step in range(first, last + 1):
        log(step, {"loss": 1.0 / step, "seconds": {"step": 0.1}})
        if step % 2 == 0:
            log(step, {"valid_nll": 2.0 / step, "note": "text"})
    writer.close()
    if close:
        trackers.on_end(last, scores or {})
    return trackers


def expected(last):
    return sorted(
        [(step, "loss") for step in range(1, last + 1)] + [(step, "valid_nll") for step in range(2, last + 1, 2)]
    )


def test_every_tracker_of_the_config_has_a_row():
    assert tuple(hook.CLIENTS) == NAMES
    assert Trackers(" tensorboard, mlflow,,mlflow ").each() == ("tensorboard", "mlflow") and Trackers("").each() == ()
    with pytest.raises(UserError, match="there is no tracker 'wandbb'. Did you mean 'wandb'?"):
        resolve({"trackers": {"names": "wandbb"}})


def test_missing_package_is_reported_before_training(monkeypatch):
    monkeypatch.setitem(hook.MODULES, "wandb", ("no_such_package",))
    with pytest.raises(UserError, match=r"config.trackers.names = wandb needs .* pip install -e '\.\[wandb\]'"):
        hook.check_installed(config_of("wandb"))
    hook.check_installed(config_of(""))


@pytest.mark.parametrize(("killed_at", "checkpoint"), [(5, 4), (6, 2), (6, 6)])
def test_resumed_run_sends_each_number_once(tmp_path, memory, killed_at, checkpoint):
    write_run(tmp_path, config_of("wandb"), 1, killed_at)
    write_run(tmp_path, config_of("wandb"), checkpoint + 1, 8)
    assert sorted(memory.sent()) == expected(8) and list(memory.runs) == ["run0"]
    assert memory.opened == [(tmp_path.name, None, ""), (tmp_path.name, None, "run0")]


@pytest.mark.smoke
def test_what_a_killed_run_had_queued_is_sent_when_it_resumes(tmp_path, memory, monkeypatch):
    opened = threading.Event()
    monkeypatch.setitem(hook.CLIENTS, "wandb", lambda run, id: opened.wait(30))
    write_run(tmp_path, config_of("wandb"), 1, 6, close=False)  # killed while the tracker still opened
    monkeypatch.setitem(hook.CLIENTS, "wandb", memory.open)
    write_run(tmp_path, config_of("wandb"), 5, 8)
    assert sorted(memory.sent()) == expected(8)
    opened.set()


def test_tracker_that_fails_is_reported_once_and_continues_with_the_next_start(tmp_path, memory, caplog):
    memory.fails_at = 3
    write_run(tmp_path, config_of("wandb"), 1, 6)
    assert caplog.text.count("wandb failed and is dropped") == 1 and "the server is gone" in caplog.text
    assert sorted(memory.sent()) == expected(2)
    assert [line["step"] for line in read_metrics(tmp_path)] == [1, 2, 2, 3, 4, 4, 5, 6, 6]
    memory.fails_at = None
    write_run(tmp_path, config_of("wandb"), 5, 8)
    assert sorted(memory.sent()) == expected(8)


def test_tracker_that_cannot_be_opened_stops_nothing(tmp_path, monkeypatch, caplog):
    def no_network(run, id):
        raise SystemExit("no network")

    monkeypatch.setitem(hook.CLIENTS, "wandb", no_network)
    write_run(tmp_path, config_of("wandb,tensorboard"), 1, 3)
    assert caplog.text.count("no network") == 1
    assert sorted(board(tmp_path)) == [("loss", 1), ("loss", 2), ("loss", 3), ("valid_nll", 2)]


def test_tracker_that_hangs_delays_neither_the_run_nor_its_end(tmp_path, monkeypatch, caplog):
    hangs = threading.Event()
    monkeypatch.setitem(hook.CLIENTS, "wandb", lambda run, id: hangs.wait(60))
    monkeypatch.setattr(hook, "CLOSE_SECONDS", 0.1)
    write_run(tmp_path, config_of("wandb"), 1, 200)
    assert "wandb has not taken everything" in caplog.text and not hangs.is_set()
    assert len(read_metrics(tmp_path)) == 300
    hangs.set()


def test_run_that_starts_over_is_a_new_run_of_the_tracker(tmp_path, memory):
    write_run(tmp_path, config_of("wandb"), 1, 3)
    write_run(tmp_path, config_of("wandb"), 1, 4)  # there was no checkpoint
    assert sorted(memory.sent("run1")) == expected(4)


@pytest.mark.parametrize("text", [DAMAGED, "[]", '{"id": 3, "sent": {}}', '{"id": "gone", "sent": {"loss": 9}}'])
def test_damaged_notes_and_deleted_runs_start_a_new_one(tmp_path, memory, text):
    write_run(tmp_path, config_of("wandb"), 1, 4)
    (tmp_path / "trackers" / "wandb.json").write_text(text)
    write_run(tmp_path, config_of("wandb"), 5, 6)
    assert sorted(memory.sent("run1")) == expected(6), "with the lines so far"


def test_tracker_named_later_gets_the_lines_so_far(tmp_path, memory):
    write_run(tmp_path, config_of(""), 1, 4)
    write_run(tmp_path, config_of("wandb"), 5, 6)
    assert sorted(memory.sent()) == expected(6)


def test_failed_tensorboard_does_not_block_the_run(tmp_path, caplog, monkeypatch):
    """Its writer thread dies when the disk is full, and its queue holds only ten values."""
    from tensorboardX.event_file_writer import EventsWriter

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(EventsWriter, "flush", full)
    monkeypatch.setattr(clients_lib, "FLUSH_SECONDS", 0)
    monkeypatch.setattr("threading.excepthook", lambda _: None)
    before = threading.enumerate()
    write_run(tmp_path, config_of("tensorboard"), 1, 200)
    left = [t for t in threading.enumerate() if t.name.startswith("tracker") and t not in before]
    assert len(read_metrics(tmp_path)) == 300 and not left
    assert caplog.text.count("tensorboard") == 1


def board(workdir):
    """{(name, step): value} of the event files, as TensorBoard shows them: a restart drops what lies at or after its step."""
    from tensorboardX.proto.event_pb2 import Event, SessionLog

    values = {}
    for file in sorted((workdir / "tensorboard").iterdir(), key=lambda path: path.stat().st_mtime_ns):
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


def wandb_records(workdir):
    """The records of all offline parts, in order: a log of 32 KB blocks, LevelDB's form."""
    import wandb
    from wandb.proto.wandb_internal_pb2 import Record

    wandb.teardown()  # its process writes the end of a file after the client has been told that it is there
    for file in sorted((workdir / "wandb").glob("offline-run-*/*.wandb")):
        data, at, record = file.read_bytes(), 7, b""
        while at + 7 <= len(data):
            if 32768 - at % 32768 < 7:  # filled up
                at += 32768 - at % 32768
                continue
            _, size, kind = struct.unpack_from("<IHB", data, at)
            record += data[at + 7 : at + 7 + size]
            at += 7 + size
            if kind in (1, 4):  # whole, or the last part
                yield Record.FromString(record)
                record = b""


def read_wandb(workdir):
    values, runs = {}, []
    for record in wandb_records(workdir):
        if record.HasField("run"):
            runs.append(record.run)
        if record.HasField("history"):
            items = {(item.key or item.nested_key[0]): json.loads(item.value_json) for item in record.history.item}
            for name, value in items.items():
                if name != "step" and not name.startswith("_"):
                    assert (name, items["step"]) not in values, "twice"
                    values[name, items["step"]] = value
    assert len({run.run_id for run in runs}) == 1
    config = {(item.key or item.nested_key[0]): json.loads(item.value_json) for item in runs[0].config.update}
    return values, runs[0].run_group, config


def read_mlflow(workdir):
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{Path(os.environ.get(RUNS_FOLDER, workdir)) / 'mlflow.db'}")
    run = client.get_run(json.loads((workdir / "trackers/mlflow.json").read_text())["id"])
    assert run.info.status == "FINISHED" and run.info.run_name == workdir.name
    history = [m for name in run.data.metrics for m in client.get_metric_history(run.info.run_id, name)]
    values = {(m.key, m.step): m.value for m in history}
    assert len(values) == len(history), "twice"
    return values, run.data.tags.get("group", ""), run.data.params


def read_trackio(workdir):
    from trackio.sqlite_storage import SQLiteStorage

    name = json.loads((workdir / "trackers/trackio.json").read_text())["id"]
    values = {}
    for line in SQLiteStorage.get_logs("t2t_flax", name):
        for metric, value in line.items():
            if metric not in ("step", "timestamp"):
                assert (metric, line["step"]) not in values, "twice"
                values[metric, line["step"]] = value
    config = SQLiteStorage.get_run_config("t2t_flax", name)
    return values, config["_Group"] or "", config


READ = {
    "tensorboard": lambda workdir: (board(workdir), None, None),
    "wandb": read_wandb,
    "mlflow": read_mlflow,
    "trackio": read_trackio,
}


@pytest.fixture(scope="module")
def clients(tmp_path_factory):
    """No login, no network, no folder of the user; trackio reads its variable when it is imported."""
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(home))
        patch.setenv("TRACKIO_DIR", str(home / "trackio"))
        for name in ("WANDB_API_KEY", "WANDB_MODE", "NETRC", RUNS_FOLDER, "MLFLOW_TRACKING_URI", "TRACKIO_SPACE_ID"):
            patch.delenv(name, raising=False)
        yield home


@pytest.mark.parametrize("name", NAMES)
def test_tracker_has_each_number_once_after_a_resume_with_the_test_scores(name, tmp_path, clients):
    for module in hook.MODULES.get(name, (name,)):
        pytest.importorskip(module)
    workdir, config = epath.Path(tmp_path / "lr_scale=2,seed=0"), config_of(name, "sweep-a", lr_scale=2.0)
    workdir.mkdir()
    write_run(workdir, config, 1, 5)
    write_run(workdir, config, 3, 6, scores={"test_sacrebleu": 27.5, "test_chrf++": 51.0})
    values, group, settings = READ[name](Path(workdir))
    plus = "test_chrf__" if name in ("tensorboard", "mlflow") else "test_chrf++"
    wanted = {(metric, step): (1.0 if metric == "loss" else 2.0) / step for step, metric in expected(6)}
    wanted |= {("test_sacrebleu", 6): 27.5, (plus, 6): 51.0}
    assert values == pytest.approx(wanted)
    if name != "tensorboard":
        assert group == "sweep-a" and float(settings["optimizer.lr_scale"]) == 2.0


@pytest.mark.parametrize("name", NAMES[2:])
def test_trials_of_a_sweep_share_a_group_and_a_store(name, tmp_path, clients, monkeypatch):
    for module in hook.MODULES.get(name, (name,)):
        pytest.importorskip(module)
    monkeypatch.setenv(RUNS_FOLDER, str(tmp_path))
    folders = [tmp_path / "trials" / f"lr_scale={scale}" for scale in (1, 2)]
    runs = []
    for scale, folder in enumerate(folders, 1):  # at the same time
        folder.mkdir(parents=True)
        config = config_of(name, lr_scale=float(scale))
        runs.append(write_run(folder, config, 1, 2, close=False))
    for run in runs:
        run.on_end(2, {})
    for scale, folder in enumerate(folders, 1):
        values, group, settings = READ[name](folder)
        assert sorted((step, metric) for metric, step in values) == expected(2)
        assert group == tmp_path.name and float(settings["optimizer.lr_scale"]) == scale
    assert not any((folder / "mlflow.db").exists() for folder in folders)


def tracked_run(folder):
    folder.mkdir()
    return clients_lib.TrackedRun(epath.Path(folder), folder, config_of("mlflow"), 0)


def test_mlflow_server_where_another_run_makes_the_experiment_first(tmp_path, clients, monkeypatch):
    """Without a lock, which a server that does not answer would hold."""
    tracking, exceptions = pytest.importorskip("mlflow.tracking"), pytest.importorskip("mlflow.exceptions")
    found = [None, SimpleNamespace(experiment_id="7")]
    made = []

    class Client:
        def __init__(self, tracking_uri):
            assert tracking_uri == "https://server"

        def get_experiment_by_name(self, name):
            return found.pop(0)

        def create_experiment(self, name, artifact_location):
            assert artifact_location is None
            raise exceptions.MlflowException("RESOURCE_ALREADY_EXISTS")

        def create_run(self, experiment, **options):
            made.append(experiment)
            return SimpleNamespace(info=SimpleNamespace(run_id="r"))

        def log_batch(self, *arguments, **options):
            pass

    monkeypatch.setattr(tracking, "MlflowClient", Client)
    monkeypatch.setattr(clients_lib.fcntl, "flock", lambda *arguments: pytest.fail("locked"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://server")
    assert clients_lib.mlflow(tracked_run(tmp_path / "run"), "").id == "r" and made == ["7"]
    found[:] = [None, None]
    with pytest.raises(exceptions.MlflowException, match="ALREADY_EXISTS"):
        clients_lib.mlflow(tracked_run(tmp_path / "other"), "")


def test_own_sqlite_file_of_mlflow_is_locked_and_keeps_artifacts_with_the_run(tmp_path, clients, monkeypatch):
    tracking = pytest.importorskip("mlflow.tracking")
    uri = f"sqlite:///{tmp_path}/stores/own.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    clients_lib.mlflow(tracked_run(tmp_path / "run"), "").close()
    experiment = tracking.MlflowClient(tracking_uri=uri).get_experiment_by_name(clients_lib.PROJECT)
    assert experiment.artifact_location == (tmp_path / "run" / "mlflow_artifacts").as_uri()
    assert (tmp_path / "stores" / "own.lock").exists()


def test_credentials_of_a_server_are_not_shown():
    shown = without_credentials
    assert shown("postgresql://me:secret@host:5432/db?password=x") == "postgresql://host:5432/db"
    assert shown("https://mlflow.example.com/path") == "https://mlflow.example.com/path"
    assert shown("sqlite:////tmp/a b.db") == "sqlite:////tmp/a b.db" and shown("/tmp/runs") == "/tmp/runs"


def test_files_of_a_remote_workdir_are_uploaded_at_checkpoints_and_at_the_end(tmp_path, monkeypatch, memory):
    monkeypatch.setattr(hook, "open_growing_files", Mirror)
    remote = tmp_path / "run"
    run = write_run(remote, config_of("tensorboard,wandb"), 1, 4, close=False)
    run.on_checkpoint(4)
    assert list((remote / "tensorboard").iterdir())
    run.on_end(4, {"test_sacrebleu": 27.5})
    assert board(remote)["test_sacrebleu", 4] == 27.5
    assert json.loads((remote / "trackers" / "wandb.json").read_text())["sent"]["test_sacrebleu"] == 4


def test_upload_that_fails_stops_nothing(tmp_path, monkeypatch, memory, caplog):
    class Gone(GrowingFiles):
        def send(self):
            raise OSError("no such bucket")

        close = send

    monkeypatch.setattr(hook, "open_growing_files", Gone)
    run = write_run(tmp_path, config_of("wandb"), 1, 4, close=False)
    run.on_checkpoint(4)
    run.on_end(4, {})
    assert caplog.text.count("no such bucket") == 2 and sorted(memory.sent()) == expected(4)


def test_a_run_sends_its_lines_and_scores(tmp_path, cache, memory):
    config = tiny_run(tmp_path, steps=4, trackers=dict(names="tensorboard,wandb"), log=dict(every_steps=2))
    outcome = loop.train(start(config, tmp_path, cache), score=None)
    for each in outcome.hooks:
        each.on_end(4, {"test_sacrebleu": 27.5})
    for values in (set(board(tmp_path)), {(name, step) for step, name in memory.sent()}):
        assert {("loss", 2), ("loss", 4), ("nll", 4), ("test_sacrebleu", 4)} <= values and ("loss", 1) not in values


def test_every_client_is_an_extra():
    extras = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    assert set(NAMES) - {"tensorboard"} <= set(extras)
