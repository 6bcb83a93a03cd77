"""Work of processes that share one token store.

Each is spawned, not forked from the test process.
"""

import errno
import fcntl
import json
import multiprocessing
import time

import numpy as np

from t2t_flax.data import preprocess
from t2t_flax.data.dataset import prepare_corpus
from t2t_flax.data.preprocess import prepare_split
from t2t_flax.data.token_store import StoreWriter
from t2t_flax.data.tokenizers import SentencePieceTokenizer
from t2t_flax.locks import exclusive_writer
from t2t_flax.tasks import task_of

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["helpers.writer_processes"])


def start(target, *args):
    """A process that runs a function of this module."""
    process = PROCESSES.Process(target=target, args=args, daemon=True)
    process.start()
    return process


def remove_locks(set_attribute=setattr) -> None:
    """As on a file system without locks."""

    def refuse(file, operation):
        raise OSError(errno.ENOLCK, "No locks available")

    set_attribute(fcntl, "flock", refuse)


def side(value, pairs=3):
    return np.full(2 * pairs, value, np.int32), np.full(pairs, 2)


def write(folder, value=7, digest="", locks=True, times=1):
    if not locks:
        remove_locks()
    for _ in range(times):
        with exclusive_writer(folder, "prepare"), StoreWriter(folder, vocab_sizes=(9, 9)) as writer:
            writer.write(side(value), side(value))
            writer.meta["digest"] = digest


def write_and_wait(folder, written, go_on, locks=True):
    if not locks:
        remove_locks()
    with exclusive_writer(folder, "prepare"), StoreWriter(folder, vocab_sizes=(9, 9)) as writer:
        writer.write(side(5), side(5))
        writer.meta["digest"] = "first"
        written.set()
        go_on.wait()


def take_turn(folder):
    with exclusive_writer(folder, "prepare"):
        pass


def prepare_and_report(source, tokenizers, folder, policies, prepared, answer, locks):
    """Counts in `prepared` the pairs that were tokenised."""
    if not locks:
        remove_locks()
    real = preprocess.Encoder.__call__

    def count(self, pairs):
        with prepared:
            prepared.value += len(pairs)
        return real(self, pairs)

    preprocess.Encoder.__call__ = count
    store = prepare_split(source, tokenizers, folder, policies)
    answer.write_text(json.dumps([store.num_pairs, store.source(store.num_pairs - 1).tolist()]))


def prepare_and_count_tokenizers(config, workdir, trained):
    """Counts in `trained` the tokenizers that were trained."""
    real = SentencePieceTokenizer.train

    def train(*arguments):
        with trained:
            trained.value += 1
        time.sleep(0.5)
        return real(*arguments)

    SentencePieceTokenizer.train = staticmethod(train)
    prepare_corpus(task_of(config), workdir)
