"""The files of metrics."""

import time

from t2t_flax.monitoring.metrics_writer import MetricsWriter, read_metrics


def test_resuming_drops_later_and_cut_lines(tmp_path):
    writer = MetricsWriter(tmp_path, resume_step=0, tensorboard=False)
    for step in (1, 2, 3, 4):
        writer.write(step, {"loss": step * 1.5})
    writer.close()
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 5, "lo')
    assert [m["step"] for m in read_metrics(tmp_path)] == [1, 2, 3, 4]
    writer = MetricsWriter(tmp_path, resume_step=2, tensorboard=False)
    writer.write(3, {"loss": 9.0})
    writer.close()
    assert [(m["step"], m["loss"]) for m in read_metrics(tmp_path)] == [(1, 1.5), (2, 3.0), (3, 9.0)]


def test_failed_tensorboard_does_not_block_the_run(tmp_path, caplog, monkeypatch):
    """Its writer thread dies when the disk is full, and its queue holds only ten values."""
    writer = MetricsWriter(tmp_path, resume_step=0, tensorboard=True)
    events = writer._board.file_writer.event_writer

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(events._ev_writer, "flush", full)
    monkeypatch.setattr("threading.excepthook", lambda _: None)
    events._worker._next_flush_time = 0
    writer.write(1, {"loss": 1.0})
    events._worker.join(10)
    start = time.monotonic()
    for step in range(2, 40):
        writer.write(step, {"loss": 1.0, "nll": 1.0})
    writer.close()
    assert time.monotonic() - start < 10
    assert [line["step"] for line in read_metrics(tmp_path)] == list(range(1, 40))
    assert caplog.text.count("TensorBoard files can no longer be written") == 1


def test_repeated_evaluation_leaves_one_line(tmp_path):
    """The run was killed after writing the line but before the next checkpoint."""
    for due in (False, True, True):
        writer = MetricsWriter(tmp_path, resume_step=2 if due else 0, tensorboard=False, evaluation_due=due)
        for step in () if due else (1, 2):
            writer.write(step, {"loss": 1.0})
        writer.write(2, {"valid_nll": 0.5})
        writer.close()
    assert [line["step"] for line in read_metrics(tmp_path)] == [1, 2, 2]
