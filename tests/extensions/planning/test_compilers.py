"""Programs of the real TPU and GPU compilers for a small model.

Skipped where they are not installed.
"""

import json
import subprocess
import sys

import jax
import pytest

from t2t_flax.extensions.planning.command import (
    compiler_environment,
    has_gpu_compiler,
    has_tpu_compiler,
)
from t2t_flax.extensions.shared.processes import child_environment

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
tpu = pytest.mark.skipif(not has_tpu_compiler(), reason="libtpu is not installed (extra plan)")
gpu = pytest.mark.skipif(
    not has_gpu_compiler(), reason="JAX's CUDA plugin is not installed (extra plan-gpu)"
)

SMALL = {
    "model.num_encoder_layers": 1, "model.num_decoder_layers": 1, "model.d_model": 64, "model.d_ff": 128,
    "model.num_heads": 4, "model.pad_vocab_to_multiple": 128, "data.vocab_size": 512, "data.batch_tokens": 2048,
    "data.pack_length": 64, "data.max_length": 64,
}  # fmt: skip


COMMANDS = """
import json, sys
from t2t_flax.__main__ import main

for line in sys.stdin:
    print("exit code", main(json.loads(line)), flush=True)
"""


@pytest.fixture(scope="module")
def run_here():
    """Return run_here(argv): run a command in the one process with the environment of `plan`."""
    words, env = [sys.executable, "-c", COMMANDS], child_environment(**compiler_environment([]))
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env
    ) as process:

        def run(argv: list[str]) -> None:
            print(json.dumps(argv), file=process.stdin, flush=True)
            ended = next(
                (line for line in process.stdout if line.startswith("exit code")),
                "the process has ended",
            )
            assert ended == "exit code 0\n", ended

        yield run


@pytest.fixture(scope="module")
def plan(run_here, tmp_path_factory):
    """plan(topology, *flags, **mesh).

    The record of `plan --json`, compiled once for each combination; by a process of its own for the
    first one, which starts again in the environment of the compilers.
    """
    records = {}

    def compile_(topology: str, *flags: str, **mesh) -> dict:
        key = (topology, *flags, *mesh.items())
        if key not in records:
            file = tmp_path_factory.mktemp("plan") / "plan.json"
            keys = SMALL | {f"mesh.{name}": value for name, value in mesh.items()}
            overrides = [f"--config.{name}={value}" for name, value in keys.items()]
            argv = [
                "plan",
                "--config=aiayn_base",
                f"--topology={topology}",
                f"--json={file}",
                *overrides,
                *flags,
            ]
            if records:
                run_here(argv)
            else:
                subprocess.run([sys.executable, "-m", "t2t_flax", *argv], check=True)
            (records[key],) = json.loads(file.read_text())
        return records[key]

    return compile_


def bytes_by_kind(plan: dict) -> dict[str, int]:
    kinds: dict[str, int] = {}
    for row in plan["train"]["collectives"]:
        kinds[row["kind"]] = kinds.get(row["kind"], 0) + row["bytes"]
    return kinds


def gradient_bounds(plan: dict) -> tuple[float, float]:
    """All gradients once in bfloat16.

    And with a tenth for those that travel in float32, and padding.
    """
    parameters = plan["state_bytes"] / 3 / 4
    return 2 * parameters, 2.2 * parameters


@tpu
def test_data_parallel_tpu_program_reduces_its_gradients_once(plan):
    record = plan("v5e:2x2")
    low, high = gradient_bounds(record)
    assert record["mesh"] == {"data": 4, "fsdp": 1, "tensor": 1} and record["train"]["fits"]
    assert low <= bytes_by_kind(record)["all-reduce"] < high
    assert record["train"]["memory"]["argument"] >= record["state_bytes"]
    assert record["bound"]["seconds"] > 0
    assert record["train"]["estimate"]["seconds"] > 0 and record["train"]["traffic"] is None


@tpu
@pytest.mark.parametrize(
    "precision", [pytest.param("float32", marks=pytest.mark.drill), "bfloat16"]
)
@pytest.mark.parametrize(
    "mesh",
    [dict(), dict(fsdp=4, data=1), dict(fsdp=4, data=1, fsdp_mode="zero1"), dict(tensor=2, data=2)],
    ids=["data", "fsdp", "zero1", "tensor"],
)
def test_tpu_program_exchanges_gradients_once_after_its_microbatches(plan, mesh, precision):
    words = ("--config.data.microbatch_tokens=64", f"--config.train.precision={precision}")
    record = plan("v5e:2x2", *words, **mesh)
    exchanges = record["train"]["gradient_exchanges"]
    assert record["shape"]["micro"] > 2
    assert (exchanges["times"], exchanges["in_loop"]) == (1, False)


@tpu
def test_fully_sharded_tpu_program_gathers_parameters(plan):
    replicated, fsdp = plan("v5e:2x2"), plan("v5e:2x2", fsdp=4, data=1)
    assert fsdp["train"]["memory"]["argument"] < 0.75 * replicated["train"]["memory"]["argument"]
    assert fsdp["state_bytes"] < 0.35 * replicated["state_bytes"]
    assert "all-gather" in bytes_by_kind(fsdp) and "all-gather" not in bytes_by_kind(replicated)


@tpu
def test_zero_1_gathers_parameters_once_over_its_own_axis(plan):
    """On 4 x 4 devices, where misread groups would show, the state is sharded over one axis."""
    record = plan("v5e:4x4", fsdp=4, fsdp_mode="zero1")
    assert record["mesh"] == {"data": 4, "fsdp": 4, "tensor": 1}
    rows = {(r["kind"], r["devices"]): r["bytes"] for r in record["train"]["collectives"]}
    parameters = plan("v5e:2x2")["state_bytes"] / 3
    assert rows["all-gather", 4] == pytest.approx(parameters, rel=0.15)
    assert ("all-gather", 16) not in rows


@tpu
def test_two_tpu_slices_exchange_parts_of_their_gradients(plan):
    """Each slice sums first; each chip then exchanges its part with its peer over the network."""
    record = plan("2xv5e:2x2")
    low, high = gradient_bounds(record)
    rows = record["train"]["collectives"]
    between = [row for row in rows if row["kind"] == "all-reduce" and row["slices"] == 2]
    assert between and all(row["devices"] == 1 for row in between)
    assert low / 4 < sum(row["bytes"] for row in between) < high
    assert record["bound"]["dcn"] > 0


@tpu
def test_tensor_parallel_tpu_program_sends_activations(plan):
    replicated, tensor = plan("v5e:2x2"), plan("v5e:2x2", tensor=4, data=1)
    runs = [
        sum(row["runs"] for row in record["train"]["collectives"])
        for record in (replicated, tensor)
    ]
    assert runs[1] > runs[0] and tensor["state_bytes"] < 0.35 * replicated["state_bytes"]


@tpu
def test_data_parallel_tpu_program_calls_fused_attention_and_exchanges_no_more(plan):
    wide = ("--config.model.num_heads=1", "--config.data.pack_length=128")
    einsum, splash = (
        plan("v5e:2x2", *wide),
        plan("v5e:2x2", *wide, "--config.model.attention_kernel=splash"),
    )
    # Forward and backward, of three attentions.
    assert splash["train"]["custom_calls"] == {"tpu_custom_call": 6}
    assert not einsum["train"]["custom_calls"]
    assert bytes_by_kind(splash) == bytes_by_kind(einsum)


@tpu
def test_tensor_parallel_tpu_program_calls_fused_attention_on_its_own_heads(plan):
    wide = (
        "--config.model.d_model=128",
        "--config.model.num_heads=2",
        "--config.data.pack_length=128",
    )
    einsum, splash = (
        plan("v5e:2x2", *wide, f"--config.model.attention_kernel={kernel}", data=2, tensor=2)
        for kernel in ("einsum", "splash")
    )
    assert splash["train"]["custom_calls"] == {"tpu_custom_call": 6}
    assert sum(bytes_by_kind(splash).values()) <= sum(bytes_by_kind(einsum).values())


@tpu
@pytest.mark.skipif(
    jax.__version_info__ < (0, 12), reason="jax 0.10 cannot read programs of this libtpu"
)
def test_tpu7x_compiles_for_two_devices_a_chip(plan):
    record = plan("tpu7x:2x2x1", data=8)
    assert record["devices"] == 8 and record["train"]["fits"] and record["bound"]["seconds"] > 0


@gpu
def test_gpu_program_reduces_its_gradients_once(plan):
    record = plan("h100-8")
    low, high = gradient_bounds(record)
    assert record["mesh"] == {"data": 8, "fsdp": 1, "tensor": 1} and record["train"]["fits"]
    assert low <= bytes_by_kind(record)["all-reduce"] < high
    assert record["train"]["memory"]["argument"] >= record["state_bytes"]
    assert record["bound"]["seconds"] > 0
    traffic = record["train"]["traffic"]
    assert (
        traffic["kernels"] > 100
        and traffic["bytes"] > record["state_bytes"]
        and traffic["seconds"] > 0
    )


@gpu
def test_gpu_program_calls_fused_attention(plan):
    calls = plan("h100-8")["train"]["custom_calls"]
    kernels = {name: count for name, count in calls.items() if name.startswith("__cudnn$fmha")}
    # Forward and backward, of three attentions.
    assert len(kernels) == 2 and set(kernels.values()) == {3}


@gpu
@pytest.mark.parametrize("gpu_name", ["a100", "h200", "b200", "gb200", "b300"])
def test_every_gpu_of_the_table_compiles(plan, gpu_name):
    assert plan(f"{gpu_name}-1")["train"]["memory"]["temp"] > 0


@gpu
def test_gradients_of_two_gpu_hosts_cross_the_network(plan):
    record = plan("2xh100-2")
    assert {row["slices"] for row in record["train"]["collectives"]} == {2}
    assert record["bound"]["dcn"] > 0 and "2 hosts of 2" in record["machine"]
