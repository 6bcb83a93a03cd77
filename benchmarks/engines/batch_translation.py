"""`TrainedModel.translate` of all lines at once, as `translate` does: what a server is compared with."""

import time
from typing import Any

from benchmarks.engines.child import main


def measure(task: dict[str, Any]) -> dict[str, Any]:
    """Seconds of each pass over the lines, after one that compiles the programs."""
    from t2t_flax.evaluation.restore import load, stored_config
    from t2t_flax.process_setup import prepare_process
    from t2t_flax.tasks import task_of

    prepare_process(stored_config(task["workdir"], task["overrides"]))
    loaded = load(task["workdir"], overrides=task["overrides"])
    lines, seconds = task["lines"], []
    for _ in range(1 + task["passes"]):
        began = time.perf_counter()
        translations = loaded.translate(lines)
        seconds.append(time.perf_counter() - began)
    kind = task_of(loaded.config)
    texts = [kind.postprocess(line, t.text) for line, t in zip(lines, translations, strict=True)]
    return {
        "first_pass_seconds": seconds[0],
        "seconds": seconds[1:],
        "translations": texts,
        "tokens": sum(len(t.hypotheses[0].tokens) for t in translations),
        "pair": [loaded.config.data.source_language, loaded.config.data.target_language],
        "decode": {"beam_size": loaded.config.decode.beam_size, "batch_size": loaded.config.decode.batch_size},
    }


if __name__ == "__main__":
    main(measure)
