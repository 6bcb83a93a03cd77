"""Writes a model of one of the benchmarks' sizes with random weights, as a folder that is a --workdir."""

from typing import Any

from benchmarks.engines.child import main
from benchmarks.models import FIRST_WORD


def measure(task: dict[str, Any]) -> dict[str, Any]:
    """Writes task["out"]: words are w3, w4, ..., one token each."""
    import dataclasses

    from benchmarks.engines.ours_training import config_of
    from t2t_flax.data.tokenizers import SymbolTokenizer, TokenizerPair
    from t2t_flax.distributed import mesh as mesh_lib
    from t2t_flax.extensions.interop.export import export
    from t2t_flax.training.optimizer import make_optimizer
    from t2t_flax.training.train_state import init_state, make_model

    size = task["size"]
    config, vocab = config_of(size, devices=task["threads"]), size["vocab"]
    words = SymbolTokenizer(SymbolTokenizer.write([f"w{i}" for i in range(FIRST_WORD, vocab)]))
    model = make_model(config, vocab, vocab)
    state, _ = init_state(
        config, model, make_optimizer(config), mesh_lib.make_mesh(dataclasses.replace(config.mesh, data=-1))
    )
    export(task["out"], "safetensors", config, state.params, TokenizerPair(words, words), steps=[0])
    return {}


if __name__ == "__main__":
    main(measure)
