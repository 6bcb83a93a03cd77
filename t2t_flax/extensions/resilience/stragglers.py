"""Finds the processes that keep the others waiting.

An update ends in all processes at once, so its time names no one. What differs is what each does alone: how long it waits
for its input, and how long its devices take for the same matrix product.
"""

import contextlib
import json
import statistics
import time
from typing import Any

import jax
import jax.numpy as jnp

from t2t_flax.training.hooks import Hook

_PRODUCTS = 8
_IN_A_ROW = 3  # one slow comparison is noise
_REMIND = 10


class StragglerDetector(Hook):
    """Compares the processes of `group` (anything with index, is_lead, put, entries, name_of, say) after every `every` updates.
    `share`: of the time that a process may cost the others.
    """

    def __init__(self, group: Any, share: float, every: int):
        self._group, self._share, self.idle_every = group, share, every
        self._in_a_row: dict[int, int] = {}
        self._named: list[int] = []
        self._silent = 0

    def on_start(self, run: Any, progress: Any) -> None:
        self._compile()
        self._data = progress.seconds.get("data", 0.0)
        self._since = time.monotonic()

    def on_update(self, step: int, batch: Any, values: dict[str, Any]) -> None:
        if step % self.idle_every == 0 and (message := self.compare(values["seconds"])):
            self._group.say(message)

    def compare(self, seconds: dict[str, float]) -> str | None:
        """To be called by all processes at the same updates, with nothing in flight. `seconds`: the run's clock, whose bucket
        `data` is the time spent waiting for input. Returns, on process 0, a message that names the processes that were
        late several times in a row; None where there are none or they were named recently.
        """
        now = time.monotonic()
        data, self._data = seconds.get("data", 0.0) - self._data, seconds.get("data", 0.0)
        interval, self._since = now - self._since, now
        mine = {"data": data, "interval": interval, "product": self._measure()}
        with contextlib.suppress(Exception):  # heartbeats notice a coordinator that does not answer
            self._group.put(f"pace/{self._group.index}", json.dumps(mine))
            if self._group.is_lead:
                reports = self._group.entries("pace")
                return self._message({int(i): json.loads(text) for i, text in reports.items()})
        return None

    def _message(self, reports: dict[int, dict[str, float]]) -> str | None:
        late = stragglers(reports, self._share)
        self._in_a_row = {i: self._in_a_row.get(i, 0) + 1 for i in late}
        late = {i: why for i, why in late.items() if self._in_a_row[i] >= _IN_A_ROW}
        self._silent += 1
        if not late or (sorted(late) == self._named and self._silent < _REMIND):
            self._named = sorted(late)
            return None
        self._named, self._silent = sorted(late), 0
        return "\n".join(f"straggler: {self._group.name_of(i)} {why}" for i, why in sorted(late.items()))

    def _compile(self) -> None:
        cpu = jax.default_backend() == "cpu"
        devices = jax.local_devices()[:1] if cpu else jax.local_devices()
        x = jnp.ones((512, 512) if cpu else (4096, 4096), jnp.float32 if cpu else jnp.bfloat16)
        self._inputs = [jax.device_put(x, device) for device in devices]
        self._product = jax.jit(lambda x: jax.lax.fori_loop(0, _PRODUCTS, lambda _, y: (y @ x) * 0.001, x))
        jax.block_until_ready([self._product(x) for x in self._inputs])

    def _measure(self) -> float:
        """Seconds of some products on the devices of this process, the median of three."""
        times = []
        for _ in range(3):
            start = time.perf_counter()
            jax.block_until_ready([self._product(x) for x in self._inputs])
            times.append(time.perf_counter() - start)
        return statistics.median(times)


def stragglers(reports: dict[int, dict[str, float]], share: float) -> dict[int, str]:
    """The processes that cost the others more than `share` of the time, and why. `reports`: seconds `data`, `interval` and
    `product` of each process.
    """
    late = {}
    median = {key: statistics.median_low([own[key] for own in reports.values()]) for key in ("data", "product")}
    for index, own in reports.items():
        input_share = (own["data"] - median["data"]) / max(own["interval"], 1e-9)
        device_share = 1 - median["product"] / max(own["product"], 1e-9)
        if input_share > share:
            late[index] = f"waits for its input; the others wait for it {input_share:.0%} of the time"
        elif device_share > share:
            late[index] = (
                f"takes {own['product'] / median['product']:.1f} times as long as the median for the same product; the "
                f"others wait for it up to {device_share:.0%} of each update"
            )
    return late
