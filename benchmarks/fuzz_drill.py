"""Fuzzes the command line with wrong commands, config files, corpora and damaged runs. Each case must end with a documented
exit code and a message, without a traceback, and must lose no existing file.

python -m benchmarks.fuzz_drill --cases=10000 --seed=0 --log=benchmarks/results/fuzz_drill.log
python -m benchmarks.fuzz_drill --seed=0 --case=1234          one case again, with all its output

A case is a function of (seed, number). It runs `t2t_flax.__main__.main` in a forked process and its own folder, so that a crash
or an endless loop is a finding and does not end the drill. Exit code 1 if there is any finding.
"""

import argparse
import collections
import contextlib
import hashlib
import importlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

from benchmarks.fuzz_cases import Case, make_case

ALLOWED = (0, 1, 2, 3, 75)
TRAINING = {
    "data.train": "toy:train:300", "data.valid": "toy:valid:8", "data.test": "toy:test:8", "data.vocab_size": "200",
    "data.byte_fallback": "false", "data.max_length": "64", "data.pack_length": "64", "data.batch_tokens": "512",
    "model.num_encoder_layers": "1", "model.num_decoder_layers": "1", "model.d_model": "8", "model.d_ff": "8",
    "model.num_heads": "2", "model.pad_vocab_to_multiple": "8", "train.steps": "2", "checkpoint.every_steps": "1",
    "eval.every_steps": "1", "decode.max_length_offset": "2",
    "decode.beam_size": "2", "decode.batch_size": "4",
    "trackers.names": "", "mesh.cpu_devices": "1", "data.num_workers": "1",
}  # fmt: skip
_FRAME = re.compile(r'File "[^"]*?((?:t2t_flax|benchmarks)/[^"]+)", line (\d+), in (\S+)')


def digests(folder: Path) -> dict[str, str]:
    """Content hash of each file and link below the folder, by relative path; folders are listed too."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink() or not path.is_file():
            found[name] = os.readlink(path) if path.is_symlink() else "not a file"
        else:
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def lost(before: dict[str, str], after: dict[str, str]) -> list[str]:
    """Paths that were removed or changed."""
    return sorted(name for name in before if after.get(name) != before[name])


def prepare_template(folder: Path) -> None:
    """`run`, a trained run of two checkpoints; `foreign`, a folder of somebody else; a few texts."""
    words = [f"--config.{key}={value}" for key, value in TRAINING.items()]
    words += [f"--workdir={folder / 'run'}"]
    command = [sys.executable, "-m", "t2t_flax", "train", "--config=configs/toy.py", *words]
    programs = os.environ | {"JAX_COMPILATION_CACHE_DIR": str(folder.parent / "programs")}
    done = subprocess.run(command, capture_output=True, text=True, env=programs)
    if done.returncode:
        sys.exit(f"training the drill's run failed:\n{done.stdout}{done.stderr}")
    foreign = folder / "foreign"
    (foreign / "tokenizer").mkdir(parents=True)
    (foreign / "checkpoints").mkdir()
    (foreign / "tokenizer" / "vocab.json").write_text("{}")
    (foreign / "config.json").write_text('{"architectures": ["Bert"]}')
    (foreign / "metrics.jsonl").write_text('{"loss": 1}\n')
    (foreign / "notes.txt").write_text("not a run\n")
    (folder / "a.en").write_text("the dog sleeps .\n" * 40)
    (folder / "a.de").write_text("der Hund schläft .\n" * 40)
    (folder / "a.tsv").write_text("the dog\tder Hund\n" * 40)


def import_all() -> None:
    """Imports what the commands need, once for all cases; starts no JAX backend."""
    import t2t_flax.evaluation.evaluate  # noqa: F401
    import t2t_flax.extensions.sweeps.stacked_runs  # noqa: F401
    import t2t_flax.training.loop  # noqa: F401
    import t2t_flax.training.model_summary  # noqa: F401
    from t2t_flax.registry import COMMANDS, load_extensions

    load_extensions()
    for command in COMMANDS.values():
        importlib.import_module(command.module)


def run_forked(case: Case, cwd: Path, timeout: float) -> tuple[int | None, str]:
    """(exit code, None after a timeout, -N for signal N; the output)."""
    output = cwd.parent / "output.txt"
    child = os.fork()
    if child == 0:
        _in_child(case, cwd, output)
    end, status = time.monotonic() + timeout, None
    pause = 0.002
    while status is None and time.monotonic() < end:
        done, waited = os.waitpid(child, os.WNOHANG)
        if done:
            status = waited
        else:
            time.sleep(pause)
            pause = min(pause * 1.5, 0.05)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # and whatever it has started
    code = None
    if status is None:
        os.waitpid(child, 0)
    else:
        code = os.waitstatus_to_exitcode(status)
    return code, output.read_text(errors="replace")


def _in_child(case: Case, cwd: Path, output: Path) -> None:
    code = 99
    try:
        os.setsid()
        os.chdir(cwd)
        stdin = cwd.parent / "input.txt"
        stdin.write_bytes(case.stdin)
        for number, flags in ((0, os.O_RDONLY), (1, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)):
            os.dup2(os.open(stdin if number == 0 else output, flags, 0o644), number)
        os.dup2(1, 2)
        from t2t_flax.__main__ import main

        try:
            code = main(case.argv)
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else 0 if ended.code is None else 1
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def judge(case: Case, code: int | None, printed: str, timeout: float) -> str:
    """What is wrong with the exit of a case; empty if nothing is."""
    if code is None:
        return f"did not end within {timeout:.0f} s"
    if code < 0:
        return f"ended by signal {-code}"
    if "Traceback (most recent call last)" in printed:
        last = [
            line for line in printed.strip().splitlines() if re.match(r"[\w.]+(Error|Exception|Exit|Interrupt)\b", line)
        ]
        frames = _FRAME.findall(printed)
        at = f"{frames[-1][0]}:{frames[-1][1]} {frames[-1][2]}" if frames else "?"
        return f"traceback at {at}: {(last or ['?'])[-1][:160]}"
    if code not in ALLOWED:
        return f"exit code {code}"
    if code and not printed.strip():
        return f"exit code {code} without a message"
    return ""


class Sandbox:
    """A worker's copy of the template folder, restored after each case that changed it."""

    def __init__(self, template: Path, folder: Path):
        self._template, self.cwd = template, folder / "cwd"
        folder.mkdir()
        self.restore()
        self._clean = digests(self.cwd)
        self._stamp = self._stamps()

    def restore(self) -> None:
        shutil.rmtree(self.cwd, ignore_errors=True)
        shutil.copytree(self._template, self.cwd, symlinks=True)

    def _stamps(self) -> list[tuple]:
        found = []
        for root, folders, files in os.walk(self.cwd):
            for name in folders + files:
                stat = os.lstat(os.path.join(root, name))
                found.append((root, name, stat.st_size if name in files else 0, stat.st_mtime_ns, stat.st_ino))
        return sorted(found)

    def run(self, case: Case, timeout: float) -> tuple[int | None, str, str]:
        """(exit code, output, finding or empty)."""
        for name, content in case.files.items():
            path = self.cwd / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        if case.damage:
            case.damage(self.cwd / "run")
        touched = bool(case.files or case.damage)
        before = digests(self.cwd) if touched else self._clean
        code, printed = run_forked(case, self.cwd, timeout)
        found = judge(case, code, printed, timeout)
        if touched or self._stamps() != self._stamp:
            found = found or self._loss(case, before, digests(self.cwd))
            self.restore()
            self._stamp = self._stamps()
        return code, printed, found

    @staticmethod
    def _loss(case: Case, before: dict[str, str], after: dict[str, str]) -> str:
        lost_names = lost(before, after)
        if case.argv[:1] in (
            ["train"],
            ["sweep"],
            ["prepare"],
        ):  # these write into a run; its checkpoints and tokenizer must stay
            remaining = set(after.values())
            lost_names = [
                name
                for name in lost_names
                if not name.startswith("run/")
                or name.startswith("run/tokenizer")
                or name.startswith("run/checkpoints/")
                and "/metrics/" not in name
                and before[name] not in remaining
            ]
        else:  # an evaluation leaves records and stores
            lost_names = [name for name in lost_names if not name.startswith(("run/eval", "run/data", "run/stacks"))]
        lost_names = [name for name in lost_names if name not in case.overwrites]
        if lost_names:
            return f"lost or changed: {', '.join(lost_names[:4])}{' ...' if len(lost_names) > 4 else ''}"
        added = [name for name in set(after) - set(before) if name.startswith("foreign/")]
        if added and any(word.rstrip("/").endswith("=foreign") for word in case.argv):
            return f"written into a folder that is no run: {', '.join(sorted(added)[:4])}"
        return ""


def work(worker: int, jobs: int, args: argparse.Namespace, template: Path, folder: Path, results: Path) -> None:
    """Runs cases worker, worker + jobs, ... in turn; writes a JSON line for each."""
    sandbox = Sandbox(template, folder)
    with results.open("w") as file:
        for number in range(worker, args.cases, jobs):
            case = make_case(args.seed, number)
            start = time.monotonic()
            code, printed, found = sandbox.run(case, args.timeout)
            line = {
                "case": number, "command": case.argv[0] if case.argv else "", "kind": case.kind, "code": code,
                "found": found, "argv": case.argv, "seconds": round(time.monotonic() - start, 2),
                "tail": printed[-1500:] if found else "",
            }  # fmt: skip
            file.write(json.dumps(line) + "\n")
            file.flush()


def report(lines: list[dict[str, Any]], args: argparse.Namespace, seconds: float) -> str:
    """Counts by command and exit code; every kind of finding with its cases."""
    codes = sorted({str(line["code"]) for line in lines})
    counts = collections.Counter((line["command"], str(line["code"])) for line in lines)
    out = [
        f"# python -m benchmarks.fuzz_drill --cases={args.cases} --seed={args.seed}: {len(lines)} cases, {seconds:.0f} s"
    ]
    out.append(f"{'command':12}" + "".join(f"{'exit ' + code:>10}" for code in codes) + f"{'slowest':>10}")
    for command in sorted({line["command"] for line in lines}):
        slowest = max(line["seconds"] for line in lines if line["command"] == command)
        row = "".join(f"{counts[command, code]:10}" for code in codes)
        out.append(f"{command[:12]:12}{row}{slowest:8.1f} s")
    findings = collections.defaultdict(list)
    for line in lines:
        if line["found"]:
            findings[line["found"]].append(line)
    out.append(f"\n{sum(map(len, findings.values()))} findings of {len(findings)} kinds")
    for what, of in sorted(findings.items(), key=lambda item: -len(item[1])):
        out.append(f"\n{len(of)} x {what}\n  cases {', '.join(str(line['case']) for line in of[:8])}")
        for line in of[:2]:
            words = " ".join(word if len(word) < 120 else word[:100] + "..." for word in line["argv"])
            out.append(f"  {line['case']} ({line['kind']}): {words!r}")
    return "\n".join(out) + "\n"


def main() -> int:
    """Runs the drill; returns 1 if there is any finding."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--case", type=int, help="run only this case")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--timeout", type=float, default=180.0, help="seconds per case")
    parser.add_argument("--log", help="also write the report to this file")
    args = parser.parse_args()
    os.environ["JAX_PLATFORMS"] = "cpu"
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="t2t-flax-fuzz-") as name:
        folder = Path(name)
        os.environ["HOME"] = str(folder / "home")
        os.environ["JAX_COMPILATION_CACHE_DIR"] = str(folder / "programs")
        template = folder / "template"
        template.mkdir()
        prepare_template(template)
        import_all()
        if args.case is not None:
            case = make_case(args.seed, args.case)
            code, printed, found = Sandbox(template, folder / "one").run(case, args.timeout)
            print(
                f"{case.kind}: {case.argv}\nfiles: {case.files}\nexit code {code}\n{printed}\nfinding: {found or 'none'}"
            )
            return int(bool(found))
        workers = []
        for worker in range(args.jobs):
            child = os.fork()
            if child == 0:
                try:
                    work(worker, args.jobs, args, template, folder / f"worker{worker}", folder / f"results{worker}")
                except BaseException:
                    traceback.print_exc()
                    os._exit(1)
                os._exit(0)
            workers.append(child)
        broken = [child for child in workers if os.waitpid(child, 0)[1]]
        found = [json.loads(line) for path in folder.glob("results*") for line in path.read_text().splitlines()]
        text = report(sorted(found, key=lambda line: line["case"]), args, time.monotonic() - began)
    print(text)
    if args.log:
        Path(args.log).write_text(text, errors="backslashreplace")
    return int(bool(broken) or len(found) < args.cases or any(line["found"] for line in found))


if __name__ == "__main__":
    sys.exit(main())
