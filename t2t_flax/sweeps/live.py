"""A sweep while it runs: a table that moves on a terminal, lines elsewhere."""

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence

import rich.console
import rich.live
import rich.table

from t2t_flax.monitoring.metrics_writer import read_metrics
from t2t_flax.sweeps.folder import COMPLETE, ENDED, Folder

_SHOWN = 30
"""Trials that the table has room for; the running ones come first."""
_SECONDS = 2.0


@contextlib.contextmanager
def live(
    folder: Folder, names: Callable[[], Sequence[str]], steps: Callable[[str], int]
) -> Iterator[Callable[[str], None]]:
    """Gives `say`, which prints a line above the table. steps(trial): updates that it is to make."""
    console = rich.console.Console(highlight=False, soft_wrap=True)
    if not console.is_terminal:
        yield lambda text: console.print(text, markup=False)
        return
    ended = threading.Event()
    with rich.live.Live(table(folder, names(), steps), console=console, auto_refresh=False) as shown:

        def refresh() -> None:
            while not ended.wait(_SECONDS):
                shown.update(table(folder, names(), steps), refresh=True)

        thread = threading.Thread(target=refresh, daemon=True)
        thread.start()
        try:
            yield lambda text: console.print(text, markup=False)
        finally:
            ended.set()
            thread.join()
            shown.update(table(folder, names(), steps), refresh=True)


def table(folder: Folder, names: Sequence[str], steps: Callable[[str], int]) -> rich.table.Table:
    """Where each trial stands now."""
    states = {name: folder.state(name) for name in names}
    holders = {name: folder.holder(name) for name in names if states[name] not in ENDED}
    rank = lambda name: (not holders.get(name), states[name] in ENDED)  # noqa: E731
    done = sum(state in ENDED for state in states.values())
    out = rich.table.Table(title=f"{done} of {len(names)} trials have ended", title_justify="left", box=None)
    for column in ("trial", "state", "update", "train loss", "validation nll", "where"):
        out.add_column(column, justify="right" if column in ("update", "train loss", "validation nll") else "left")
    for name in sorted(names, key=rank)[:_SHOWN]:
        running = holders.get(name)
        lines = read_metrics(folder.workdir(name)) if running or states[name] == COMPLETE else []
        last = lambda key, lines=lines: next((line[key] for line in reversed(lines) if key in line), None)  # noqa: E731
        shown = lambda value: "" if value is None else f"{value:.3f}"  # noqa: E731
        update = f"{lines[-1]['step']:,} / {steps(name):,}" if lines else ""
        told = "running" if running else states[name]
        out.add_row(name, told, update, shown(last("loss")), shown(last("valid_nll")), running or "")
    if len(names) > _SHOWN:
        out.add_row(f"... and {len(names) - _SHOWN} more", "", "", "", "", "")
    return out
