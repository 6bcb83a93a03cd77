"""Learned metrics in evaluation records: COMET, COMET-KIWI and MetricX.

Their packages compute them in a separate process and environment.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from t2t_flax.config import Config
from t2t_flax.config.keys import CODE, PROGRAM, SCORES, TEXT, is_set, lists, mutable_key
from t2t_flax.errors import UserError
from t2t_flax.registry import FLAGS, GROUPS, Flag, Group

NAMES = ("comet", "kiwi", "metricx")


@dataclass(frozen=True)
class LearnedMetrics(Group):
    names: str = mutable_key(
        "",
        "learned metrics in evaluation records: comet, kiwi, metricx, or several with commas"
        " between",
        changes=SCORES,
        kind=TEXT,
    )
    comet: str = mutable_key(
        "Unbabel/wmt22-comet-da",
        "model of comet: a name of the Hugging Face hub, or a folder; its packages load it as a"
        " pickle, which is code",
        changes=SCORES,
        kind=CODE,
        when=lists("learned_metrics.names", "comet"),
    )
    kiwi: str = mutable_key(
        "Unbabel/wmt22-cometkiwi-da",
        "model of kiwi, which reads no references; as learned_metrics.comet",
        changes=SCORES,
        kind=CODE,
        when=lists("learned_metrics.names", "kiwi"),
    )
    metricx: str = mutable_key(
        "google/metricx-24-hybrid-large-v2p6",
        "model of metricx; as learned_metrics.comet",
        changes=SCORES,
        kind=CODE,
        when=lists("learned_metrics.names", "metricx"),
    )
    metricx_tokenizer: str = mutable_key(
        "google/mt5-large",
        "tokenizer of metricx; as learned_metrics.comet",
        changes=SCORES,
        kind=CODE,
        when=lists("learned_metrics.names", "metricx"),
    )
    precision: str = mutable_key(
        "float32",
        "type of the models' weights and products",
        choices=("float32", "bfloat16", "float16"),
        changes=SCORES,
        when=is_set("learned_metrics.names"),
    )
    batch_size: int = mutable_key(
        16,
        "sentences that a model scores at once",
        low=1,
        high=2**13,
        when=is_set("learned_metrics.names"),
    )
    environments: str = mutable_key(
        "",
        "folder of the packages' virtual environments, made where they are missing; empty ="
        " ~/.cache/t2t_flax/metrics",
        kind=PROGRAM,
        when=is_set("learned_metrics.names"),
    )

    @property
    def chosen(self) -> tuple[str, ...]:
        """Names of the chosen metrics."""
        return tuple(filter(None, (name.strip() for name in self.names.split(","))))

    def check(self, config: Config) -> None:
        """Raise UserError for an unknown metric and for a task other than translation."""
        for name in self.chosen:
            if name not in NAMES:
                raise UserError(
                    f"config.learned_metrics.names: {name!r} is none of {', '.join(NAMES)}."
                )
        if self.chosen and config.data.task != "translation":
            raise UserError(
                f"config.learned_metrics.names = {self.names} scores translations, not outputs of"
                f" data.task = {config.data.task}."
            )

    @staticmethod
    def metrics() -> Sequence[Any]:
        from t2t_flax.extensions.learned_metrics.metrics import COMET, KIWI, METRICX

        return COMET, KIWI, METRICX


GROUPS.add("learned_metrics", LearnedMetrics)
FLAGS.add(
    "--metric",
    Flag(
        "evaluate",
        "also score with comet, kiwi, metricx (with commas: several)",
        "NAMES",
        key="learned_metrics.names",
    ),
)
