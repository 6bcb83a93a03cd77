"""Which process keeps the others waiting.

An update ends for all at once, so its time names nobody. What differs is what each does alone: the time for which its
input made it wait, and the time that its devices take for one and the same product.
"""

import contextlib
import json
import statistics
import time
from typing import Any

import jax
import jax.numpy as jnp

_PRODUCTS = 8
_IN_A_ROW = 3  # one slow comparison is noise
_REMIND = 10


class Pace:
    """Compares the processes of `group` (anything with index, is_lead, count, put, entries, name_of). Of several processes each
    compiles its product here: in the middle of the training that would look as if the process hung.
    """

    def __init__(self, group: Any, share: float):
        self._group, self._share = group, share
        self._data = 0.0
        self._since = time.monotonic()
        self._in_a_row: dict[int, int] = {}
        self._named: list[int] = []
        self._silent = 0
        if group.count > 1:
            self._compile()

    def compare(self, seconds: dict[str, float]) -> str | None:
        """To be called by all processes now and then, with nothing in flight. `seconds`: the run's clock, of which the
        bucket `data` is what the input cost. On the lead: a sentence that names who has been late several times in a
        row, None where there is nobody or where it was said lately.
        """
        now = time.monotonic()
        data, self._data = seconds.get("data", 0.0) - self._data, seconds.get("data", 0.0)
        interval, self._since = now - self._since, now
        mine = {"data": data, "interval": interval, "product": self._measure()}
        with contextlib.suppress(Exception):  # a coordinator that does not answer is for others to notice
            self._group.put(f"pace/{self._group.index}", json.dumps(mine))
            if self._group.is_lead:
                told = self._group.entries("pace")
                return self._say({int(who): json.loads(text) for who, text in told.items()})
        return None

    def _say(self, told: dict[int, dict[str, float]]) -> str | None:
        late = stragglers(told, self._share)
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
        """Seconds of some products on the devices of this process; the median of three."""
        times = []
        for _ in range(3):
            start = time.perf_counter()
            jax.block_until_ready([self._product(x) for x in self._inputs])
            times.append(time.perf_counter() - start)
        return statistics.median(times)


def stragglers(told: dict[int, dict[str, float]], share: float) -> dict[int, str]:
    """Why each process that costs the others more than `share` of the time does so. `told`: seconds `data`, `interval`
    and `product` of each process.
    """
    found = {}
    middle = {key: statistics.median_low([one[key] for one in told.values()]) for key in ("data", "product")}
    for who, one in told.items():
        input_share = (one["data"] - middle["data"]) / max(one["interval"], 1e-9)
        device_share = 1 - middle["product"] / max(one["product"], 1e-9)
        if input_share > share:
            found[who] = f"waits for its input; the others wait for it {input_share:.0%} of the time"
        elif device_share > share:
            found[who] = (
                f"takes {one['product'] / middle['product']:.1f} times as long as the median for the same product; the "
                f"others wait for it up to {device_share:.0%} of each update"
            )
    return found
