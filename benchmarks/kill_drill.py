"""Stop training with SIGTERM and SIGKILL, complete it, and compare it with a run never stopped.

python -m benchmarks.kill_drill --stops=200

Every config has one run that SIGTERM stops at each call that asks whether to stop
(`RunSupervisor.should_stop`). When it goes on, it is stopped four times at random moments: some
time after the n-th beginning of one of `PLACES`, by either signal. The processes run the command
line, forked from one that has imported JAX. benchmarks/results/kill_drill.log gets a line for each
run. Exit code 1: a run differs.

Compared are: the names of all files; all metadata and every array of every checkpoint (parameters,
optimizer state, moving average); the set of the last two regular checkpoints and the best ones;
metrics.jsonl; the records with their names and texts; all other files of the workdir; an exported
model. Not compared are times (seconds, tokens per second, utilization, time stamps) and the names
under which Orbax stores parts of arrays.
"""

import argparse
import concurrent.futures
import dataclasses
import importlib
import json
import multiprocessing
import os
import random
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.run_contents import Difference, compare, visible

ROOT = Path(__file__).parents[1]
LOG = ROOT / "benchmarks" / "results" / "kill_drill.log"
ASKING = "asking whether to stop"
PLACES = {
    "preparing": "t2t_flax.data.dataset:prepare_corpus",
    "compiling": "t2t_flax.training.loop:compile_programs",
    "update": "t2t_flax.training.prefetcher:Prefetcher.next",
    "evaluation": "t2t_flax.training.validation:ValidationLoss.__call__",
    "decoding": "t2t_flax.decoding.translator:Translator.translate",
    "saving": "t2t_flax.training.checkpoints:Checkpoints.save",
    "renaming a checkpoint": "t2t_flax.training.checkpoints:Checkpoints._flush",
    "deleting a checkpoint": "t2t_flax.training.checkpoints:mark_unfinished",
    "adding an evaluation": "t2t_flax.training.checkpoints:Checkpoints.add_evaluation",
    "final evaluation": "t2t_flax.evaluation.sets:finish",
    "writing a record": "t2t_flax.evaluation.evaluate:write_record",
    "export": "t2t_flax.extensions.interop.export:export",
}
"""Name of each phase, and the function with which it begins."""
FUNCTIONS = PLACES | {ASKING: "t2t_flax.distributed.supervisor:RunSupervisor.should_stop"}
BASE = {
    "data.train": "toy:train:300", "data.valid": "toy:valid:6", "data.test": "toy:test:6",
    "data.vocab_size": 300, "data.byte_fallback": "false", "data.max_length": 64,
    "data.pack_length": 64, "data.batch_tokens": 512, "data.num_workers": 1, "model.d_model": 16,
    "model.d_ff": 32, "model.num_heads": 4, "model.num_encoder_layers": 1,
    "model.num_decoder_layers": 1, "model.dropout": 0.1, "model.pad_vocab_to_multiple": 8,
    "optimizer.warmup_steps": 10, "train.steps": 7, "checkpoint.every_steps": 2,
    "checkpoint.keep_last": 2, "checkpoint.keep_best": 1, "checkpoint.average_last": 2,
    "eval.every_steps": 3, "eval.decode_every_steps": 4, "eval.metric": "bleu",
    "eval.bootstrap_samples": 10, "log.every_steps": 3, "trackers.names": "",
    "decode.max_length_offset": 3, "decode.beam_size": 2, "decode.batch_size": 3,
    "mesh.cpu_devices": 1, "distributed.heartbeat_timeout": 8,
    "distributed.initialization_timeout": 120,
}  # fmt: skip
CONFIGS = {
    "packed": {},
    "buckets": {"data.batching": "buckets", "data.pack_length": None},
    "padded tokens": {
        "recipes.batch_groups": 4,
        "data.batch_tokens": 1024,
        "data.pack_length": None,
    },
    "mixture": {
        "data.train": "many=toy:train:200; few=toy:train:60",
        "mixtures.shares": "many=1, few=1; 4: few=1",
    },
    "BPE dropout": {"subwords.bpe_dropout": 0.1},
    "LoRA": {"finetuning.lora_rank": 2},
    "EMA": {"optimizer.ema_decay": 0.9, "data.microbatch_tokens": 128},
    "epochs": {
        "data.batch_tokens": 4096,
        "checkpoint.every_steps": 0,
        "checkpoint.every_epochs": 1,
        "eval.every_steps": 0,
        "eval.every_epochs": 1,
        "eval.decode_every_steps": 0,
        "eval.metric": "nll",
    },
    "patience": {"eval.patience": 1, "eval.decode_every_steps": 2, "train.steps": 30},
    "two processes": {"mesh.data": 2},
}
LATER = 4
"""Random stops of a run after its first one."""
EXPORTED = "packed"
"""The config whose runs are exported at the end."""
ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "JAX_DISABLE_MOST_OPTIMIZATIONS": "true",
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    "XLA_FLAGS": "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1",
}


@dataclasses.dataclass(frozen=True)
class Stop:
    """A signal, `seconds` after the `nth` call of the function with which `place` begins.

    Attributes:
      process: the number of the process that gets it.
    """

    place: str
    nth: int
    seconds: float
    signal: signal.Signals
    process: int = 0

    def __str__(self) -> str:
        after = f" + {self.seconds:.2f} s" if self.seconds else ""
        return f"{self.signal.name} at {self.place} {self.nth}{after}"


def run_command(
    arguments: list[str], environment: dict[str, str], stop: Stop | None, log: Path
) -> None:
    """Run the command in this process, with a stop.

    Writes the count of beginnings of each place to LOG.counts, and LOG.stopped before the signal.
    """
    os.environ.update(environment)
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    counts = dict.fromkeys(FUNCTIONS, 0)

    def reached(place: str, supervisor: Any) -> None:
        counts[place] += 1
        if stop is None or (place, counts[place]) != (stop.place, stop.nth):
            return

        def send() -> None:
            log.with_suffix(".stopped").touch()
            os.kill(os.getpid(), stop.signal)

        if stop.seconds:
            threading.Timer(stop.seconds, send).start()
            return
        send()
        if place == ASKING:  # it answers yes at this very call
            supervisor.stop_requested.wait(60.0)

    for place, name in FUNCTIONS.items():
        _call_first(name, lambda first, place=place: reached(place, first))
    from t2t_flax.__main__ import main

    code = main(arguments)
    log.with_suffix(".counts").write_text(json.dumps(counts))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _call_first(name: str, callback: Any) -> None:
    """Replace the function MODULE:NAME by one that calls `callback` with its first argument."""
    module, _, path = name.partition(":")
    owner: Any = importlib.import_module(module)
    *parents, attribute = path.split(".")
    for parent in parents:
        owner = getattr(owner, parent)
    function = getattr(owner, attribute)

    def replaced(*args, **kwargs):
        callback(args[0] if args else None)
        return function(*args, **kwargs)

    setattr(owner, attribute, replaced)


class Runs:
    """Starts commands of runs in `folder`."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._context = multiprocessing.get_context("forkserver")
        modules = {name.partition(":")[0] for name in FUNCTIONS.values()}
        self._context.set_forkserver_preload(
            [*sorted(modules), "t2t_flax.cli.train", "t2t_flax.extensions.interop.export_command"]
        )

    def train(self, workdir: Path, name: str, stop: Stop | None) -> tuple[int, bool]:
        keys = BASE | CONFIGS[name] | {"data.cache": self.folder / "cache"}
        if name == "LoRA":
            keys["finetuning.init_from"] = self.folder / "whole packed"
        flags = [f"--config.{key}={value}" for key, value in keys.items() if value is not None]
        return self._run(
            ["train", f"--config={ROOT}/configs/toy.py", f"--workdir={workdir}", *flags],
            workdir,
            name,
            stop,
        )

    def export(self, workdir: Path, name: str, stop: Stop | None) -> tuple[int, bool]:
        flags = [
            "export",
            f"--workdir={workdir}",
            f"--output={workdir}/exported",
            "--format=safetensors",
        ]
        return self._run(flags, workdir, "", stop)

    def _run(
        self, arguments: list[str], workdir: Path, name: str, stop: Stop | None
    ) -> tuple[int, bool]:
        """Return (exit code of the process that gets the signal, whether the signal was sent).

        Raises Difference where a process hangs.
        """
        count = 2 if name == "two processes" else 1
        mark = log_of(workdir, stop.process if stop else 0).with_suffix(".stopped")
        mark.unlink(missing_ok=True)
        address, processes = f"127.0.0.1:{free_port()}", []
        for index in range(count):
            one = dict(
                T2T_NUM_PROCESSES="2", T2T_PROCESS_ID=str(index), JAX_COORDINATOR_ADDRESS=address
            )
            mine = stop if stop and stop.process == index else None
            given = arguments, one if count > 1 else {}, mine, log_of(workdir, index)
            processes.append(self._context.Process(target=run_command, args=given))
            processes[-1].start()
        deadline = time.monotonic() + 400
        for process in processes:
            process.join(max(1.0, deadline - time.monotonic()))
        if any(process.is_alive() for process in processes):
            for process in processes:
                process.kill()
            raise Difference(f"still running after 400 s:\n{tail(workdir)}")
        codes = [process.exitcode or 0 for process in processes]
        return (
            codes[stop.process] if stop and mark.exists() else max(codes, key=abs)
        ), mark.exists()


def log_of(workdir: Path, process: int = 0) -> Path:
    return workdir.with_name(f"{workdir.name}-{process}.log")


def tail(workdir: Path) -> str:
    return "\n".join(
        path.read_text()[-2000:] for path in sorted(workdir.parent.glob(f"{workdir.name}-?.log"))
    )


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@dataclasses.dataclass
class Drill:
    """The undisturbed runs, by config: their visible contents, and how often each place begins."""

    runs: Runs
    whole: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    counts: dict[str, dict[str, int]] = dataclasses.field(default_factory=dict)

    def undisturbed(self, name: str) -> None:
        workdir = self.runs.folder / f"whole {name}"
        for command in (self.runs.train, *([self.runs.export] if name == EXPORTED else [])):
            code, _ = command(workdir, name, None)
            if code:
                raise Difference(f"{name}: the undisturbed run failed with {code}\n{tail(workdir)}")
            if command == self.runs.train:
                self.counts[name] = json.loads(log_of(workdir).with_suffix(".counts").read_text())
        self.whole[name] = visible(workdir)

    def stop_and_compare(
        self, number: int, name: str, first: Stop, rng: random.Random, note: Callable
    ) -> int:
        """Stop a run at `first` and at random moments, complete and compare it.

        Returns how many signals were sent.
        """
        workdir, sent, failure = self.runs.folder / f"{number} {name}", [], ""
        stops = [first, *(self.random_stop(name, rng) for _ in range(LATER)), None]
        commands = [(self.runs.train, stop) for stop in stops]
        if name == EXPORTED:
            in_export = Stop(
                "export",
                1,
                rng.choice((0.0, rng.uniform(0.001, 0.05))),
                rng.choice((signal.SIGTERM, signal.SIGKILL)),
            )
            commands += [(self.runs.export, in_export), (self.runs.export, None)]
        try:
            for command, stop in commands:
                if command == self.runs.export and (workdir / "exported").exists():
                    continue
                code, stopped = command(workdir, name, stop)
                if stopped:
                    sent.append(f"{stop}: exit code {code}")
                if code not in ((0, 75, -signal.SIGTERM, -signal.SIGKILL) if stopped else (0,)):
                    raise Difference(f"exit code {code}:\n{tail(workdir)}")
            compare(self.whole[name], visible(workdir))
        except Exception as error:  # noqa: BLE001 - whatever goes wrong with one run, the others continue
            failure = str(error) if isinstance(error, Difference) else traceback.format_exc()
        note(
            f"run {number:3}  {name:13}  {f'DIFFERS: {failure}' if failure else 'equal'} "
            f" {'; '.join(sent)}",
            failure,
        )
        return len(sent)

    def random_stop(self, name: str, rng: random.Random) -> Stop:
        """At the start of something that the undisturbed run did, or soon after it."""
        counts = self.counts[name] | {"adding an evaluation": 1}
        place = rng.choice([place for place in PLACES if counts[place]])
        kind = rng.choice((signal.SIGTERM, signal.SIGKILL))
        seconds = rng.choice((0.0, rng.uniform(0.001, 0.05), rng.uniform(0.001, 0.5)))
        process = rng.randrange(2) if name == "two processes" else 0
        return Stop(place, rng.randint(1, 2 if counts[place] > 1 else 1), seconds, kind, process)


def main() -> int:
    """Run the drill; return 0 where all runs are equal."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--stops", type=int, default=200, help="at least so many signals are sent")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    parser.add_argument("--configs", default=",".join(CONFIGS), help="of: %(default)s")
    args = parser.parse_args()
    names, began, writing, failures = (
        args.configs.split(","),
        time.monotonic(),
        threading.Lock(),
        [],
    )
    lines = [
        f"# python -m benchmarks.kill_drill --stops={args.stops} --seed={args.seed}"
        f" --jobs={args.jobs}"
    ]

    def note(text: str, failure: str = "") -> None:
        with writing:
            lines.append(text)
            failures.extend([failure] if failure else [])
            print(text, flush=True)
            LOG.write_text("\n".join(lines) + "\n")

    with tempfile.TemporaryDirectory(prefix="kill-drill-") as made:
        folder = Path(made)
        # Read when JAX is imported.
        os.environ |= ENVIRONMENT | {"JAX_COMPILATION_CACHE_DIR": str(folder / "programs")}
        drill = Drill(Runs(folder))
        drill.undisturbed("packed")  # first: LoRA starts from its parameters
        with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
            list(pool.map(drill.undisturbed, [name for name in names if name != "packed"]))
        asked = {name: drill.counts[name][ASKING] for name in names}
        note(f"undisturbed runs ask so often whether to stop: {asked}")
        rng, sent, number = random.Random(args.seed), 0, 0
        most = max(asked.values())
        firsts = [
            (name, Stop(ASKING, n, 0.0, signal.SIGTERM))
            for n in range(1, most + 1)
            for name in names
            if n <= asked[name]
        ]
        rng.shuffle(firsts)
        firsts += [(name, drill.random_stop(name, rng)) for name in names * args.stops]
        with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
            running: set[concurrent.futures.Future] = set()
            while running or sent < args.stops:
                while sent + len(running) < args.stops and len(running) < args.jobs:
                    name, first = firsts[number]
                    own = random.Random(f"{args.seed} {number}")
                    running.add(pool.submit(drill.stop_and_compare, number, name, first, own, note))
                    number += 1
                done, running = concurrent.futures.wait(
                    running, return_when=concurrent.futures.FIRST_COMPLETED
                )
                sent += sum(task.result() for task in done)
    note(
        f"{sent} stops in {number} runs: {number - len(failures)} equal to the undisturbed run,"
        f" {len(failures)} not; {(time.monotonic() - began) / 60:.1f} minutes"
    )
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
