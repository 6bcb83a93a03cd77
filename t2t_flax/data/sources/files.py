"""Files that the spec of a source names, also by patterns with *, ? and [...].

All files that match are read, one after the other.
"""

import fnmatch
import functools
import glob
import logging
import os
import re
from collections.abc import Callable, Sequence

from etils import epath

from t2t_flax.data.sources import Context, Source, sha256_of, total
from t2t_flax.errors import UserError
from t2t_flax.files import expand_home, list_names

log = logging.getLogger("t2t_flax")
_WILDCARD = re.compile(r"(\*|\?|\[!?.[^]]*\])")


def open_files(
    spec: str, patterns: Sequence[str], context: Context, open_one: Callable[..., Source]
) -> Source:
    """Return the source `open_one(spec, path of each pattern)`.

    If the patterns match several files, all are read in the order of their names. Files of several
    patterns belong together if their wildcards match the same. Raises UserError for a file that is
    missing, cannot be read twice or has no partner.
    """
    found = [matching_files(pattern, context) for pattern in patterns]
    first = found[0]
    for pattern, others in zip(patterns, found, strict=True):
        for here, there, of in ((first, others, pattern), (others, first, patterns[0])):
            if alone := next((path for key, path in here.items() if key not in there), None):
                raise UserError(
                    f"{context.label}: {alone} has no partner among the files {of}, in whose name"
                    " the wildcards match the same"
                )
    sources = [open_one(spec, *(files[key] for files in found)) for key in first]
    return sources[0] if len(sources) == 1 else SeveralFiles(spec, sources)


class SeveralFiles(Source):
    """Pairs of several files of one form, one file after the other.

    Single files may be empty.
    """

    def __init__(self, spec: str, sources: Sequence[Source]):
        super().__init__(
            spec,
            total(one.count for one in sources),
            files=[file for one in sources for file in one.files],
        )
        self._sources = tuple(sources)
        self.reference_count, self.reasons = sources[0].reference_count, sources[0].reasons

    def read(self):
        for source in self._sources:
            count = 0
            for count, row in enumerate(source.read(), 1):  # noqa: B007
                yield row
            source.count = count
            if not count:
                _say_empty(self.spec, *source.files)

    def fingerprint(self):
        return sha256_of("files", *(source.fingerprint() for source in self._sources))

    def where(self, i):
        for source in self._sources:
            if source.count is None:
                source.count = sum(1 for _ in source.read())
            if i < source.count or source is self._sources[-1]:
                return source.where(i)
            i -= source.count
        raise IndexError(i)


@functools.cache
def _say_empty(spec: str, *files: epath.Path) -> None:
    """Log a warning once, since a corpus is read several times."""
    log.warning("%s of %s: no pairs, the file is empty", ", ".join(map(os.fspath, files)), spec)


def matching_files(pattern: str, context: Context) -> dict[tuple[str, ...], epath.Path]:
    """Return the files that match a pattern, sorted, by the text of its wildcards.

    Each wildcard matches within one name. Hidden files need a pattern that begins with a dot. If a
    file has the pattern as its name, only that file is returned. Raises UserError if there is none.
    """
    if not glob.has_magic(pattern) or path_of(pattern, context).exists():
        return {(): existing_file(pattern, context)}
    if "**" in pattern:
        raise UserError(
            f"{context.label}: * matches within one name; ** is not supported in {pattern}"
        )
    names = pattern.split("/")
    first = next(i for i, name in enumerate(names) if glob.has_magic(name))
    folder = path_of("/".join(names[:first]) or ("/" if first else "."), context)
    found: list[tuple[tuple[str, ...], epath.Path]] = [((), folder)]
    for name in names[first:]:
        matched = _regex(name)
        found = [
            (key + match.groups(), parent / entry)
            for key, parent in found
            for entry in list_names(parent)
            if (match := matched.fullmatch(entry)) and (entry[0] != "." or name[0] == ".")
        ]
    files = {
        key: path
        for key, path in sorted(found, key=lambda one: os.fspath(one[1]))
        if not path.is_dir()
    }
    if not files:
        raise UserError(
            f"{context.label}: no file matches"
            f" {path_of(pattern, context)}{relative_to(pattern, context)}"
        )
    for path in files.values():
        check_rereadable(path, context.label)
    return files


def _regex(name: str) -> re.Pattern[str]:
    """Return a regular expression for one name, with a group for each wildcard."""
    parts = _WILDCARD.split(name)  # every second one is a wildcard
    parts[::2] = map(re.escape, parts[::2])
    parts[1::2] = (f"({_of_wildcard(part)})" for part in parts[1::2])
    return re.compile("".join(parts), re.DOTALL)


def _of_wildcard(wildcard: str) -> str:
    inner = re.fullmatch(r"\(\?s:(.*)\)\\[Zz]", fnmatch.translate(wildcard))
    assert inner
    return inner[1]


def existing_file(name: str, context: Context) -> epath.Path:
    """Return the path of a file named in a spec.

    Raises UserError if it is not a file that can be read repeatedly.
    """
    path = path_of(name, context)
    if not path.exists():
        hint = relative_to(name, context)
        for path_with_name in glob.glob(
            f"*={glob.escape(name.partition('/')[0])}", root_dir=context.root or "."
        ):
            hint += (
                f". What stands before = is the name of a source: write ./{path_with_name} for a"
                " path"
            )
        raise UserError(f"{context.label}: there is no file {path}{hint}")
    if path.is_dir():
        raise UserError(f"{context.label}: {path} is a folder; name a file in it")
    check_rereadable(path, context.label)
    return path


def check_rereadable(path: epath.Path, label: str) -> None:
    """Raise UserError for a pipe or a device, which can be read only once."""
    if os.path.exists(path) and not os.path.isfile(path):
        raise UserError(
            f"{label}: {path} is a pipe or a device, and a corpus is read more than once: save it"
            " to a file"
        )


def path_of(name: str, context: Context) -> epath.Path:
    """Return the path of a file named in a spec."""
    return epath.Path(context.root or ".") / epath.Path(expand_home(name, context.label))


def relative_to(name: str, context: Context) -> str:
    """Return a note for messages on the folder of a relative path."""
    relative = not (context.root or path_of(name, context).is_absolute())
    return f" (relative to {os.getcwd()}; config.data.root is empty)" if relative else ""
