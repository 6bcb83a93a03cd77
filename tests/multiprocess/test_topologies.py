"""One run on 1, 2 and 4 processes and several meshes.

The same loss curve, the same translations, the same record.
"""

import shutil

import numpy as np
import pytest
from helpers.processes import Processes, command, evaluations, losses, record

from t2t_flax.__main__ import main
from t2t_flax.training.progress import read_metrics

pytestmark = [pytest.mark.timeout(1500), pytest.mark.slow]
STEPS = 20
BLEU = dict(eval_decode_every_steps=20, eval_decode_sentences=8)


@pytest.fixture(scope="module")
def one_process_run(tmp_path_factory, cache):
    """The run on one process with one device."""
    workdir = tmp_path_factory.mktemp("one") / "run"
    assert main(command(workdir, cache, mesh_cpu_devices=1, **BLEU)[3:]) == 0
    assert len(losses(workdir)) == STEPS
    return workdir


def assert_same_run(a, b):
    assert losses(a).keys() == losses(b).keys()
    np.testing.assert_allclose(list(losses(a).values()), list(losses(b).values()), rtol=1e-5)
    assert evaluations(a).keys() == evaluations(b).keys()
    np.testing.assert_allclose(
        list(evaluations(a).values()), list(evaluations(b).values()), rtol=1e-5
    )
    bleu = [
        [line["valid_bleu"] for line in read_metrics(run) if "valid_bleu" in line] for run in (a, b)
    ]
    assert bleu[0] == bleu[1] and len(bleu[0]) == 1
    first, second = record(a, f"test-{STEPS}"), record(b, f"test-{STEPS}")
    assert first["text"] == second["text"]
    assert first["digests"]["hypotheses"] == second["digests"]["hypotheses"]
    for name in ("sacrebleu", "chrf", "exact_match"):
        assert first["scores"][name]["score"] == second["scores"][name]["score"]
    assert first["scores"]["nll"] == pytest.approx(second["scores"]["nll"], rel=1e-5)


@pytest.mark.parametrize(
    ("count", "keys"),
    [
        (2, dict(mesh_cpu_devices=2, mesh_fsdp=2, mesh_tensor=2)),
        pytest.param(
            4,
            dict(mesh_cpu_devices=1, mesh_fsdp=4, mesh_fsdp_mode="zero1"),
            marks=pytest.mark.drill,
        ),
        pytest.param(
            2, dict(mesh_cpu_devices=2, mesh_slices=2, mesh_fsdp=2), marks=pytest.mark.drill
        ),
        pytest.param(2, dict(mesh_cpu_devices=1), marks=pytest.mark.drill),
        pytest.param(
            4, dict(mesh_cpu_devices=2, mesh_fsdp=2, mesh_tensor=4), marks=pytest.mark.drill
        ),
        pytest.param(2, dict(mesh_cpu_devices=4, mesh_fsdp=8), marks=pytest.mark.drill),
    ],
    ids=lambda x: str(x).replace("mesh_", "") if isinstance(x, dict) else f"{x} processes",
)
def test_run_is_the_same_on_any_number_of_processes(one_process_run, tmp_path, cache, count, keys):
    with Processes(
        tmp_path / "logs", count, command(tmp_path / "run", cache, **keys, **BLEU)
    ) as processes:
        assert processes.wait() == [0] * count, processes.outputs()
    assert_same_run(one_process_run, tmp_path / "run")
    # The checkpoint of several processes, restored by one for evaluation.
    moved = tmp_path / "moved"
    shutil.copytree(tmp_path / "run", moved, ignore=shutil.ignore_patterns("eval"))
    alone = dict(mesh_cpu_devices=1, mesh_fsdp=1, mesh_tensor=1, mesh_data=-1, mesh_slices=0)
    assert main(command(moved, cache, "evaluate", **alone)[3:]) == 0
    assert (
        record(moved, f"test-{STEPS}")["text"] == record(one_process_run, f"test-{STEPS}")["text"]
    )


def test_two_processes_evaluate_a_run_of_one(one_process_run, tmp_path, cache):
    moved = tmp_path / "moved"
    shutil.copytree(one_process_run, moved, ignore=shutil.ignore_patterns("eval"))
    with Processes(
        tmp_path / "logs", 2, command(moved, cache, "evaluate", mesh_cpu_devices=1)
    ) as processes:
        assert processes.wait() == [0, 0], processes.outputs()
    first, second = record(one_process_run, f"test-{STEPS}"), record(moved, f"test-{STEPS}")
    assert first["text"] == second["text"] and second["hardware"]["devices"] == 2
    assert first["scores"]["nll"] == pytest.approx(second["scores"]["nll"], rel=1e-5)
