"""Another valid value for any config key."""

import dataclasses
from typing import Any

from t2t_flax import config as config_lib
from t2t_flax.config import Config, Decode
from t2t_flax.config.schema import CORE_GROUPS, fields

# Keys whose other value follows from neither their type nor their range, with further keys that it
# needs.
_SAMPLE = {"decode.strategy": "sample", "decode.beam_size": Decode.beam_size}
_SPECIAL: dict[str, dict[str, Any]] = {
    "data.train": {"data.train": "en-de=toy:train:140; en-de.more=toy:train:30"},
    "mixtures.shares": {"mixtures.shares": "en-de=3, en-de.more=1; 1: en-de=1"},
    "mixtures.batch_tokens": {"mixtures.batch_tokens": "1: 1024"},
    "mixtures.temperature": {"mixtures.temperature": 2.0},
    "mixtures.tags": {"mixtures.tags": "en-de=<bt>"},
    "languages.directions": {"languages.directions": "en-de=en-de, en-de.more=en-de, valid=en-de"},
    "mixtures.limits": {"mixtures.limits": "en-de=140"},
    "mixtures.samples": {"mixtures.samples": "en-de=120"},
    "data.valid": {"data.valid": "toy:valid:20"},
    "data.test": {"data.test": "toy:test:4", "languages.directions": "by_name, valid=en-de, test=en-de"},
    "data.task": {"data.task": "parsing"},
    "data.source_language": {"data.source_language": "fr"},
    "data.target_language": {"data.target_language": "fr"},
    "data.tokenizer": {"data.tokenizer": "unigram"},
    "filters.length_ratio": {"filters.length_ratio": 3.0},
    "filters.language": {"filters.language": 0.9},
    "filters.held_out": {"filters.held_out": "pair", "data.valid": "toy:valid:20"},
    "filters.scorer": {"filters.scorer": "tests/helpers/scorer.py:length"},
    "filters.score": {"filters.score": 0.5, "filters.scorer": "tests/helpers/scorer.py:length"},
    "subwords.unigram_alpha": {"subwords.unigram_alpha": 0.1, "data.tokenizer": "unigram"},
    "alignments.head": {"alignments.layer": 1, "alignments.head": 1},
    "decode.engine": {
        "decode.engine": "ctranslate2", "decode.early_stopping": "beam_full", "decode.length_penalty": "power",
    },
    "alignments.row": {"alignments.layer": 1, "alignments.row": "reads"},
    "eval.decode_sentences": {"eval.decode_every_steps": 1, "eval.decode_sentences": 1},
    "decode.strategy": _SAMPLE,
    "decode.temperature": _SAMPLE | {"decode.temperature": 0.5},
    "decode.top_k": _SAMPLE | {"decode.top_k": 5},
    "decode.top_p": _SAMPLE | {"decode.top_p": 0.5},
    "decode.epsilon": _SAMPLE | {"decode.epsilon": 0.1},
    "decode.seed": _SAMPLE | {"decode.seed": 1},
    "decode.n_best": {"decode.n_best": 2},
    "ctranslate2.quantization": {
        "ctranslate2.quantization": "int8", "decode.engine": "ctranslate2", "decode.early_stopping": "beam_full",
        "decode.length_penalty": "power",
    },
    "ensembles.weights": {"ensembles.weights": "2"},
    "constraints.lines": {"constraints.lines": "tabs", "decode.strategy": "constrained_beam"},
    "constraints.glossary": {"constraints.glossary": "terms", "decode.strategy": "constrained_beam"},
    "constraints.counted_terms": {"constraints.counted_terms": "terms"},
    "constraints.avoid": {"constraints.avoid": "terms"},
    "constraints.suppress": {"constraints.suppress": "<unk>"},
    "learned_metrics.names": {"learned_metrics.names": "comet"},
    "learned_metrics.comet": {"learned_metrics.names": "comet", "learned_metrics.comet": "other"},
    "learned_metrics.kiwi": {"learned_metrics.names": "kiwi", "learned_metrics.kiwi": "other"},
    "learned_metrics.metricx": {"learned_metrics.names": "metricx", "learned_metrics.metricx": "other"},
    "learned_metrics.metricx_tokenizer": {"learned_metrics.names": "metricx", "learned_metrics.metricx_tokenizer": "other"},
    "learned_metrics.precision": {"learned_metrics.names": "comet", "learned_metrics.precision": "bfloat16"},
    "learned_metrics.batch_size": {"learned_metrics.names": "comet", "learned_metrics.batch_size": 8},
    "learned_metrics.environments": {"learned_metrics.names": "comet", "learned_metrics.environments": "environments"},
    "constraints.ordered": {
        "constraints.ordered": True, "constraints.lines": "tabs", "decode.strategy": "constrained_beam",
    },
    "parsing.grammar": {"parsing.grammar": True, "data.task": "parsing"},
    "parsing.word_numbers": {"parsing.word_numbers": 8, "data.task": "parsing"},
    "mup.base_width": {"mup.base_width": 64, "optimizer.schedule": "inverse_sqrt"},
    "mup.base_head_width": {
        "mup.base_head_width": 16, "mup.base_width": 64, "optimizer.schedule": "inverse_sqrt",
    },
    "mup.base_layers": {
        "mup.base_layers": 2, "mup.base_width": 64, "optimizer.schedule": "inverse_sqrt", "model.norm_placement": "pre",
    },
    "optimizers.min_lr": {"optimizers.min_lr": 1e-5},
    "eval.sacrebleu_tokenizer": {"eval.sacrebleu_tokenizer": "intl"},
    "trackers.names": {"trackers.names": ""},
    "inspection.layers_every": {"inspection.layers_every": 1000},
    "inspection.profile_steps": {"inspection.profile_steps": (1000, 1001)},
    "mesh.data": {"mesh.data": 8},
    "train.precision": {"train.precision": "bfloat16"},
    "mesh.fsdp": {"mesh.data": -1, "mesh.fsdp": 2},
    "mesh.tensor": {"mesh.data": -1, "mesh.tensor": 2},
    "mesh.rules": {"mesh.data": -1, "mesh.fsdp": 2, "mesh.rules": "embed=fsdp"},
    "mesh.fsdp_mode": {"mesh.data": -1, "mesh.fsdp": 2, "mesh.fsdp_mode": "zero1"},
    "mesh.slices": {"mesh.slices": 2},
}  # fmt: skip
_NAMES = {
    "data.root": "elsewhere",
    "data.cache": "cache",
    "data.corpus": "a corpus",
    "trackers.group": "a group",
}


def with_other_value(config: Config, key: str, *, check: bool = True) -> Config:
    """`config` with another value of `key`, and of the keys that the value needs.

    Raises UserError, with `check`, where they need others still.
    """
    values = _SPECIAL.get(key) or {key: _other(config, key)}
    for name, value in values.items():
        group, item = name.split(".")
        changed = dataclasses.replace(config.group(group), **{item: value})
        if group in CORE_GROUPS:
            config = dataclasses.replace(config, **{group: changed})
        else:
            others = tuple(entry for entry in config.extensions if entry[0] != group)
            config = dataclasses.replace(config, extensions=(*others, (group, changed)))
    return config_lib.resolve(config_lib.to_config_dict(config)) if check else config


def other_value(config: Config, key: str) -> Any:
    """Another value of a key than that of `config`."""
    return _SPECIAL[key][key] if key in _SPECIAL else _other(config, key)


def _other(config: Config, key: str) -> Any:
    group, name = key.split(".")
    now, meta = getattr(config.group(group), name), fields()[key].metadata
    if key in _NAMES:
        return _NAMES[key]
    if isinstance(now, bool):
        return not now
    if meta["choices"]:
        return next(choice for choice in meta["choices"] if choice != now)
    if now is None or isinstance(now, str):
        return 0.05 if now is None else f"{now}x"
    step = 1 if isinstance(now, int) else 0.01
    return now + step if meta["high"] is None or now + step <= meta["high"] else now - step
