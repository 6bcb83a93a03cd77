"""A source: the numbers from 1 to N, and their squares."""

import hashlib

from t2t_flax.data.sources import Source
from t2t_flax.errors import UserError
from t2t_flax.registry import SOURCES, SourceForm


class Squares(Source):
    def read(self):
        return ((str(n), str(n * n)) for n in range(1, self.count + 1))

    def fingerprint(self):
        return hashlib.sha256(f"squares {self.count}".encode()).hexdigest()


def open_spec(spec, context):
    count = spec.partition(":")[2]
    if not count.isdecimal():
        raise UserError(f"{context.label}: expected squares:N")
    return Squares(spec, int(count))


SOURCES.add("squares", SourceForm("'squares:N'", module="squares", prefix="squares"))
