"""Stages of the self-test.

A stage may be wrong only because an earlier one is.
"""

import concurrent.futures
import dataclasses
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from t2t_flax.config import Config
from t2t_flax.data.batching.rows import Shape
from t2t_flax.distributed.coordination import ProcessGroup
from t2t_flax.errors import UserError
from t2t_flax.extensions.selftest.comparison import (
    Compared,
    Expected,
    compare,
    compare_bits,
    compare_copies,
    compare_number,
    expected,
)
from t2t_flax.extensions.selftest.device import DeviceRun
from t2t_flax.extensions.selftest.probe import Probe, make_probe
from t2t_flax.extensions.selftest.programs import check_programs
from t2t_flax.extensions.selftest.reference import Computed, Reference
from t2t_flax.training.optimizer import learning_rate_schedule
from t2t_flax.training.parametrization import path_names
from t2t_flax.training.parts import TrainState

STAGES = ("parameters", "programs", "layers", "loss", "gradients", "update", "copies")


@dataclasses.dataclass(frozen=True)
class Report:
    """Report of a self-test.

    Args:
        compared: all tensors on the devices of this process.
        faults: sentences, of all processes, the first fault first.
        lines: one for each stage.
    """

    compared: list[Compared]
    faults: list[str]
    heading: str
    lines: list[str]
    seconds: float

    @property
    def summary(self) -> str:
        ending = f"{len(self.faults)} faults" if self.faults else "no fault"
        return "\n".join([self.heading, *self.lines, f"self-test: {ending}, {self.seconds:.1f} s"])

    def raise_if_faulty(self) -> None:
        """Raise UserError if there are faults."""
        if self.faults:
            more = [f"  {fault}" for fault in self.faults[1:]]
            raise UserError(
                "\n".join(
                    [
                        f"do not train here: {self.faults[0]}.",
                        *(["What follows may be due to it:", *more] if more else []),
                        (
                            "Run `python -m t2t_flax selftest` again, with the same config: on the"
                            " same devices, to see whether it stays, and on other ones. If it moves"
                            " with a device, have that device replaced; if it is everywhere, it is"
                            " the compiler or a kernel: use another version of JAX, or"
                            " model.attention_kernel=einsum."
                        ),
                    ]
                )
            )


def run_test(
    config: Config,
    mesh: jax.sharding.Mesh,
    vocab: tuple[int, int],
    shape: Shape,
    group: ProcessGroup | None = None,
) -> Report:
    """Test the devices of a mesh for a run with this config and batches of this shape.

    train.precision must be decided. All processes call it.
    """
    began, group = time.monotonic(), group or ProcessGroup()
    test = _Test(make_probe(config, mesh, vocab, shape), group)
    test.run()
    mine = "\n".join(test.faults())
    faults = [line for text in group.all_gather("self-test", mine) for line in text.splitlines()]
    faults.sort(key=lambda line: STAGES.index(line.partition(": ")[0]))
    return Report(
        test.compared,
        list(dict.fromkeys(faults)),
        test.heading(),
        test.lines,
        time.monotonic() - began,
    )


class _Test:
    def __init__(self, probe: Probe, group: ProcessGroup):
        self.probe, self.group = probe, group
        self.precision = probe.config.train.precision
        self.compared: list[Compared] = []
        self.lines: list[str] = []
        self.other_faults: dict[str, list[str]] = {}
        self.reference, self.device = Reference(probe), DeviceRun(probe)

    def heading(self) -> str:
        m, mesh = self.probe.config.model, self.probe.mesh
        micro, rows, length = self.probe.size
        sizes = " ".join(f"{name}={size}" for name, size in mesh.shape.items())
        return (
            f"self-test of {mesh.size} x {mesh.devices.flat[0].device_kind} beside float32 on the"
            f" CPU: {sizes}, {self.precision}, {m.num_encoder_layers} + {m.num_decoder_layers}"
            f" layers, {micro} x {rows} rows of {length}"
        )

    def run(self) -> None:
        """Run all stages."""
        with concurrent.futures.ThreadPoolExecutor(
            2
        ) as pool:  # overlaps with compilation for the devices
            exact, rounded = (
                pool.submit(self.reference.compute, name) for name in ("float32", "bfloat16")
            )
            state, batch = self.device.place(self.reference.state), self.device.batch()
            self._parameters(state)
            programs = self.device.compile()
            self._programs(programs.lowered, programs.compiled)
            seen = programs.layers(state.params, batch)
            after, metrics = programs.update(state, batch)
            reference = exact.result(), rounded.result()
        self._layers(seen, *reference)
        del seen
        self._loss(metrics, *reference)
        self._gradients(after.opt_state.grads, *reference)
        self._update(after)

    def _parameters(self, state: TrainState) -> None:
        plain = dataclasses.replace(state, opt_state=state.opt_state.inner)
        wanted = {name: np.asarray(x) for name, x in _named(self.reference.state).items()}
        arrays = _named(plain)
        self._add(
            "parameters", compare_bits(arrays, wanted), len(arrays), "arrays put on the devices"
        )

    def _programs(self, lowered: str, compiled: str) -> None:
        trained, _ = self.device.parametrization.split(self.device.abstract.params)
        mesh = self.probe.mesh
        checked = check_programs(
            lowered,
            compiled,
            precision=self.precision,
            platform=mesh.devices.flat[0].platform,
            kernel=self.device.model.config.attention_kernel,
            shards=self.probe.shards,
            exchanged=sum(
                math.prod(x.sharding.shard_shape(x.shape)) for x in jax.tree.leaves(trained)
            ),
            only_data=mesh.shape["fsdp"] == mesh.shape["tensor"] == 1,
            in_optimizer=self.reference.products_of_optimizer,
        )
        self.other_faults["programs"] = [f"in the train step {fault}" for fault in checked.faults]
        self.lines.append(f"  {'programs':11} {checked.summary}")

    def _layers(self, seen: Mapping[str, jax.Array], exact: Computed, rounded: Computed) -> None:
        (_, rows, length), shards, real = self.probe.size, self.probe.shards, self.probe.real
        valid = self.probe.arrays["target_segments"][0].reshape(shards, rows // shards, length) > 0
        found = []
        for name, value in exact.activations.items():
            x, y = (self._like_devices(v, length) for v in (value, rounded.activations[name]))
            wanted = expected(x, y, self.precision)
            found += compare("layers", name, seen[name], dataclasses.replace(wanted, valid=valid))
        self._add("layers", found, len(exact.activations), f"outputs of {real} tokens a row")

    def _like_devices(self, x: np.ndarray, length: int) -> np.ndarray:
        """Return [B, real columns, ...] as [shards, B / shards, L, ...]."""
        padding = [(0, 0), (0, length - x.shape[1]), *[(0, 0)] * (x.ndim - 2)]
        shards = self.probe.shards
        return np.pad(x, padding).reshape(shards, -1, length, *x.shape[2:])

    def _loss(self, metrics: Mapping[str, jax.Array], exact: Computed, rounded: Computed) -> None:
        tokens, u = exact.sums["tokens"], 2.0**-24
        # The error of each token's loss; their mean is at most as wrong, and may be right by luck.
        rows = {name: x[0][:, : self.probe.real] for name, x in self.probe.arrays.items()}
        real = rows["target_segments"] > 0
        losses = [
            _token_losses(c.activations["logits"][real], rows["target"][real])
            for c in (exact, rounded)
        ]
        scale = expected(np.zeros(1, np.float32), np.ones(1, np.float32), self.precision).error[0]
        error = 8 * (
            float(np.abs(losses[0] - losses[1]).mean()) * scale
            + 64 * u * exact.sums["loss"] / tokens
        )
        rate = float(learning_rate_schedule(self.probe.config)(jnp.asarray(1)))
        wanted = {
            "loss": (exact.sums["loss"] / tokens, error),
            "nll": (exact.sums["nll"] / tokens, error),
            "tokens": (tokens, 0.5),
            "learning_rate": (rate, 1e-3 * rate),
            "finite": (1.0, 0.5),
        }
        values = jax.device_get(dict(metrics))
        device = self.probe.mesh.local_devices[0]
        found = [
            compare_number("loss", name, device, float(values[name]), *pair)
            for name, pair in wanted.items()
        ]
        self._add("loss", found, len(found), f"numbers, loss {float(values['loss']):.4f}")

    def _gradients(self, grads: Any, exact: Computed, rounded: Computed) -> None:
        bf16_sum = self.precision == "bfloat16" and self.probe.shards > 1
        more = 2.0**-8 * math.sqrt(self.probe.shards / 2) if bf16_sum else 0.0
        arrays, x, y = _named(grads), _named(exact.grads), _named(rounded.grads)
        whole = math.sqrt(sum(float(np.square(v, dtype=np.float64).sum()) for v in x.values()))
        count = sum(v.size for v in x.values())
        found = []
        for name in self._backwards(arrays, exact):
            wanted = expected(x[name], y[name], self.precision, more=more)
            # A gradient that is 0 except for rounding has the error of the values that it is a
            # difference of.
            tiny = np.float32(1e-2 * 2.0**-8 * _relative(self.precision) * whole / math.sqrt(count))
            found += compare(
                "gradients", name, arrays[name], Expected(wanted.value, wanted.error + tiny)
            )
        self._add("gradients", found, len(arrays), f"parameters, norm {whole:.4g}")

    def _backwards(self, arrays: Mapping[str, jax.Array], exact: Computed) -> list[str]:
        """Return parameter names in the order in which gradients are computed.

        The last layer is first, tables are last.
        """
        order = list(exact.activations)

        def place(name: str) -> int:
            module = name.rpartition(".")[0]
            return next((i for i, other in enumerate(order) if other == module), -1)

        return sorted(arrays, key=place, reverse=True)

    def _update(self, after: TrainState) -> None:
        grads = self.device.whole(after.opt_state.grads)
        noise = 2.0**-8 if self.reference.products_of_optimizer else 2.0**-20
        before, exact, noisy = (
            self.reference.state,
            self.reference.updated(grads),
            self.reference.updated(grads, noise),
        )
        arrays = _named(dataclasses.replace(after, opt_state=after.opt_state.inner))
        old, x, y = _named(before), _named(exact), _named(noisy)
        found = []
        for name, value in x.items():
            value = np.asarray(value, np.float32)
            rounding = 4 * np.float32(2.0**-24) * np.abs(value)
            moved = np.abs(value - np.asarray(old[name], np.float32))
            error = (
                np.abs(np.asarray(y[name], np.float32) - value)
                + rounding
                + np.float32(1e-4) * moved
            )
            found += compare("update", name, arrays[name], Expected(value, error))
        self._add("update", found, len(x), "arrays of parameters and of the optimizer")
        copies = compare_copies(arrays, self.group)
        self._add(
            "copies",
            copies,
            len(arrays),
            f"arrays after the update, on {self.probe.mesh.size} devices",
        )

    def _add(self, stage: str, found: Sequence[Compared], count: int, what: str) -> None:
        self.compared += found
        wrong = sorted({c.tensor for c in found if c.ratio > 1})
        worst = max(found, key=lambda c: c.ratio, default=None)
        if wrong:
            ending = f"{len(wrong)} of them wrong"
        elif worst is None:
            ending = "equal bit for bit"
        else:
            ending = f"errors up to {worst.ratio:.2f} of what is allowed ({worst.tensor})"
        self.lines.append(f"  {stage:11} {count} {what}; {ending}")

    def faults(self) -> list[str]:
        """Return a sentence, with an explanation, for the first wrong tensor of each stage."""
        found = []
        for stage in STAGES:
            wrong = [c for c in self.compared if c.stage == stage and c.ratio > 1]
            if wrong:
                found.append(f"{stage}: {self._sentence(wrong)}")
            found += [f"{stage}: {text}" for text in self.other_faults.get(stage, [])]
        return found

    def _sentence(self, wrong: list[Compared]) -> str:
        first = wrong[0]
        tensors = list(dict.fromkeys(c.tensor for c in wrong))
        same = [c for c in wrong if c.tensor == first.tensor]
        more = (
            f" ({len(tensors) - 1} more are wrong, {_shown(tensors[1:])})"
            if len(tensors) > 1
            else ""
        )
        if first.wrong:
            return first.wrong + more
        devices = [c.device.id for c in same]
        where = (
            "on every device"
            if len(devices) == len(self.probe.mesh.local_devices)
            else f"on {_listed(devices)}"
        )
        kind = {
            "layers": "the output of",
            "gradients": "the gradient of",
            "update": "after the update",
        }[first.stage]
        worst = max(same, key=lambda c: c.error)
        return (
            f"{kind} {first.tensor} is wrong {where}: its relative error is {worst.error:.2g}, and"
            f" {self.precision} explains {worst.explained:.2g}{more}"
        )


def _relative(precision: str) -> float:
    return float(expected(np.zeros(1, np.float32), np.ones(1, np.float32), precision).error[0])


def _named(tree: Any) -> dict[str, Any]:
    """Return leaves by name.

    Names are "decoder_1.self_attention.query.kernel", "opt_state.mu.decoder_1...".
    """
    if not isinstance(tree, TrainState):
        return {".".join(path_names(path)): leaf for path, leaf in jax.tree.leaves_with_path(tree)}
    found = _named(tree.params)
    for name, part in (("opt_state", tree.opt_state), ("ema", tree.ema)):
        for path, leaf in jax.tree.leaves_with_path(part):
            found[f"{name}.{jax.tree_util.keystr(path, simple=True, separator='.')}"] = leaf
    return found


def _token_losses(logits: np.ndarray, targets: np.ndarray) -> np.ndarray:
    largest = logits.max(-1, keepdims=True)
    log_z = np.log(np.exp(logits - largest).sum(-1)) + largest[:, 0]
    return log_z - np.take_along_axis(logits, targets[:, None], -1)[:, 0]


def _listed(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:8])) + (" ..." if len(numbers) > 8 else "")
    return f"device {shown}" if len(numbers) == 1 else f"devices {shown}"


def _shown(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (" ..." if len(names) > 3 else "")
