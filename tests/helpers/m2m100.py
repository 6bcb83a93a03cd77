"""Folders of M2M-100 and NLLB models with random weights, as transformers saves them."""

import functools
import json
from pathlib import Path
from typing import Any

from benchmarks.import_memory import train_sentencepiece

CODES = ("ace_Arab", "ces_Latn", "deu_Latn", "eng_Latn", "fra_Latn", "zho_Hans", "zho_Hant")


sentencepiece = functools.cache(train_sentencepiece)


def write_nllb_sentencepiece(folder: Path, **settings: Any) -> None:
    """Write a tokenizer in fairseq's order: pieces, languages, <mask>."""
    (folder / "sentencepiece.bpe.model").write_bytes(sentencepiece())
    _write(folder / "special_tokens_map.json", {"additional_special_tokens": list(CODES)})
    _write(folder / "tokenizer_config.json", {"tokenizer_class": "NllbTokenizer"} | settings)


def write_nllb_fast(folder: Path, **settings: Any) -> None:
    """Write the same tokenizer as a tokenizer.json."""
    import transformers

    write_nllb_sentencepiece(folder)
    fast = transformers.NllbTokenizer.from_pretrained(
        folder, additional_special_tokens=list(CODES), **settings
    )
    for name in ("sentencepiece.bpe.model", "special_tokens_map.json"):
        (folder / name).unlink()
    fast.save_pretrained(folder)
    # transformers numbers <mask> before the languages; fairseq, and the hub's files, after them.
    content = json.loads((folder / "tokenizer.json").read_text())
    added = {one["content"]: one for one in content["added_tokens"]}
    first = added["<mask>"]["id"]
    for i, token in enumerate([*CODES, "<mask>"]):
        added[token]["id"] = first + i
    _write(folder / "tokenizer.json", content)


def write_m2m100(folder: Path) -> None:
    """Write a tokenizer of M2M-100: vocab.json, and tokens of its hundred languages."""
    from sentencepiece import SentencePieceProcessor

    processor = SentencePieceProcessor(model_proto=sentencepiece())
    pieces = [processor.id_to_piece(i) for i in range(3, len(processor))]
    tokens = ["<s>", "<pad>", "</s>", "<unk>", *pieces]
    (folder / "sentencepiece.bpe.model").write_bytes(sentencepiece())
    _write(folder / "vocab.json", {token: i for i, token in enumerate(tokens)})
    settings = {"tokenizer_class": "M2M100Tokenizer", "language_codes": "m2m100", "src_lang": "en"}
    _write(folder / "tokenizer_config.json", settings)


def make_model(folder: Path, *, vocab_size: int, seed: int = 0, **keys: Any) -> Any:
    """A model whose weights are all random, saved to the folder; some of its outputs end."""
    import torch
    import transformers

    torch.set_num_threads(1)

    sizes = dict(
        d_model=32, encoder_layers=2, decoder_layers=2, encoder_ffn_dim=48, decoder_ffn_dim=48,
        encoder_attention_heads=4, decoder_attention_heads=4, max_position_embeddings=64,
    )  # fmt: skip
    config = transformers.M2M100Config(vocab_size=vocab_size, **sizes | keys)
    torch.manual_seed(seed)
    model = transformers.M2M100ForConditionalGeneration(config).eval()
    with torch.no_grad():
        for x in model.parameters():
            x.add_(torch.randn(x.shape) * (0.4 if x.ndim > 1 else 0.1))
        # A higher logit of EOS, so that outputs end.
        end = model.lm_head.weight[2]
        model.model.decoder.layer_norm.bias.add_(1.0 * end / end.square().sum())
    model.generation_config = transformers.GenerationConfig(
        pad_token_id=1, eos_token_id=2, decoder_start_token_id=2, num_beams=3, early_stopping=True,
        length_penalty=0.8, max_length=24, bad_words_ids=[[1]],
    )  # fmt: skip
    model.save_pretrained(folder)
    return model


def _write(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
