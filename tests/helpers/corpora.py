"""Text files of sentence pairs."""

from pathlib import Path

from t2t_flax.data.sources import Source, open_source


def open_pairs(folder: Path, pairs: list[tuple[str, str]], name: str = "t") -> Source:
    """Writes NAME.en and NAME.de, and opens them as a source."""
    for side, language in enumerate(("en", "de")):
        (folder / f"{name}.{language}").write_text("".join(f"{pair[side]}\n" for pair in pairs), encoding="utf-8")
    return open_source(f"{name}.en,{name}.de", root=str(folder), source_language="en", target_language="de")
