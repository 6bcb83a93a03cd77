"""Bracket files as a corpus.

Sources are the words of sentences, targets their linearized trees.
"""

from collections.abc import Iterator

from etils import epath

from t2t_flax.data.file_hashes import file_sha256
from t2t_flax.data.sources import Context, Source, sha256_of
from t2t_flax.data.sources.files import matching_files
from t2t_flax.data.sources.text import lines
from t2t_flax.errors import UserError
from t2t_flax.extensions.parsing.trees import Node, leaves, linear, read_trees

FORMS = (
    "bracket files with one tree per line or in .mrg format, plain or .gz: 'FILE', 'FILE,FILE' or"
    " 'wsj/0[2-9]/*.mrg'"
)


class TreeSource(Source):
    """Trees of one or more files, in order."""

    def __init__(self, spec: str, paths: list[epath.Path]):
        super().__init__(spec, files=paths)
        self._paths = paths

    def read(self):
        for _, _, tree in self._trees():
            yield " ".join(leaf.word for leaf in leaves(tree)), linear(tree)

    def fingerprint(self):
        return sha256_of("trees", *map(file_sha256, self._paths))

    def where(self, i):
        for n, (path, line, _) in enumerate(self._trees()):
            if n == i:
                return f"{path} line {line}"
        raise IndexError(i)

    def _trees(self) -> Iterator[tuple[epath.Path, int, Node]]:
        for path in self._paths:
            line = 0
            for line, tree in read_trees(lines(path), str(path)):
                yield path, line, tree
            if not line:
                raise UserError(f"{path} contains no tree.")


def open_trees(spec: str, *, root: str, key: str) -> TreeSource:
    """Open the corpus of the bracket files named by `spec`, relative to `root`.

    Raises UserError for a missing file.
    """
    context = Context(root, ("", ""), f"{key} = {spec!r}")
    names = filter(None, (part.strip() for part in spec.split(",")))
    try:
        return TreeSource(
            spec, [path for name in names for path in matching_files(name, context).values()]
        )
    except UserError as error:
        raise UserError(f"{error}. Expected {FORMS}.") from None
