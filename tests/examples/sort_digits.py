"""A task: digits in, the same digits sorted out."""

import hashlib

import numpy as np

from t2t_flax.data.sources import Source
from t2t_flax.data.tokenizers import TokenizerPair
from t2t_flax.extensions.shared.list_tokenizer import SymbolTokenizer
from t2t_flax.registry import TASKS
from t2t_flax.tasks import Metric, Task
from t2t_flax.tasks.translation import exact_match


class SortDigits(Task):
    """`data.train = digits:COUNT:SEED`: random digits in, the same digits sorted out."""

    metrics = (Metric("exact_match", "exact match", exact_match, unit="%"),)

    def open_source(self, spec, *, key):
        return RandomDigits(spec)

    def train_tokenizers(self, source):
        digits = SymbolTokenizer.of(["0 1 2 3 4 5 6 7 8 9"])
        return TokenizerPair(digits, digits)


class RandomDigits(Source):
    def read(self):
        _, count, seed = self.spec.split(":")
        rng = np.random.default_rng(int(seed))
        for _ in range(int(count)):
            digits = rng.integers(10, size=rng.integers(1, 8))
            yield " ".join(map(str, digits)), " ".join(map(str, sorted(digits)))

    def fingerprint(self):
        return hashlib.sha256(self.spec.encode()).hexdigest()


TASKS.add("sort_digits", "sort_digits:SortDigits")
