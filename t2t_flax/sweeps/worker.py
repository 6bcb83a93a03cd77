"""A worker takes trials that nobody trains and trains them, some at a time, until none is left. Any number of workers,
on any hosts, may share a folder.
"""

import abc
import threading
from collections.abc import Callable, Sequence

from t2t_flax.errors import UserError
from t2t_flax.sweeps.attempt import attempt, log_tail, say_in_log
from t2t_flax.sweeps.folder import COMPLETE, ELSEWHERE, FAILED, Claim, Folder, this_worker
from t2t_flax.sweeps.opening import code as code_of
from t2t_flax.sweeps.results import shown_state
from t2t_flax.sweeps.shares import Share

LOST = 10
"""Attempts at a trial in a row that may end without a word or a checkpoint (each may have taken its worker along)."""
WAIT = 1.0
"""Seconds between looks for a trial that has become free."""


class Queue(abc.ABC):
    """The trials of a sweep, as a worker sees them."""

    @abc.abstractmethod
    def names(self) -> list[str]:
        """The trials so far, in the order in which they are to be trained."""

    def more(self) -> bool:
        """Makes a new trial where there is to be one more now; whether it did."""
        return False

    def finished(self) -> bool:
        """Whether there will be no more trials than `names` has."""
        return True

    def prune(self, name: str) -> bool:
        """Whether a running trial is to be stopped for good."""
        return False

    def ended(self, name: str, outcome: str) -> None:  # noqa: B027
        """Is told how an attempt ended."""


class Listed(Queue):
    """Trials that were all known before the first."""

    def __init__(self, names: Sequence[str]):
        self._names = list(names)

    def names(self) -> list[str]:
        return self._names


def work(
    folder: Folder, queue: Queue, shares: Sequence[Share], *, retries: int, stop: threading.Event, say: Callable[[str], None],
    code: str = "", stack: int = 1, cwd: str | None = None,
) -> None:  # fmt: skip
    """Trains until every trial has ended, or `stop` is set and the running ones have saved.

    code: digest of the source; a worker whose code changes under it stops with UserError when it would begin a trial.
    stack: up to so many trials that can share a program train together. Where the last trials are trained by other
    workers it waits for them: should one of these die, it takes over.
    """
    taking = threading.Lock()
    errors: list[BaseException] = []

    def slot(share: Share) -> None:
        waiting = False
        while not stop.is_set():
            with taking:
                taken = _take(folder, queue, stack)
            if taken:
                waiting = False
                try:
                    if code and code_of()["digest"] != code:
                        raise UserError(
                            "the source of t2t_flax was changed while the sweep ran: the next trials would not be comparable. "
                            "Give the command again, with --any-code if the change does not matter."
                        )
                    _train(folder, queue, taken, share, retries, stop, say, code, cwd)
                finally:
                    for claim in taken.values():
                        claim.release()
            elif _all_ended(folder, queue):
                return
            else:
                if not waiting and share is shares[0] and (others := _held_by_others(folder, queue)):
                    say(f"waiting for {len(others)} trials of other workers: {'; '.join(others)}")
                waiting = True
                stop.wait(WAIT)

    def guarded(share: Share) -> None:
        try:
            slot(share)
        except BaseException as error:
            errors.append(error)
            stop.set()

    threads = [threading.Thread(target=guarded, args=(share,), name=f"slot {i}") for i, share in enumerate(shares)]
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive():
            thread.join(0.5)  # short, so that signals are handled in between
    if errors:
        raise errors[0]


def _train(folder, queue, taken, share, retries, stop, say, code, cwd) -> None:
    names = list(taken)
    for name in names:
        state, others = folder.state(name), f", together with {len(names) - 1} others" if len(names) > 1 else ""
        say(f"{name}: {'goes on' if state == 'stopped' else 'begins'}, {share.told}{others}")
    prune = (lambda: queue.prune(names[0])) if len(names) == 1 else (lambda: False)
    how = dict(retries=retries, stopping=stop.is_set, prune=prune, code=code, cwd=cwd)
    outcomes = attempt(folder, names, list(taken.values()), share, **how)
    for name, outcome in outcomes.items():
        queue.ended(name, outcome)
        if outcome != FAILED:
            say(f"{name}: {outcome}")
        elif folder.state(name) == FAILED:
            say(f"{name}: failed. The end of {folder.log(name)}:\n{_indented(log_tail(folder, name))}")
        else:
            say(f"{name}: failed, will be tried again{' alone' if len(names) > 1 else ''}")


def _take(folder: Folder, queue: Queue, stack: int) -> dict[str, Claim]:
    """The next trial to train, claimed, with those that can train together with it; empty where there is none. A trial
    that was stopped goes before one that has not begun, one whose worker died with it after all others, and last what a
    mistake ended on another host; one that has failed trains alone.
    """
    while True:
        open_ones = [(name, folder.state(name)) for name in queue.names() if not folder.ended(name)]
        taken: dict[str, Claim] = {}
        for name, _ in sorted(
            open_ones, key=lambda item: (item[1] == FAILED, folder.lost(item[0]) > 0, item[1] != "stopped")
        ):
            if taken and not folder.share_a_program(next(iter(taken)), name):
                continue
            claim = folder.claim(name)
            if claim is None:
                continue
            if folder.lost(name) >= LOST:
                told = f"== given up: {LOST} attempts in a row ended without a word or a new checkpoint"
                say_in_log(folder, name, told)
                folder.note(name, event="given up")
            if folder.ended(name):
                claim.release()  # it ended between the look and the claim
                continue
            if folder.mistaken_elsewhere(name):
                folder.note(name, event=ELSEWHERE)
            taken[name] = claim
            if len(taken) == stack:
                break
        if taken or not queue.more():
            return taken


def _all_ended(folder: Folder, queue: Queue) -> bool:
    return queue.finished() and all(folder.ended(name) for name in queue.names())


def _held_by_others(folder: Folder, queue: Queue) -> list[str]:
    held = {name: folder.holder(name) for name in queue.names() if not folder.ended(name)}
    return [f"{name} ({holder})" for name, holder in held.items() if holder and holder != this_worker()]


def counts(folder: Folder, names: Sequence[str]) -> dict[str, int]:
    """How many trials are complete, running, waiting, stopped, pruned, failed."""
    found = dict.fromkeys((COMPLETE, "running", "waiting", "stopped", "pruned", FAILED), 0)
    for name in names:
        found[shown_state(folder, name)] += 1
    return found


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())
