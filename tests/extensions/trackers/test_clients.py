"""Each tracker's client in its real offline mode: resumed runs, groups, stores, credentials."""

import json
import os
import struct
from pathlib import Path

import pytest
from etils import epath
from tracked_runs import board, config_of, expected, write_run

from t2t_flax.extensions.shared.processes import RUNS_FOLDER
from t2t_flax.extensions.trackers import NAMES
from t2t_flax.extensions.trackers import clients as clients_lib
from t2t_flax.extensions.trackers.clients import without_credentials
from t2t_flax.training.hooks import call_hooks


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
            items = {
                (item.key or item.nested_key[0]): json.loads(item.value_json)
                for item in record.history.item
            }
            for name, value in items.items():
                if name != "step" and not name.startswith("_"):
                    assert (name, items["step"]) not in values, "twice"
                    values[name, items["step"]] = value
    assert len({run.run_id for run in runs}) == 1
    config = {
        (item.key or item.nested_key[0]): json.loads(item.value_json)
        for item in runs[0].config.update
    }
    return values, runs[0].run_group, config


def read_mlflow(workdir):
    from mlflow.tracking import MlflowClient

    client = MlflowClient(
        tracking_uri=f"sqlite:///{Path(os.environ.get(RUNS_FOLDER, workdir)) / 'mlflow.db'}"
    )
    run = client.get_run(json.loads((workdir / "trackers/mlflow.json").read_text())["id"])
    assert run.info.status == "FINISHED" and run.info.run_name == workdir.name
    history = [
        m for name in run.data.metrics for m in client.get_metric_history(run.info.run_id, name)
    ]
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
    """No login, no network, no folder of the user.

    trackio reads its variable when it is imported.
    """
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(home))
        patch.setenv("TRACKIO_DIR", str(home / "trackio"))
        for name in (
            "WANDB_API_KEY",
            "WANDB_MODE",
            "NETRC",
            RUNS_FOLDER,
            "MLFLOW_TRACKING_URI",
            "TRACKIO_SPACE_ID",
        ):
            patch.delenv(name, raising=False)
        yield home


@pytest.mark.parametrize("name", NAMES)
def test_tracker_has_each_number_once_after_a_resume_with_the_test_scores(name, tmp_path, clients):
    for module in clients_lib.MODULES.get(name, (name,)):
        pytest.importorskip(module)
    workdir, config = (
        epath.Path(tmp_path / "lr_scale=2,seed=0"),
        config_of(name, "sweep-a", lr_scale=2.0),
    )
    workdir.mkdir()
    write_run(workdir, config, 1, 5)
    write_run(workdir, config, 3, 6, scores={"test_sacrebleu": 27.5, "test_chrf++": 51.0})
    values, group, settings = READ[name](Path(workdir))
    plus = "test_chrf__" if name in ("tensorboard", "mlflow") else "test_chrf++"
    wanted = {
        (metric, step): (1.0 if metric == "loss" else 2.0) / step for step, metric in expected(6)
    }
    wanted |= {("test_sacrebleu", 6): 27.5, (plus, 6): 51.0}
    assert values == pytest.approx(wanted)
    if name != "tensorboard":
        assert group == "sweep-a" and float(settings["optimizer.lr_scale"]) == 2.0


@pytest.mark.parametrize("name", NAMES[2:])
def test_trials_of_a_sweep_share_a_group_and_a_store(name, tmp_path, clients, monkeypatch):
    for module in clients_lib.MODULES.get(name, (name,)):
        pytest.importorskip(module)
    monkeypatch.setenv(RUNS_FOLDER, str(tmp_path))
    folders = [tmp_path / "trials" / f"lr_scale={scale}" for scale in (1, 2)]
    runs = []
    for scale, folder in enumerate(folders, 1):  # at the same time
        folder.mkdir(parents=True)
        config = config_of(name, lr_scale=float(scale))
        runs.append(write_run(folder, config, 1, 2, close=False))
    for run in runs:
        call_hooks(run, "end", 2, {})
    for scale, folder in enumerate(folders, 1):
        values, group, settings = READ[name](folder)
        assert sorted((step, metric) for metric, step in values) == expected(2)
        assert group == tmp_path.name and float(settings["optimizer.lr_scale"]) == scale
    assert not any((folder / "mlflow.db").exists() for folder in folders)


def tracked_run(folder):
    folder.mkdir()
    return clients_lib.TrackedRun(epath.Path(folder), folder, config_of("mlflow"), 0)


def test_own_sqlite_file_of_mlflow_is_locked_and_keeps_artifacts_with_the_run(
    tmp_path, clients, monkeypatch
):
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
    assert (
        shown("sqlite:////tmp/a b.db") == "sqlite:////tmp/a b.db"
        and shown("/tmp/runs") == "/tmp/runs"
    )
