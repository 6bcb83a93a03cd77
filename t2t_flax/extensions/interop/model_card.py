"""README of an exported model: a model card.

The Hugging Face Hub reads its metadata.
"""

import dataclasses
import json
import math
import re
from collections.abc import Sequence
from typing import Any

from t2t_flax.config import Config, from_json
from t2t_flax.config.keys import TRANSLATIONS
from t2t_flax.config.schema import keys_that_change, unmet
from t2t_flax.extensions.shared.directions import Direction
from t2t_flax.language import Language

_LICENSE = re.compile(r"[a-z0-9][a-z0-9.-]*")
_LIBRARY = {"huggingface": "transformers", "ctranslate2": "ctranslate2", "safetensors": "t2t_flax"}
_METRICS = {"sacrebleu": "BLEU", "chrf": "chrF", "chrf++": "chrF++", "ter": "TER"}
"""Names of the scores that a card lists."""


@dataclasses.dataclass(frozen=True)
class Score:
    """One score of an evaluation record.

    Args:
        metric: its name in the record.
        search: how the outputs were searched for.
        data: the test set, without folders.
    """

    search: str
    metric: str
    value: float
    signature: str
    split: str
    data: str
    sentences: int

    @property
    def name(self) -> str:
        return _METRICS[self.metric]


def is_license(text: str) -> bool:
    """Return True if a text can be the Hub's identifier of a licence.

    An example is apache-2.0.
    """
    return bool(_LICENSE.fullmatch(text))


def scores_of_record(record: dict[str, Any], config: Config) -> list[Score]:
    """Return the scores of an evaluation record that a card lists.

    Raises UserError, KeyError, TypeError, ValueError or AttributeError for an invalid record: runs
    are untrusted input.

    Args:
        config: config of the exported model.
    """
    data, search = record["data"], _search(from_json(json.dumps(record["config"])), config)
    name, split, sentences = (
        data.get("corpus") or _file_names(data["spec"]),
        record["split"],
        int(data["sentences"]),
    )
    scores = []
    for metric, entry in record["scores"].items():
        if metric in _METRICS:
            value, signature = float(entry["score"]), entry.get("signature", "")
            if not math.isfinite(value) or not all(
                isinstance(text, str) for text in (name, split, signature)
            ):
                raise ValueError(f"scores.{metric} is not a score")
            scores.append(Score(search, metric, value, signature, split, name, sentences))
    return scores


def _search(scored: Config, exported: Config) -> str:
    """Return the search of a scored config, and where else it differs from the exported one."""
    decode = scored.decode
    named = {"decode.strategy", *(["decode.beam_size"] if decode.strategy == "beam" else [])}
    differing = [
        f"{name} = {_file_names(str(scored.value(name)))}"
        for name in keys_that_change(TRANSLATIONS)
        if name not in named and scored.value(name) != exported.value(name)
        if unmet(name, scored.value) is None
    ]
    search = f"beam of {decode.beam_size}" if decode.strategy == "beam" else decode.strategy
    return ", ".join([search, *differing])


def _file_names(spec: str) -> str:
    """Return sources without the author's folders.

    `x=/home/me/a.en,b.de` becomes `x=a.en,b.de`.
    """
    return re.sub(r"[^,;=]*/", "", spec)


def front_matter(config: Config, directions: Sequence[Direction], kind: str, license: str) -> str:
    """Return the metadata between two lines of dashes; JSON is YAML.

    The author chooses the licence.
    """
    data = config.data
    values: dict[str, Any] = {
        "language": list(
            dict.fromkeys(
                Language.known(code).base for direction in directions for code in direction
            )
        ),
        "license": license or "unknown",
        "library_name": _LIBRARY[kind],
        "tags": list(
            dict.fromkeys(["translation", "t2t_flax", *([kind] if kind != "huggingface" else [])])
        ),
    }
    if data.task == "translation":
        values["pipeline_tag"] = "translation"
    lines = "".join(
        f"{key}: {json.dumps(value, ensure_ascii=False)}\n" for key, value in values.items()
    )
    return f"---\n{lines}---\n\n"


def sections(
    config: Config, trained: Sequence[Direction], scores: Sequence[Score], dtype: str
) -> list[str]:
    """Return the paragraphs on the scores, the model and its data."""
    m, d = config.model, config.data
    parts = []
    if scores:
        before = (
            ""
            if dtype == "float32"
            else f" They are of the model before its conversion to {dtype}."
        )
        rows = "".join(
            f"| {_plain(s.data)} ({_plain(s.split)}, {s.sentences:,} sentences) |"
            f" {_plain(s.search)} | {s.name} | {s.value:.2f} | {_code(s.signature)} |\n"
            for s in scores
        )
        parts.append(
            f"## Scores\n\nScores of this checkpoint by t2t_flax.{before}\n\n| data | search |"
            " score | value | signature |\n|---|---|---|---|---|\n" + rows.rstrip()
        )
    parts.append(
        f"## Model\n\n{m.num_encoder_layers} encoder and {m.num_decoder_layers} decoder layers,"
        f" d_model {m.d_model}, d_ff {m.d_ff}, {m.num_heads} heads."
    )
    if corpus := d.corpus or _file_names(d.train):
        parts.append(
            f"## Data\n\nTrained on {_plain(corpus)} ({', '.join(map(str, trained))}); tokenizer:"
            f" {d.tokenizer}, data.vocab_size {d.vocab_size:,}."
        )
    return parts


def _plain(text: str) -> str:
    """Return untrusted text of a run as plain one-line Markdown.

    It contains no markup and no end of a table's cell.
    """
    return re.sub(r"[&<>|`*\[\]\\]", lambda match: f"&#{ord(match[0])};", " ".join(text.split()))


def _code(text: str) -> str:
    """Return untrusted text of a run as Markdown code.

    A bar ends the cell of a table unless escaped, and only a backtick ends the code.
    """
    text = " ".join(text.split()).replace("`", "'").replace("|", "\\|")
    return f"`{text}`" if text else ""
