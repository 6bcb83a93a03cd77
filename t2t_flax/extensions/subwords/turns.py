"""Epochs of which each takes the next of several stores of the same pairs, and after the last the first again."""

from collections.abc import Sequence

import numpy as np

from t2t_flax.config import Data
from t2t_flax.data.batching.layouts import MakeStream, SlotsOf, Stream, Update
from t2t_flax.data.hashing import key_of
from t2t_flax.data.store.token_store import TokenStore


class Turns:
    """A `Stream` of several, each of which has one epoch at a time."""

    def __init__(self, streams: Sequence[Stream]):
        self._streams = streams
        self.parts = [part for stream in streams for part in stream.parts]
        self.updates_per_epoch = streams[0].updates_per_epoch
        self._ends = np.cumsum([stream.updates_per_epoch for stream in streams])
        self._latest = streams[0]

    def update(self, k: int) -> Update:
        rounds, offset = divmod(k, int(self._ends[-1]))
        number = int(np.searchsorted(self._ends, offset, side="right"))
        stream = self._streams[number]
        if stream is not self._latest:
            self._latest.forget()
            self._latest = stream
        offset -= int(self._ends[number]) - stream.updates_per_epoch
        update = stream.update(rounds * stream.updates_per_epoch + offset)
        return update._replace(epoch=rounds * len(self._streams) + number)

    def forget(self) -> None:
        self._latest.forget()


def take_turns(make: MakeStream) -> MakeStream:
    """Of the stores, each a stream of `make`."""

    def make_turns(stores: Sequence[TokenStore], data: Data, seed: int, slots_of: SlotsOf | None = None) -> Stream:
        seeds = [key_of(seed, 8, number) if number else seed for number in range(len(stores))]
        return Turns([make([store], data, of_store, slots_of) for store, of_store in zip(stores, seeds, strict=True)])

    return make_turns
