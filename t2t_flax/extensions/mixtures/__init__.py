"""Mixtures: shares, tags, limits and samples of the sources of data.train.

Also batch sizes that grow during training.
"""

import math
import re
from dataclasses import dataclass
from typing import Any, NamedTuple

from t2t_flax.config import Config
from t2t_flax.config.keys import TEXT, TRAINING, When, is_set, key
from t2t_flax.errors import UserError
from t2t_flax.extensions.shared.named_entries import named_entries
from t2t_flax.registry import GROUPS, Group

_RESERVED = re.compile("<unk>|<pad>|</?s>|<0x[0-9A-Fa-f]{2}>|<2.*>|>>.*<<")
"""Special pieces, bytes, and symbols of target languages."""
_START = re.compile(r"\s*(\d+)\s*:(.*)", re.DOTALL)


def _are_several(spec: Any) -> bool:
    """Return whether data.train names several sources, or none yet."""
    return len([part for part in str(spec).split(";") if part.strip()]) != 1


_SEVERAL = When((("data.train", _are_several),), "several sources in config.data.train")


@dataclass(frozen=True)
class Mixtures(Group):
    shares: str = key(
        "",
        "share of each source of data.train in the pairs of an update, as 'NAME=3, NAME=1'; from an"
        " update on other shares, which may change until then: 'NAME=3, NAME=1; 20000: NAME=1'."
        " Empty = by size, see temperature",
        mutable=True,
        changes=TRAINING,
        kind=TEXT,
        when=_SEVERAL,
    )
    batch_tokens: str = key(
        "",
        "tokens per update from an update on, in place of data.batch_tokens, which counts before:"
        " '2000: 50000; 8000: 100000'; later ones may change. The learning rate stays that of its"
        " schedule",
        mutable=True,
        changes=TRAINING,
        kind=TEXT,
    )
    temperature: float | None = key(
        None,
        "shares are (pairs of the source)^(1/T): larger = small sources more often; none = every"
        " pair equally often",
        low=1.0,
        high=1e6,
        when=_SEVERAL,
    )
    tags: str = key(
        "",
        "token put before the source sentences of a source of data.train: 'NAME=<bt>,"
        " NAME=<synthetic>'",
        kind=TEXT,
    )
    limits: str = key(
        "", "only the first pairs of a source of data.train: 'NAME=100000'", kind=TEXT
    )
    samples: str = key(
        "", "only a random sample of the pairs of a source of data.train: 'NAME=100000'", kind=TEXT
    )
    sample_seed: int = key(
        0,
        "seed of mixtures.samples: the same sample whatever seed.data is",
        low=0,
        high=2**63 - 1,
        when=is_set("mixtures.samples"),
    )

    def check(self, config: Config) -> None:
        """Raise UserError for a wrong value, and for a schedule in epochs of changing length."""
        phases, _, limits, samples = (
            parse_shares(config),
            parse_tags(config),
            parse_limits(config),
            parse_samples(config),
        )
        if both := sorted(limits.keys() & samples.keys()):
            raise UserError(
                f"config.mixtures.limits and config.mixtures.samples both name {both[0]}: set one"
                " of them."
            )
        sizes = parse_batch_tokens(config)
        if small := next(
            (size for size in sizes.values() if size < 2 * config.data.max_length), None
        ):
            raise UserError(
                f"config.mixtures.batch_tokens = {self.batch_tokens!r}: {small} tokens must hold at"
                " least two of the longest pairs (config.data.max_length ="
                f" {config.data.max_length})."
            )
        if self.temperature is not None and phases[0].weights:
            raise UserError(
                "config.mixtures.shares gives the shares: config.mixtures.temperature ="
                f" {self.temperature} would have no effect. Set one of them."
            )
        if len(phases) + len(sizes) > 1 and (
            config.eval.every_epochs or config.checkpoint.every_epochs
        ):
            changing = "batch_tokens" if sizes else "shares"
            raise UserError(
                f"config.mixtures.{changing} = {getattr(self, changing)!r} changes the length of an"
                " epoch: use config.eval.every_steps and config.checkpoint.every_steps instead of"
                " every_epochs."
            )

    def check_change(self, stored: Config, given: Config, step: int) -> None:
        """Raise UserError for other shares or batch sizes in updates up to `step`."""
        old, new = (
            {k: n for k, n in parse_batch_tokens(c).items() if k < step} for c in (stored, given)
        )
        if old != new:
            raise UserError(
                f"config.mixtures.batch_tokens = {self.batch_tokens!r}: the run stands at update"
                f" {step}, up to which it had {stored.group('mixtures').batch_tokens!r}. Only sizes"
                " from this or a later update on may change."
            )
        before, now = (
            [phase.shares for phase in parse_shares(c) if phase.start < step]
            for c in (stored, given)
        )
        if before != now and len(given.data.train_sources) > 1:
            raise UserError(
                f"config.mixtures.shares = {self.shares!r}: the run stands at update {step}, up to"
                f" which its shares are those of {stored.group('mixtures').shares!r}. Only shares"
                " from this or a later update on may change."
            )

    def data_hook(self, config: Config) -> Any:
        weights = self.shares, self.temperature, self.batch_tokens
        if not any((self.tags, self.limits, self.samples, *weights)):
            return None
        from t2t_flax.extensions.mixtures.hook import MixturesHook

        return MixturesHook(config)


class Phase(NamedTuple):
    """A phase of training.

    Args:
        start: first update (from 0) with these weights.
        weights: weights by source name; sources without one are left out. None = by size.
    """

    start: int
    weights: dict[str, float] | None

    @property
    def shares(self) -> tuple:
        """Return the start and the proportions of the weights.

        Other differences have no effect.
        """
        return self.start, self.weights and {
            name: w / sum(self.weights.values()) for name, w in self.weights.items()
        }


def parse_shares(config: Config) -> list[Phase]:
    """Return the phases of mixtures.shares, the first from update 0.

    Raises UserError for unknown names, weights that are not positive numbers, and updates that are
    not ascending.
    """
    text = config.group("mixtures").shares
    if not text.strip():
        return [Phase(0, None)]
    shown = f"config.mixtures.shares = {text!r}"
    phases: list[Phase] = []
    for number, part in enumerate(part for part in text.split(";") if part.strip()):
        start = _START.fullmatch(part)
        if bool(start) != (number > 0):
            raise UserError(
                f"{shown}: write shares from update 0, then those of later updates as '; UPDATE:"
                " NAME=1'."
            )
        first, entries = (int(start[1]), start[2]) if start else (0, part)
        if phases and first <= phases[-1].start:
            raise UserError(f"{shown}: update {first} must come after update {phases[-1].start}.")
        weights = {
            name: _weight(shown, value) for name, value in _entries(shown, entries, config).items()
        }
        if not weights:
            raise UserError(
                f"{shown}: the shares from update {first} on name no source. Write NAME=1 for each"
                " that is read."
            )
        phases.append(Phase(first, weights))
    return phases


def parse_batch_tokens(config: Config) -> dict[int, int]:
    """Return mixtures.batch_tokens by their first update (from 0).

    Raises UserError unless it is a list of ascending updates and sizes.
    """
    text = config.group("mixtures").batch_tokens
    shown = f"config.mixtures.batch_tokens = {text!r}"
    sizes: dict[int, int] = {}
    for part in (part for part in text.split(";") if part.strip()):
        entry = _START.fullmatch(part)
        if not entry or not entry[2].strip().isdecimal() or not 16 <= int(entry[2]) <= 2**28:
            raise UserError(
                f"{shown}: {part.strip()!r} is not UPDATE: TOKENS, as in 2000: 50000, of 16 tokens"
                " or more."
            )
        first = int(entry[1])
        if first <= max(sizes, default=0):
            raise UserError(
                f"{shown}: update {first} must come after update {max(sizes, default=0)}, up to"
                " which data.batch_tokens counts."
                if not sizes
                else f"{shown}: update {first} must come after update {max(sizes)}."
            )
        sizes[first] = int(entry[2])
    return sizes


def parse_tags(config: Config) -> dict[str, str]:
    """Return mixtures.tags by source name.

    Raises UserError for unknown names and tags with spaces.
    """
    text = config.group("mixtures").tags
    shown = f"config.mixtures.tags = {text!r}"
    tags = _entries(shown, text, config)
    for tag in tags.values():
        if len(tag.split()) != 1:
            raise UserError(f"{shown}: {tag!r} is not one word.")
        if _RESERVED.fullmatch(tag):
            raise UserError(
                f"{shown}: {tag} is a piece with a meaning of its own; choose another tag, such as"
                " <bt>."
            )
    return tags


def parse_limits(config: Config) -> dict[str, int]:
    """Return mixtures.limits by source name.

    Raises UserError for unknown names and limits that are not whole numbers above 0.
    """
    return _numbers_of_pairs("limits", config)


def parse_samples(config: Config) -> dict[str, int]:
    """Return mixtures.samples by source name, as `parse_limits`."""
    return _numbers_of_pairs("samples", config)


def _numbers_of_pairs(key: str, config: Config) -> dict[str, int]:
    text = getattr(config.group("mixtures"), key)
    shown = f"config.mixtures.{key} = {text!r}"
    numbers = _entries(shown, text, config)
    for name, value in numbers.items():
        if not value.isdecimal() or not int(value):
            raise UserError(f"{shown}: {value!r} is not a number of pairs (of {name}).")
    return {name: int(value) for name, value in numbers.items()}


def _entries(shown: str, text: str, config: Config) -> dict[str, str]:
    return named_entries(shown, text, list(config.data.train_sources)) if text.strip() else {}


def _weight(shown: str, text: str) -> float:
    try:
        weight = float(text)
    except ValueError:
        weight = math.nan
    if not (0 < weight < math.inf):
        raise UserError(
            f"{shown}: {text!r} is not a share: write a number above 0, and leave out sources"
            " without pairs."
        )
    return weight


GROUPS.add("mixtures", Mixtures)
