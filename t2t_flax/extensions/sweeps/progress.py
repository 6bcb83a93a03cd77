"""The progress of a running sweep: a live table on a terminal, lines of text elsewhere."""

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence

import rich.console
import rich.live
import rich.table

from t2t_flax.extensions.sweeps.folder import COMPLETE, ENDED, Folder
from t2t_flax.training.progress import read_metrics

_MAX_ROWS = 30
_REFRESH_SECONDS = 2.0


@contextlib.contextmanager
def progress_table(folder: Folder, names: Callable[[], Sequence[str]]) -> Iterator[Callable[[str], None]]:
    """Shows the table until the block ends; yields a function that prints a line above it."""
    console = rich.console.Console(highlight=False, soft_wrap=True)
    if not console.is_terminal:
        yield lambda text: console.print(text, markup=False)
        return
    ended = threading.Event()
    with rich.live.Live(table(folder, names()), console=console, auto_refresh=False) as live:

        def refresh() -> None:
            while not ended.wait(_REFRESH_SECONDS):
                live.update(table(folder, names()), refresh=True)

        thread = threading.Thread(target=refresh, daemon=True)
        thread.start()
        try:
            yield lambda text: console.print(text, markup=False)
        finally:
            ended.set()
            thread.join()
            live.update(table(folder, names()), refresh=True)


def table(folder: Folder, names: Sequence[str]) -> rich.table.Table:
    """The state of each trial now, running ones first."""
    states = {name: folder.state(name) for name in names}
    holders = {name: folder.holder(name) for name in names if states[name] not in ENDED}
    ended = sum(state in ENDED for state in states.values())
    out = rich.table.Table(title=f"{ended} of {len(names)} trials have ended", title_justify="left", box=None)
    for column in ("trial", "state", "update", "train loss", "validation nll", "worker"):
        out.add_column(column, justify="right" if column in ("update", "train loss", "validation nll") else "left")
    for name in sorted(names, key=lambda name: (not holders.get(name), states[name] in ENDED))[:_MAX_ROWS]:
        holder = holders.get(name)
        lines = read_metrics(folder.workdir(name)) if holder or states[name] == COMPLETE else []
        update = f"{lines[-1]['step']:,} / {folder.read_config(name).train.steps:,}" if lines else ""
        newest = {key: f"{line[key]:.3f}" for line in lines for key in ("loss", "valid_nll") if key in line}
        state = "running" if holder else states[name]
        out.add_row(name, state, update, newest.get("loss", ""), newest.get("valid_nll", ""), holder or "")
    if len(names) > _MAX_ROWS:
        out.add_row(f"... and {len(names) - _MAX_ROWS} more", "", "", "", "", "")
    return out
