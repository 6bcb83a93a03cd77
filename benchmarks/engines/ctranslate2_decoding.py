"""CTranslate2 on the same weights, with the task's `compute_type` and thread counts."""

import time
from pathlib import Path
from typing import Any

import ctranslate2

from benchmarks.engines.child import main
from benchmarks.engines.ctranslate2_model import export, words
from benchmarks.models import read_json


def translate(
    translator: Any, groups: list, tokens: list[str], task: dict[str, Any]
) -> tuple[float, list, list]:
    """Return (seconds, ids of each sentence, scores).

    All batches are queued at once; the workers take them in turn.
    """
    began, pending = time.perf_counter(), []
    for group in groups:
        for start in range(0, len(group["sources"]), task["batch_size"]):
            sources = group["sources"][start : start + task["batch_size"]]
            pending += translator.translate_batch(
                [[tokens[i] for i in ids] for ids in sources],
                asynchronous=True,
                beam_size=task["beam_size"],
                length_penalty=task["alpha"],
                max_decoding_length=group["cap"],
                min_decoding_length=0,
                max_input_length=0,
                return_scores=True,
                suppress_sequences=[[tokens[0]]],
            )
    results = [each.result() for each in pending]
    return (
        time.perf_counter() - began,
        [r.hypotheses[0] for r in results],
        [r.scores[0] for r in results],
    )


def measure(task: dict[str, Any]) -> dict[str, Any]:
    """Time the translation of all groups."""
    vocab = read_json(Path(task["folder"], "model.json"))["vocab"]
    tokens, compute_type = words(vocab), task["compute_type"]
    path = Path(task["folder"], f"ctranslate2-{compute_type}")
    if not path.exists():
        export(task["folder"], path, None if compute_type == "float32" else compute_type)
    arrangement = {name: task[name] for name in ("inter_threads", "intra_threads")}
    began = time.perf_counter()
    translator = ctranslate2.Translator(
        str(path), compute_type=compute_type, max_queued_batches=-1, **arrangement
    )
    translate(translator, [task["groups"][0]], tokens, task)
    first = time.perf_counter() - began
    timed = [translate(translator, task["groups"], tokens, task) for _ in range(task["passes"])]
    ids = {token: i for i, token in enumerate(tokens)}
    return {
        "first_pass_seconds": first,
        "seconds": [seconds for seconds, *_ in timed],
        "outputs": [[ids[token] for token in hypothesis] for hypothesis in timed[-1][1]],
        "scores": timed[-1][2],
        "settings": [
            f"{translator.compute_type}, {task['inter_threads']} workers of {task['intra_threads']}"
            " threads"
        ],
        "versions": {"ctranslate2": ctranslate2.__version__},
    }


if __name__ == "__main__":
    main(measure)
