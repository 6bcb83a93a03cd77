"""Write the weights of a trained run, or random ones of a size, for the decoding engines.

FOLDER/weights.npz holds our parameters by path (`encoder_0/feed_forward/Einsum_0/kernel`),
FOLDER/model.json the model's keys and vocabulary, FOLDER/sources.json the ids of the sentences to
translate (a run's test set).
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.engines.child import main
from benchmarks.models import PAD
from t2t_flax.config.keys import keys_of
from t2t_flax.extensions.interop.safetensors_file import flatten

SAME_AS_PAPER = (
    "norm_placement", "position", "position_offset", "tie_embeddings", "embed_scale",
    "logit_scale", "output_bias", "attention_bias", "decoder_start_token", "activation",
    "feed_forward", "attention_score", "mixer", "num_kv_heads", "d_k", "d_v", "norm_type",
    "final_norm",
)  # fmt: skip
"""Keys of the model that must have their defaults: the other engines read only this form."""


def save(folder: str | Path, params: Any, model: Any, vocab: int) -> None:
    """Write weights.npz and model.json. Raises ValueError for models unlike the paper's."""
    keys = {key.name: getattr(model, key.name) for key in keys_of(model)}
    if different := [key for key in SAME_AS_PAPER if keys[key] != getattr(type(model)(), key)]:
        raise ValueError(
            f"model.{different[0]} = {keys[different[0]]!r}: this benchmark takes the paper's form"
            " only"
        )
    arrays = flatten(params)
    table = arrays["shared_embedding/table"].copy()
    table[PAD] = 0  # padding is never predicted; peers that do not mask its logit get the same one
    np.savez(Path(folder, "weights.npz"), **(arrays | {"shared_embedding/table": table}))
    Path(folder, "model.json").write_text(json.dumps({"vocab": vocab, "keys": keys}))


def measure(task: dict[str, Any]) -> dict[str, Any]:
    """Write the files; the result names the model."""
    folder = Path(task["folder"])
    if task.get("workdir"):
        import t2t_flax

        run = t2t_flax.load(task["workdir"])
        vocab = run.tokenizers.source.vocab_size
        save(folder, run.params, run.config.model, vocab)
        sources = [[*run.tokenizers.source.encode(line), 1] for line in task["lines"]]
        (folder / "sources.json").write_text(json.dumps(sources))
        return {"steps": list(run.steps)}
    from benchmarks.engines.ours_training import config_of, random_state

    config, vocab = config_of(task["size"]), task["size"]["vocab"]
    save(folder, random_state(config, vocab).params, config.model, vocab)
    return {}


if __name__ == "__main__":
    main(measure)
