"""The files of metrics."""

from t2t_flax.training.progress import MetricsWriter, read_metrics


def test_resuming_drops_later_and_cut_lines(tmp_path):
    writer = MetricsWriter(tmp_path, resume_step=0)
    for step in (1, 2, 3, 4):
        writer.write(step, {"loss": step * 1.5})
    writer.close()
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 5, "lo')
    assert [m["step"] for m in read_metrics(tmp_path)] == [1, 2, 3, 4]
    writer = MetricsWriter(tmp_path, resume_step=2)
    writer.write(3, {"loss": 9.0})
    writer.close()
    assert [(m["step"], m["loss"]) for m in read_metrics(tmp_path)] == [
        (1, 1.5),
        (2, 3.0),
        (3, 9.0),
    ]


def test_repeated_evaluation_leaves_one_line(tmp_path):
    """The run was killed after writing the line but before the next checkpoint."""
    for due in (False, True, True):
        writer = MetricsWriter(tmp_path, resume_step=2 if due else 0, evaluation_pending=due)
        for step in () if due else (1, 2):
            writer.write(step, {"loss": 1.0})
        writer.write(2, {"valid_nll": 0.5})
        writer.close()
    assert [line["step"] for line in read_metrics(tmp_path)] == [1, 2, 2]
