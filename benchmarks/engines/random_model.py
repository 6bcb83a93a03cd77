"""Writes a model of one of the benchmarks' sizes with random weights, as a folder that is a --workdir."""

from typing import Any

from benchmarks.engines.child import main
from benchmarks.models import FIRST_WORD


def measure(task: dict[str, Any]) -> dict[str, Any]:
    """Writes task["out"]: words are w3, w4, ..., one token each."""
    from benchmarks.engines.ours_training import config_of, random_state
    from t2t_flax.data.tokenizers import TokenizerPair
    from t2t_flax.extensions.interop.export import export
    from t2t_flax.extensions.shared.list_tokenizer import SymbolTokenizer

    size = task["size"]
    config, vocab = config_of(size, devices=task["threads"]), size["vocab"]
    words = SymbolTokenizer(SymbolTokenizer.write([f"w{i}" for i in range(FIRST_WORD, vocab)]))
    params = random_state(config, vocab).params
    export(task["out"], "safetensors", config, params, TokenizerPair(words, words), steps=[0])
    return {}


if __name__ == "__main__":
    main(measure)
