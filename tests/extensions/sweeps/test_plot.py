"""The command `plot`: the curves of runs and sweeps, their picture, and refusals."""

import json
import sys

import numpy as np
import pytest
from helpers.refusals import refused_command

from t2t_flax.__main__ import main
from t2t_flax.extensions.sweeps.curves import default_metrics, read_curves, smoothed
from t2t_flax.extensions.sweeps.plot_command import draw

pytest.importorskip("matplotlib")
NAN = float("nan")


def write_run(folder, losses, *, compiled=(), bleu=(), cut=b""):
    """Write metrics.jsonl: a loss every 10 updates, each followed by an evaluation with a BLEU."""
    folder.mkdir(parents=True)
    lines = []
    for number, loss in enumerate(losses):
        step = 10 * (number + 1)
        values = {"loss": loss, "learning_rate": 0.1 * step, "grad_rms/encoder_0": 1.0}
        if compiled:
            values["seconds"] = {"compile": compiled[number], "step": float(step)}
        lines.append({"step": step} | values)
        if number < len(bleu):
            lines.append({"step": step, "valid_loss": loss + 1, "valid_bleu": bleu[number]})
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "metrics.jsonl").write_bytes(text.encode() + cut)
    return folder


@pytest.fixture
def runs(tmp_path):
    """Return a run, and an equal one that was resumed after update 20 and is cut in a line."""
    a = write_run(tmp_path / "one" / "toy", [4.0, 3.0, NAN, 1.0], bleu=[5.0, 20.0])
    b = write_run(
        tmp_path / "two" / "toy",
        [4.0, 3.0, 2.0, 1.0],
        compiled=[1.5, 1.5, 2.75, 2.75],
        cut=b'{"step": 50, "loss": 0.',
    )
    return [str(a), str(b)]


def drawn(panel):
    """Return the points of the lines in a panel, by the color and marker of the line."""
    return {
        (line.get_color(), line.get_marker() or "None"): list(zip(*line.get_data(), strict=True))
        for line in panel.get_lines()
    }


def test_the_picture_shows_the_numbers_of_both_runs(runs):
    curves, waiting = read_curves(runs)
    assert [curve.label for curve in curves] == ["one/toy", "two/toy"] and not waiting
    assert [curve.restarts for curve in curves] == [[], [20]]
    metrics = default_metrics(curves)
    assert metrics == ["loss", "valid_bleu", "learning_rate"]
    figure = draw(curves, metrics, window=1)
    loss, bleu, rate = figure.axes[:3]
    assert drawn(bleu)["C0", "o"] == [(10, 5.0), (20, 20.0)]
    assert [y for _, y in drawn(rate)["C1", "None"]][:2] == [0, 1]  # the line at the restart
    of_first, of_validation, of_second, restart = loss.get_lines()
    np.testing.assert_array_equal(of_first.get_ydata(), [4, 3, NAN, 1])
    np.testing.assert_array_equal(of_validation.get_data(), [[10, 20], [5, 4]])
    np.testing.assert_array_equal(of_second.get_data(), [[10, 20, 30, 40], [4, 3, 2, 1]])
    assert list(restart.get_xdata()) == [20, 20]
    assert of_second.get_linestyle() == "--" and of_second.get_zorder() >= of_first.get_zorder()
    assert of_second.get_linewidth() < of_first.get_linewidth()
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["one/toy", "two/toy", "validation", "resumed"]


def test_smoothed_values_are_means_of_the_updates_around():
    steps, values = np.array([10, 20, 30, 70]), np.array([[1.0, 2.0, 6.0, 8.0], [1, NAN, 3, 4]])
    found = smoothed(steps, values, 20)
    np.testing.assert_allclose(found, [[1.5, 3, 4, 8], [1, NAN, 3, 4]])
    np.testing.assert_array_equal(smoothed(steps, values, 1), values)


def test_rows_of_a_sweep_are_means_in_bands(grid):
    sweep = grid({"a": (), "b": (), "late": ()}, seeds=2)
    for row, seed, losses in (("a", 0, [4.0, 2.0]), ("a", 1, [2.0, 1.0, 0.5]), ("b", 0, [9.0])):
        write_run(sweep.folder.workdir(f"{row},seed={seed}"), losses)
    curves, waiting = read_curves([str(sweep.folder.path)])
    assert [curve.label for curve in curves] == ["a", "b"]
    assert waiting == ["b,seed=1", "late,seed=0", "late,seed=1"]
    (panel, *_) = draw(curves, ["loss"], window=1).axes
    mean, single = panel.get_lines()
    np.testing.assert_array_equal(mean.get_data(), [[10, 20], [3, 1.5]])
    np.testing.assert_array_equal(single.get_data(), [[10], [9]])
    (band,) = panel.collections
    corners = {tuple(point) for point in band.get_paths()[0].vertices.tolist()}
    assert corners == {(10, 2), (10, 4), (20, 1), (20, 2)}


def test_the_same_runs_give_the_same_bytes(runs, tmp_path, capsys):
    files = [tmp_path / name for name in ("a.svg", "b.svg", "c.png")]
    for file in files:
        assert main(["plot", *runs, f"--out={file}", "--smooth=20"]) == 0
    assert files[0].read_bytes() == files[1].read_bytes()
    assert files[0].read_text().startswith("<?xml") and files[2].read_bytes()[1:4] == b"PNG"
    assert str(files[2]) in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--metrics=loss,bleu"], ("'bleu'", "valid_bleu", "grad_rms/...")),
        (["nowhere"], ("nowhere", "metrics.jsonl")),
        (["empty"], ("empty/metrics.jsonl", "config.log.every_steps")),
        (["empty/metrics.jsonl"], ("empty/metrics.jsonl",)),
        (["--out=a.doc"], ("--out", "a.doc")),
        (["--smooth=0"], ("--smooth",)),
        (["--config.model.dropout=0"], ("--config.KEY=VALUE",)),
    ],
)
def test_mistakes_are_named(runs, tmp_path, monkeypatch, flags, named):
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "empty", [])
    refused_command(["plot", runs[0], *flags], *named)
    assert not (tmp_path / "plot.svg").exists()


def test_a_missing_matplotlib_is_named_with_its_extra(runs, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    refused_command(["plot", *runs], "matplotlib", "[plots]")
