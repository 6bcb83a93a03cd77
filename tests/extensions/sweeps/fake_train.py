"""Stands in for `train` in tests of the worker: takes no time, and fails on request.

python fake_train.py WORKDIR BEHAVIOUR...

BEHAVIOUR: ok, fail, mistake, diverge, memory, once (fails at the first attempt), long (until it is stopped; ok when resumed),
silent (exits with 0 without a result), 75 (stops by itself), hang (until it is killed). A number after it: how many of the 40 test sentences are wrong.
"""

import hashlib
import json
import os
import signal
import sys
import time
from pathlib import Path

workdir, behaviour = Path(sys.argv[1]), sys.argv[2]
(workdir / "eval").mkdir(parents=True, exist_ok=True)
print("alone", os.environ.get("T2T_ALONE"), "training", behaviour, "cores", sorted(os.sched_getaffinity(0)), flush=True)
if count := os.environ.get("T2T_NUM_PROCESSES"):
    print(
        f"process {os.environ['T2T_PROCESS_ID']}/{count} coordinator {os.environ['JAX_COORDINATOR_ADDRESS']}",
        flush=True,
    )
resumed = (workdir / "checkpoints").exists()


def stop(number, frame):
    (workdir / "checkpoints").mkdir(exist_ok=True)
    sys.exit(75)


signal.signal(signal.SIGTERM, stop)
with (workdir / "starts").open("a") as file:  # who sees it may send the signal
    file.write(f"{os.getpid()}\n")
if behaviour in ("silent", "75"):
    sys.exit(0 if behaviour == "silent" else 75)
if behaviour == "mistake":
    print("t2t_flax train: there is no file x")
    sys.exit(2)
if behaviour == "diverge":
    (workdir / "diverged.json").write_text(json.dumps({"step": 7, "reason": "update 7: loss nan, gradient norm nan."}))
    sys.exit(3)
if behaviour == "memory":
    print("jaxlib._jax.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 98765432109 bytes.")
    sys.exit(1)
if behaviour == "fail" or behaviour == "once" and len((workdir / "starts").read_text().split()) == 1:
    print("Traceback: out of something")
    sys.exit(1)
while behaviour == "hang":
    time.sleep(1)
curve = {"ok": [3.0, 2.0, 1.5], "once": [3.0, 2.5, 2.0], "bad": [9.0] * 4}.get(behaviour, [3.0])
with (workdir / "metrics.jsonl").open("w") as file:
    for step, nll in enumerate(curve, 1):
        file.write(json.dumps({"step": 250 * step, "loss": nll, "valid_nll": nll}) + "\n")
        file.flush()
        time.sleep(1.5 if behaviour == "bad" else 0)  # until it is pruned
while behaviour == "long" and not resumed:
    if (workdir / "checkpoints").exists():
        sys.exit(75)  # the training on another host was told to stop
    time.sleep(0.05)
marker = {"step": 3, "reason": "steps", "records": {}, "summary": "", "seconds": {"step": 1.0}}
if len(sys.argv) > 3:
    references = [f"this is sentence number {i} of the test" for i in range(40)]
    wrong = int(sys.argv[3])
    hypotheses = [r if i >= wrong else r.replace("sentence", "word") for i, r in enumerate(references)]
    texts = {"hypotheses": hypotheses, "references": references}
    digests = {}
    for kind, end in (("hypotheses", "hyp"), ("references", "ref")):
        data = "".join(line + "\n" for line in texts[kind]).encode()
        (workdir / "eval" / f"test-3.{end}.txt").write_bytes(data)
        digests[kind] = hashlib.sha256(data).hexdigest()
    record = {
        "record_version": 1, "digests": digests, "hypotheses": "test-3.hyp.txt", "references": "test-3.ref.txt",
        "data": {"spec": "t", "digest": "d" * 64, "sentences": 40, "corpus": ""},
        "config": {"data": {"pretokenized": False, "target_language": "en"}},
        "scores": {"sacrebleu": {"score": 100.0 - wrong}, "nll": wrong / 10},
    }  # fmt: skip
    (workdir / "eval" / "test-3.json").write_text(json.dumps(record))
    marker["records"] = {"test": "test-3.json"}
(workdir / "complete.json").write_text(json.dumps(marker))
