"""Keys of the data: corpus, tokenizers, batches."""

from dataclasses import dataclass

from t2t_flax.config.keys import MODEL, SCORES, TRANSLATIONS, key, mutable_key
from t2t_flax.registry import TOKENIZERS

PAD, EOS, UNK = 0, 1, 2


@dataclass(frozen=True)
class Data:
    task: str = key(
        "translation",
        "translation: pairs of sentences, scored by BLEU; others belong to extensions",
        changes=TRANSLATIONS,
    )
    train: str = key(
        "",
        "training pairs: 'SRC,TGT' files (plain or .gz, .xz, .zst), 'tfds:NAME:SPLIT', 'toy:SPLIT', or a form of an extension; "
        "several sources: 'NAME=SRC,TGT; NAME=SRC,TGT'",
    )
    valid: str = mutable_key(
        "",
        "validation pairs, in the same forms; 'SRC,REF1,REF2' = several references; several sets, of whose metrics the mean "
        "counts: 'NAME=SRC,TGT; NAME=SRC,TGT'",
    )
    test: str = mutable_key(
        "",
        "test pairs, in the same forms as validation pairs; several sets with a record each: 'NAME=SRC,TGT; NAME=SRC,TGT'",
    )
    root: str = mutable_key(
        "", "folder that the relative paths above are resolved against; for tfds its data_dir", path=True
    )
    source_language: str = key("en", "language code of the source side", changes=SCORES)
    target_language: str = key("de", "language code of the target side", changes=SCORES)
    cache: str = mutable_key("", "folder of tokenised stores, shared between runs; empty = WORKDIR/data", path=True)
    num_workers: int = mutable_key(0, "processes that tokenise; 0 = one per core", low=0, high=1024)
    corpus: str = mutable_key("", "name of the corpus for records, beside its digest")
    pretokenized: bool = key(
        False, "the text is already Moses-tokenised, and BLEU is computed on its tokens as they are", changes=SCORES
    )
    tokenizer: str = key(
        "bpe",
        "bpe, unigram = a SentencePiece model trained on the run's own text; others belong to extensions",
        choices=TOKENIZERS,
    )
    tokenizer_model: str = key(
        "",
        "existing tokenizer: a SentencePiece .model file, or a folder with source and target; or what the tokenizer of an "
        "extension is built from",
        path=True,
    )
    vocab_size: int = key(
        37000, "size of the vocabulary, or of each of the two if not joint (5.1)", unit="pieces", low=8, high=10**7
    )
    joint_vocabulary: bool = key(
        True, "one vocabulary for both languages (5.1); needed by model.tie_embeddings = all", changes=MODEL
    )
    tokenizer_sentences: int = key(
        2_000_000, "maximum number of sentences on which the tokenizer is trained", unit="sentences", low=1
    )
    character_coverage: float = key(1.0, "fraction of the text's characters that have a piece", low=0.98, high=1.0)
    byte_fallback: bool = key(True, "spell unseen characters in bytes (takes 256 pieces) instead of <unk>")
    normalization: str = key("nmt_nfkc", "Unicode normalisation inside the tokenizer", choices=("nmt_nfkc", "identity"))
    split_digits: bool = key(False, "every digit is a piece of its own")
    max_length: int = key(
        256, "maximum length of either side of a training pair, EOS included", unit="tokens", low=2, high=2**17
    )
    on_too_long: str = key(
        "drop", "drop or truncate longer training pairs; their number is reported", choices=("drop", "truncate")
    )
    empty_lines: str = key(
        "drop",
        "training pairs with an empty side: drop them and report their number, or raise an error",
        choices=("drop", "error"),
    )
    source_eos: bool = key(True, "append EOS to source sentences too", changes=TRANSLATIONS)
    batch_tokens: int = key(
        25000,
        "source tokens, and likewise target tokens, per update over all devices (5.1)",
        unit="tokens",
        low=16,
        high=2**28,
    )
    batching: str = key(
        "packed",
        "packed = several pairs per row; buckets = one pair per row, pairs of similar length together (5.1)",
        choices=("packed", "buckets"),
    )
    pack_length: int = key(256, "length of a packed row", unit="tokens", low=8, high=2**17)
    packed_decoder_start: str = key(
        "start",
        "decoder input before the first target token of a packed pair: the decoder start, as in decoding, or the EOS of the "
        "previous pair",
        choices=("start", "previous_eos"),
    )
    microbatch_tokens: int = mutable_key(
        0,
        "padded target tokens per device and microbatch, at least one row; gradients are accumulated over the microbatches "
        "of an update. 0 = one microbatch",
        low=0,
    )
