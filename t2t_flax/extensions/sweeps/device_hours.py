"""What the trials of a sweep cost: the time of all their attempts times their devices, and its price."""

import dataclasses
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

from t2t_flax.errors import UserError
from t2t_flax.extensions.sweeps.folder import Folder, Status
from t2t_flax.filesystem import read_if_exists
from t2t_flax.json_file import parse_json
from t2t_flax.training.workdir import DEVICES

CPU = "cpu"
"""Kind of the CPU's devices, which are not chips."""
UNKNOWN = ""
"""Kind of the devices of attempts that ended before they had any; their time is that of one device."""


def begin_attempt(folder: Folder, name: str, status: Status, stacked: int) -> dict[str, Any]:
    """Changes to a trial's status when an attempt begins. stacked: trials that share its devices."""
    counted = end_unseen_attempt(folder, name, status)
    (folder.workdir(name) / DEVICES).unlink(missing_ok=True)  # of the earlier attempt
    return counted | {"began": time.time(), "stacked": stacked}


def end_attempt(folder: Folder, name: str, status: Status) -> dict[str, Any]:
    """Changes to a trial's status when a worker sees an attempt's end."""
    return {"began": 0.0, "device_seconds": _device_seconds(folder, name, status, time.time())}


def end_unseen_attempt(folder: Folder, name: str, status: Status) -> dict[str, Any]:
    """Changes to a trial's status that count an attempt, if there is one, whose end no worker saw. To be stored before
    anything else is written to the trial's log, whose last change counts as the end.
    """
    return {"began": 0.0, "device_seconds": _device_seconds(folder, name, status, _last_output(folder, name))}


def device_hours(folder: Folder, name: str) -> Counter[str]:
    """Hours of all attempts of a trial by the kind of devices. A running attempt counts until now, one whose end no worker
    saw until its last output.
    """
    now = time.time() if folder.holder(name) else _last_output(folder, name)
    seconds = _device_seconds(folder, name, folder.status(name), now)
    return Counter({kind: value / 3600 for kind, value in seconds.items()})


def _device_seconds(folder: Folder, name: str, status: Status, end: float) -> dict[str, float]:
    """Those of earlier attempts, and of one that began and ends at `end`."""
    if not status.began:
        return dict(status.device_seconds)
    kind, count = _devices(folder, name)
    seconds = max(0.0, end - status.began) * count / status.stacked
    return dict(status.device_seconds) | {kind: round(status.device_seconds.get(kind, 0.0) + seconds, 1)}


def _devices(folder: Folder, name: str) -> tuple[str, int]:
    """Kind and number of the devices that trained a trial last; one of an unknown kind if that is not recorded."""
    try:
        stored = parse_json(read_if_exists(folder.workdir(name) / DEVICES) or "")
        return str(stored["kind"]), int(stored["count"])
    except (ValueError, KeyError, TypeError):
        return UNKNOWN, 1


def _last_output(folder: Folder, name: str) -> float:
    """When the trial last wrote to its log or metrics; 0 if it never did."""
    paths = (folder.log(name), folder.workdir(name) / "metrics.jsonl")
    return max((path.stat().st_mtime for path in paths if path.exists()), default=0.0)


@dataclasses.dataclass(frozen=True)
class Prices:
    """Price of an hour of one device, by kind; `default` for other kinds."""

    by_kind: Mapping[str, float]
    default: float | None = None

    @classmethod
    def parse(cls, texts: list[str]) -> "Prices | None":
        """Of `AMOUNT` or `KIND=AMOUNT` each; None for no texts. Raises UserError."""
        by_kind: dict[str, float] = {}
        for text in texts:
            kind, equals, amount = text.rpartition("=")
            try:
                value = float(amount)
            except ValueError:
                value = -1.0
            if not 0 <= value < float("inf") or equals and not kind.strip() or kind.strip() in by_kind:
                raise UserError(
                    f"--price={text}: expected the price of one chip-hour, --price=AMOUNT or --price='KIND=AMOUNT', one for "
                    "each kind of chip."
                )
            by_kind[kind.strip()] = value
        return cls({k: v for k, v in by_kind.items() if k}, by_kind.get("")) if texts else None

    def of(self, kind: str) -> float | None:
        """The price of an hour of this kind; None if it is not known."""
        return self.by_kind.get(kind, self.default)


@dataclasses.dataclass(frozen=True)
class Bill:
    """hours: by trial and kind of devices. states: of the trials."""

    hours: Mapping[str, Counter[str]]
    states: Mapping[str, str]
    prices: Prices | None

    @property
    def kinds(self) -> list[str]:
        """The kinds of devices that the trials had, without UNKNOWN."""
        return list(dict.fromkeys(kind for hours in self.hours.values() for kind in hours if kind != UNKNOWN))

    @property
    def unit(self) -> str:
        """`chip-hours`, `CPU device-hours` or, with both, `device-hours`."""
        if CPU not in self.kinds:
            return "chip-hours"
        return "CPU device-hours" if self.kinds == [CPU] else "device-hours"

    def total(self, *names: str) -> float:
        """Device-hours of these trials."""
        return sum(hours for name in names for kind, hours in self.hours[name].items() if kind != UNKNOWN)

    def cost(self, *names: str) -> float:
        """Price of the device-hours of these trials, without those of kinds that have no price."""
        prices = self.prices or Prices({})
        return sum((prices.of(kind) or 0.0) * hours for n in names for kind, hours in self.hours[n].items() if kind)

    def columns(self) -> tuple[str, ...]:
        """Names of the columns of `cells`; none if no trial has used a device."""
        return (self.unit, *(["cost"] if self.prices else [])) if self.kinds else ()

    def cells(self, *names: str) -> list[str]:
        """Hours and cost of these trials, for a table."""
        return (
            [_number(self.total(*names)), *([_number(self.cost(*names))] if self.prices else [])] if self.kinds else []
        )

    def summary(self) -> str:
        """One sentence about the whole sweep; empty if no trial has used a device."""
        names = list(self.hours)
        if not self.kinds:
            return ""
        kinds = ", ".join(
            f"{_number(sum(self.hours[name][kind] for name in names))} of {'CPU devices' if kind == CPU else kind}"
            for kind in self.kinds
        )
        states = list(dict.fromkeys(self.states.values()))
        used = {state: self.total(*(name for name in names if self.states[name] == state)) for state in states}
        parts = ", ".join(f"{state} {_number(hours)}" for state, hours in used.items() if hours)
        text = f"{self.unit} of all attempts: {kinds} ({parts})"
        if self.prices:
            rates = [f"{price:g} for {kind}" for kind in self.kinds if (price := self.prices.of(kind)) is not None]
            text += f"; cost: {_number(self.cost(*names))}, at {', '.join(rates) or 'no known price'} per hour"
            if missing := [kind for kind in self.kinds if self.prices.of(kind) is None]:
                text += f", without {', '.join(missing)}, which has no --price"
        if unknown := sum(self.hours[name][UNKNOWN] for name in names):
            text += f"; not included: {unknown * 3600:.0f} s of attempts that ended before they had devices"
        return text


def _number(value: float) -> str:
    return f"{value:.2f}" if value >= 10 else f"{value:.4f}"


def make_bill(folder: Folder, names: list[str], prices: Prices | None) -> Bill:
    """What these trials have cost so far."""
    hours = {name: device_hours(folder, name) for name in names}
    return Bill(hours, {name: folder.displayed_state(name) for name in names}, prices)
