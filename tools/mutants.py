"""Delete or negate statements of the core, one at a time, and report which ones the tests miss.

    python -m tools.mutants --commit=HEAD --also-in=97628c9 --output=mutants.json
    python -m tools.mutants --commit=97628c9 --only=mutants.json  # mutants that the first missed

A seed orders the statements that stand in all named commits, so that two commits are tested with
the same mutants. The tests of the statement's package run first, for all mutants; the rest of the
default suite runs for those that they miss.
"""

import argparse
import ast
import concurrent.futures
import dataclasses
import hashlib
import json
import os
import queue
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

PACKAGE = "t2t_flax"
DELETED = (ast.Expr, ast.AugAssign, ast.Raise, ast.Continue, ast.Break, ast.Return)
"""Kinds of deleted statements. Deleting the assignment of a name mostly ends in a NameError."""


@dataclasses.dataclass(frozen=True)
class Mutant:
    """A statement of the core.

    Args:
      path: file, from the root of the repository.
      scope: dotted names of the classes and functions around the statement.
      code: source of the statement, or the condition that is negated.
      kind: "delete" or "negate".
    """

    path: str
    scope: str
    code: str
    kind: str

    def order(self, seed: int) -> str:
        """Return the sort key for a seed."""
        words = (str(seed), self.path, self.scope, self.code, self.kind)
        return hashlib.sha256("\0".join(words).encode()).hexdigest()


def statements(path: str, text: str) -> Iterator[tuple[Mutant, ast.AST]]:
    """Yield the mutants of a file with the node that each one changes."""

    def visit(node: ast.AST, scope: tuple[str, ...]) -> Iterator[tuple[Mutant, ast.AST]]:
        named = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        scope = (*scope, node.name) if named else scope
        for child in ast.iter_child_nodes(node):
            if scope and isinstance(child, ast.If | ast.While):
                yield Mutant(path, ".".join(scope), ast.unparse(child.test), "negate"), child.test
            elif scope and is_deleted(child) and not (named and is_result(node, child)):
                yield Mutant(path, ".".join(scope), ast.unparse(child), "delete"), child
            yield from visit(child, scope)

    yield from visit(ast.parse(text), ())


def is_result(function: ast.AST, node: ast.AST) -> bool:
    """Return whether a statement is a function's last `return`, whose absence callers notice."""
    return isinstance(node, ast.Return) and node is function.body[-1]  # type: ignore[attr-defined]


def is_deleted(node: ast.AST) -> bool:
    """Return whether a statement can be deleted: not a docstring, not the assignment of a name."""
    if isinstance(node, ast.Expr):
        return not isinstance(node.value, ast.Constant)
    if isinstance(node, ast.Assign):
        parts = [part for target in node.targets for part in ast.walk(target)]
        stored = [part for part in parts if isinstance(getattr(part, "ctx", None), ast.Store)]
        return not any(isinstance(part, ast.Name) for part in stored)
    return isinstance(node, DELETED)


def mutated(text: str, node: ast.AST, kind: str) -> str:
    """Return the source of a file with one statement deleted or one condition negated."""
    lines = text.encode().splitlines(keepends=True)
    first, last = node.lineno - 1, node.end_lineno - 1  # type: ignore[attr-defined]
    before = lines[first][: node.col_offset]  # type: ignore[attr-defined]
    after = lines[last][node.end_col_offset :]  # type: ignore[attr-defined]
    inner = b"".join(lines[first : last + 1])[len(before) :]
    inner = inner[: len(inner) - len(after)]
    new = b"pass" if kind == "delete" else b"(not (" + inner + b"))"
    return b"".join([*lines[:first], before, new, after, *lines[last + 1 :]]).decode()


def git(*words: str) -> str:
    """Return the output of a git command."""
    return subprocess.run(["git", *words], check=True, capture_output=True, text=True).stdout


def mutants_of(commit: str) -> set[Mutant]:
    """Return the mutants of the core at a commit."""
    found = set()
    for path in git("ls-tree", "-r", "--name-only", commit, PACKAGE).splitlines():
        if path.endswith(".py") and not path.startswith(f"{PACKAGE}/extensions/"):
            found |= {mutant for mutant, _ in statements(path, git("show", f"{commit}:{path}"))}
    return found


def first_failure(mutant: Mutant, checkout: Path, *, rest: bool) -> str:
    """Return the first test that fails with the mutant; "" if all pass.

    Args:
      rest: run the default suite without the tests of the mutant's package, in place of these.
    """
    file = checkout / mutant.path
    text = file.read_text()
    node = next(node for found, node in statements(mutant.path, text) if found == mutant)
    part = Path(mutant.path).relative_to(PACKAGE).parts[0].removesuffix(".py").strip("_")
    nearest = [
        f"tests/{name}"
        for name in (part, f"test_{part}.py")
        if (checkout / "tests" / name).exists()
    ]
    if not (nearest or rest):
        return ""
    paths = [f"--ignore={path}" for path in nearest] if rest else nearest
    words = [
        sys.executable,
        "-m",
        "pytest",
        "-x",
        "-q",
        "-n",
        "0",
        "--timeout=600",
        "-p",
        "no:cacheprovider",
    ]
    # Another copy of the package on the path would be tested in place of the mutant.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    file.write_text(mutated(text, node, mutant.kind))
    try:
        run = subprocess.run(
            [*words, *paths], cwd=checkout, env=environment, capture_output=True, text=True
        )
    finally:
        file.write_text(text)
    if not run.returncode:
        return ""
    failed = [line for line in run.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return failed[0][:200] if failed else f"exit code {run.returncode}"


def main() -> int:
    """Run the mutants and write which tests found them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--commit", default="HEAD", help="commit whose tests run")
    parser.add_argument(
        "--also-in", action="append", default=[], help="commit that must have the statement too"
    )
    parser.add_argument(
        "--only", type=Path, help="output of an earlier call: run the mutants that it missed"
    )
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    if args.only:
        chosen = [
            Mutant(**row["mutant"]) for row in json.loads(args.only.read_text()) if not row["found"]
        ]
    else:
        common = mutants_of(args.commit).intersection(*map(mutants_of, args.also_in))
        chosen = sorted(common, key=lambda mutant: mutant.order(args.seed))[: args.count]
    found = dict.fromkeys(chosen, "")
    with (
        tempfile.TemporaryDirectory() as folder,
        concurrent.futures.ThreadPoolExecutor(args.jobs) as pool,
    ):
        checkouts: queue.Queue[Path] = queue.Queue()
        for job in range(args.jobs):
            checkout = Path(folder, str(job))
            git("clone", "--quiet", "--shared", "--no-checkout", ".", str(checkout))
            git("-C", str(checkout), "checkout", "--quiet", git("rev-parse", args.commit).strip())
            checkouts.put(checkout)

        def run(mutant: Mutant, rest: bool) -> None:
            checkout = checkouts.get()
            try:
                found[mutant] = first_failure(mutant, checkout, rest=rest)
            finally:
                checkouts.put(checkout)
            result = found[mutant] or ("MISSED" if rest else "missed by the tests of its package")
            print(
                f"{result}  {mutant.path} {mutant.scope}: {mutant.kind} {mutant.code}", flush=True
            )
            if args.output:
                rows = [
                    {"mutant": dataclasses.asdict(each), "found": found[each]} for each in chosen
                ]
                args.output.write_text(json.dumps(rows, indent=1) + "\n")

        for rest in (False, True):
            list(
                pool.map(
                    run, [mutant for mutant in chosen if not found[mutant]], [rest] * len(chosen)
                )
            )
    print(f"{sum(map(bool, found.values()))} of {len(chosen)} mutants found")
    return 0


if __name__ == "__main__":
    sys.exit(main())
