"""Text files of sentence pairs, and sources of numbered ones."""

from collections import Counter
from pathlib import Path

from t2t_flax.data.preprocess import PairFilter
from t2t_flax.data.sources import JoinedSource, Source, open_source


def open_pairs(folder: Path, pairs: list[tuple[str, str]], name: str = "t") -> Source:
    """Writes NAME.en and NAME.de, and opens them as a source."""
    for side, language in enumerate(("en", "de")):
        (folder / f"{name}.{language}").write_text(
            "".join(f"{pair[side]}\n" for pair in pairs), encoding="utf-8"
        )
    return open_source(
        f"{name}.en,{name}.de", root=str(folder), source_language="en", target_language="de"
    )


def open_en_de(spec: str, root: Path | str = "") -> Source:
    """Opens a source of English and German as one of training text."""
    return open_source(
        spec, root=str(root), source_language="en", target_language="de", key="config.data.train"
    )


class Numbers(Source):
    """Pairs NAME 0 to NAME count - 1."""

    def read(self):
        return ((f"{self.spec} {i}", f"{self.spec} {i}") for i in range(self.count))

    def fingerprint(self):
        return self.spec


class Even(PairFilter):
    reason, shown = "odd", "odd"

    def drops(self, pairs):
        assert all(pair.source == pair.target for pair in pairs), "filters do not see tags"
        return [bool(int(pair.source.split()[1]) % 2) for pair in pairs]


def joined(*counts: int) -> Source:
    return JoinedSource(
        "all", [Numbers(name, count) for name, count in zip("abcdefgh", counts, strict=False)]
    )


def of_sources(pairs) -> Counter:
    return Counter(source.split()[0] for source, _ in pairs)
