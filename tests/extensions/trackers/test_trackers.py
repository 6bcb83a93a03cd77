"""The hook of trackers: what is sent when, resuming, and clients that fail."""

import json
import threading
import time

import pytest
from helpers.refusals import refused
from helpers.runs import start, tiny_run
from tracked_runs import board, config_of, expected, write_run

from t2t_flax.config import resolve
from t2t_flax.extensions.storage import mirror
from t2t_flax.extensions.storage.mirror import Mirror
from t2t_flax.extensions.trackers import NAMES, Trackers, hook
from t2t_flax.extensions.trackers import clients as clients_lib
from t2t_flax.training import loop
from t2t_flax.training.hooks import call_hooks
from t2t_flax.training.progress import GrowingFiles, read_metrics

DAMAGED = "not JSON"


def test_every_tracker_of_the_config_has_a_row():
    assert tuple(hook.CLIENTS) == NAMES
    assert (
        Trackers(" tensorboard, mlflow,,mlflow ").each() == ("tensorboard", "mlflow")
        and Trackers("").each() == ()
    )
    with refused("config.trackers.names", "'wandb'?"):
        resolve({"trackers": {"names": "wandbb"}})


def test_missing_package_is_reported_before_training(monkeypatch):
    monkeypatch.setitem(clients_lib.MODULES, "wandb", ("no_such_package",))
    with refused("config.trackers.names", "no_such_package", "'.[wandb]'"):
        Trackers("wandb").check_installed()
    Trackers("").check_installed()


@pytest.mark.parametrize(("killed_at", "checkpoint"), [(5, 4), (6, 2), (6, 6)])
def test_resumed_run_sends_each_number_once(tmp_path, memory, killed_at, checkpoint):
    write_run(tmp_path, config_of("wandb"), 1, killed_at)
    write_run(tmp_path, config_of("wandb"), checkpoint + 1, 8)
    assert sorted(memory.sent()) == expected(8) and list(memory.runs) == ["run0"]
    assert memory.opened == [(tmp_path.name, None, ""), (tmp_path.name, None, "run0")]


@pytest.mark.smoke
def test_what_a_killed_run_had_queued_is_sent_when_it_resumes(tmp_path, memory, monkeypatch):
    opened = threading.Event()
    monkeypatch.setitem(hook.CLIENTS, "wandb", lambda run, id: opened.wait(250))
    # Killed while the tracker still opened.
    write_run(tmp_path, config_of("wandb"), 1, 6, close=False)
    monkeypatch.setitem(hook.CLIENTS, "wandb", memory.open)
    write_run(tmp_path, config_of("wandb"), 5, 8)
    assert sorted(memory.sent()) == expected(8)
    opened.set()


def test_tracker_that_fails_is_reported_once_and_continues_with_the_next_start(
    tmp_path, memory, caplog
):
    memory.fails_at = 3
    write_run(tmp_path, config_of("wandb"), 1, 6)
    assert len(caplog.records) == 1 and "wandb" in caplog.text
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
    monkeypatch.setitem(hook.CLIENTS, "wandb", lambda run, id: hangs.wait(250))
    monkeypatch.setattr(hook, "CLOSE_SECONDS", 0.1)
    write_run(tmp_path, config_of("wandb"), 1, 200)
    assert "wandb" in caplog.text and not hangs.is_set()
    assert len(read_metrics(tmp_path)) == 300
    hangs.set()


def test_run_that_starts_over_is_a_new_run_of_the_tracker(tmp_path, memory):
    write_run(tmp_path, config_of("wandb"), 1, 3)
    write_run(tmp_path, config_of("wandb"), 1, 4)  # there was no checkpoint
    assert sorted(memory.sent("run1")) == expected(4)


@pytest.mark.parametrize(
    "text", [DAMAGED, "[]", '{"id": 3, "sent": {}}', '{"id": "gone", "sent": {"loss": 9}}']
)
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


def test_files_of_a_remote_workdir_are_uploaded_meanwhile_and_at_the_end(
    tmp_path, monkeypatch, memory
):
    monkeypatch.setattr(hook, "open_growing_files", Mirror)
    monkeypatch.setattr(mirror, "SECONDS", 0.1)
    remote = tmp_path / "run"
    run = write_run(remote, config_of("tensorboard,wandb"), 1, 4, close=False)
    until = time.monotonic() + 200.0
    # Its thread writes the file.
    while not list(remote.glob("tensorboard/*")) and time.monotonic() < until:
        time.sleep(0.1)
    assert list(remote.glob("tensorboard/*"))
    call_hooks(run, "end", 4, {"test_sacrebleu": 27.5})
    assert board(remote)["test_sacrebleu", 4] == 27.5
    assert (
        json.loads((remote / "trackers" / "wandb.json").read_text())["sent"]["test_sacrebleu"] == 4
    )


def test_upload_that_fails_stops_nothing(tmp_path, monkeypatch, memory, caplog):
    class Gone(GrowingFiles):
        def send(self):
            raise OSError("no such bucket")

        close = send

    monkeypatch.setattr(hook, "open_growing_files", Gone)
    run = write_run(tmp_path, config_of("wandb"), 1, 4, close=False)
    call_hooks(run, "end", 4, {})
    assert caplog.text.count("no such bucket") == 1 and sorted(memory.sent()) == expected(4)


def test_a_run_sends_its_lines_and_scores(tmp_path, cache, memory):
    config = tiny_run(
        tmp_path, steps=4, trackers=dict(names="tensorboard,wandb"), log=dict(every_steps=2)
    )
    outcome = loop.train(start(config, tmp_path, cache), score=None)
    call_hooks(outcome.hooks, "end", 4, {"test_sacrebleu": 27.5})
    for values in (set(board(tmp_path)), {(name, step) for step, name in memory.sent()}):
        assert {("loss", 2), ("loss", 4), ("nll", 4), ("test_sacrebleu", 4)} <= values and (
            "loss",
            1,
        ) not in values
