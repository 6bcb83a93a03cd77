"""An extension of somebody else: the words of sources in random order, to measure what word order is worth."""

from dataclasses import dataclass

from t2t_flax.config.keys import key
from t2t_flax.extensions.augmentation import add_text_changes
from t2t_flax.registry import GROUPS


@dataclass(frozen=True)
class ShuffledWords:
    share: float = key(0.0, "share of pairs with the words of the source shuffled", low=0.0, high=1.0)


@dataclass(frozen=True)
class Shuffle:
    probability: float
    key = "shuffled_words 1"  # what the text depends on; changed with the function

    def __call__(self, source, target, random):
        words = source.split()
        random.shuffle(words)
        return " ".join(words), target


def text_changes(config):
    return [Shuffle(config.group("shuffled_words").share)]


GROUPS.add("shuffled_words", ShuffledWords)
add_text_changes("shuffled_words", "shuffled_words.share")
