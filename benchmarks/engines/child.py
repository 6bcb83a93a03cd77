"""An engine's process: read the task, time the work, report the result and the memory."""

import json
import os
import resource
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

RESULT = "RESULT "


def main(measure: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Run `measure(task)` and print its result, with the peak resident memory of this process."""
    task = json.loads(Path(sys.argv[1]).read_text())
    result = measure(task)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(RESULT + json.dumps(result | {"peak_rss_mb": round(peak / 1024)}), flush=True)


def time_training(
    step: Callable[[Any], float], batches: Sequence[Any], passes: int
) -> dict[str, Any]:
    """Return the seconds of each batch in each timed pass, and the mean losses of two passes.

    The first pass (compilation, first allocations) is timed apart. The losses are means of the
    first and of the last pass.

    Args:
      step: trains on a batch and returns its loss, so that it has ended when it returns.
    """
    began = time.perf_counter()
    losses, seconds = [[step(batch) for batch in batches]], []
    first = time.perf_counter() - began
    for _ in range(passes):
        losses.append([])
        seconds.append([])
        for batch in batches:
            began = time.perf_counter()
            losses[-1].append(step(batch))
            seconds[-1].append(time.perf_counter() - began)
    means = [sum(each) / len(each) for each in losses]
    return {"first_pass_seconds": first, "seconds": seconds, "losses": [means[0], means[-1]]}


def torch_threads(task: dict[str, Any]) -> None:
    """Set PyTorch's number of threads to the task's."""
    import torch

    torch.set_num_threads(task["threads"])
    torch.manual_seed(0)


def torch_device() -> Any:
    """Return the GPU that PyTorch sees, else the CPU."""
    import torch

    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def preloaded() -> list[str]:
    """Return the libraries of LD_PRELOAD by name."""
    return [os.path.basename(path) for path in os.environ.get("LD_PRELOAD", "").split(":") if path]
