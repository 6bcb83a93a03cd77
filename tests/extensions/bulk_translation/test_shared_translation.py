"""Real processes that translate one file together."""

import sys

import pytest
from helpers.processes import Processes, note
from helpers.refusals import assert_names

from t2t_flax.__main__ import main

pytestmark = [pytest.mark.timeout(1500), pytest.mark.slow]
TURN = 2**14


@pytest.fixture(scope="module")
def sentences(tmp_path_factory):
    """A file of two turns and a half.

    Nearly all lines are empty: they cost nothing to translate.
    """
    lines = [""] * (2 * TURN + TURN // 2)
    texts = ["Where is the dog?", "It is late.", "The mice were fed.", "Good morning!"] * 5
    places = [*range(8), *range(TURN - 2, TURN + 4), *range(2 * TURN - 1, 2 * TURN + 5)]
    for place, text in zip(places, texts, strict=True):
        lines[place] = text
    path = tmp_path_factory.mktemp("lines") / "in"
    path.write_text("".join(line + "\n" for line in lines))
    return path


def command(workdir, sentences, output, *flags):
    flags = [
        *flags,
        "--config.mesh.cpu_devices=2",
        "--config.mesh.data=-1",
        "--config.distributed.heartbeat_timeout=10",
    ]
    files = [f"--workdir={workdir}", f"--input={sentences}", f"--output={output}"]
    return [
        sys.executable,
        "-m",
        "t2t_flax",
        "translate_file",
        *files,
        "--n-best=2",
        "--scores",
        *flags,
    ]


@pytest.fixture(scope="module")
def alone(workdir, sentences, tmp_path_factory):
    """The output of one process."""
    output = tmp_path_factory.mktemp("alone") / "out"
    words = command(workdir, sentences, output)[3:]
    assert main([word for word in words if "mesh.cpu_devices" not in word]) == 0
    return output.read_text()


def assert_same(text, expected):
    """The same translations.

    Scores that XLA computes in batches of another size differ in the last digit.
    """
    assert text.count("\n") == expected.count("\n")
    for line, other in zip(text.splitlines(), expected.splitlines(), strict=True):
        (*start, score), (*start_other, score_other) = line.split(" ||| "), other.split(" ||| ")
        assert start == start_other and abs(float(score) - float(score_other)) < 2e-4


@pytest.mark.drill
def test_output_of_three_processes_is_that_of_one(workdir, sentences, alone, tmp_path):
    output = tmp_path / "out"
    with Processes(tmp_path / "logs", 3, command(workdir, sentences, output)) as processes:
        assert processes.wait() == [0] * 3, processes.outputs()
    assert_same(output.read_text(), alone)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["logs", "out"]


@pytest.mark.parametrize("victim", [pytest.param(0, marks=pytest.mark.drill), 1])
def test_killed_process_ends_the_others_and_the_same_command_resumes(
    workdir, sentences, alone, tmp_path, victim
):
    """Both processes have written a first window when one is killed."""
    output = tmp_path / "out"
    # Small batches: windows of 128 batches of 2 rows, 64 of them a turn.
    words = command(workdir, sentences, output, "--config.decode.batch_size=1")
    parts = [tmp_path / f"out.partial-{i}-of-2" for i in range(2)]
    with Processes(tmp_path / "logs", 2, words) as processes:
        processes.wait_for(
            lambda: all(p.exists() and p.stat().st_size for p in parts), "the first windows", 400.0
        )
        processes.all[victim].kill()
        codes = processes.wait()
    assert codes[victim] == -9 and codes[1 - victim] not in (0, 2, 75), processes.outputs()
    note(
        f"killed process {victim} of 2 while translating: the other exits with {codes[1 - victim]}"
    )
    if victim == 1:  # without process 0 JAX aborts the others before they can say more
        assert "process 1 on" in processes.output(0)
    assert not output.exists() and all(part.stat().st_size for part in parts)
    with Processes(tmp_path / "logs", 2, [*words, "--resume"]) as processes:
        assert processes.wait() == [0, 0], processes.outputs()
    assert_same(output.read_text(), alone)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["logs", "out"]


def test_mesh_over_several_processes_is_refused(workdir, sentences, tmp_path):
    words = command(workdir, sentences, tmp_path / "out", "--config.mesh.tensor=4")
    with Processes(tmp_path / "logs", 2, words) as processes:
        assert processes.wait() == [2, 2], processes.outputs()
    assert_names(processes.output(0), "config.mesh")
