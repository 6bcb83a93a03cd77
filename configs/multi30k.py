"""Multi30k from English with the Transformer-Tiny of Wu et al. 2021, text only: `:de` or `:fr`.

    python -m t2t_flax train --config=configs/multi30k.py --config.data.root=DATA/multi30k \\
        --workdir=runs/multi30k
    python -m t2t_flax evaluate --workdir=runs/multi30k --average=10 \\
        --config.data.test=tok/test2017.lc.norm.tok.en.gz,tok/test2017.lc.norm.tok.de.gz

The recipe is in arXiv 2105.14462. data.root holds `tok/SET.lc.norm.tok.LANG.gz` (train, val,
test2016, test2017, testcoco: the lower-cased, Moses-tokenised text of github.com/multi30k/dataset,
data/task1/tok) and `wu2021/bpe10k.en-LANG.code.gz` (the BPE codes of
github.com/LividWo/Revisit-MMT,
data/multi30k-en-LANG/code). Published, tokenised and lower-cased BLEU on test2016, test2017 and
testcoco: German 41.02, 33.36, 29.88; French 61.80, 53.46, 44.52. It is `scores.tokenized_bleu` of
the record.
"""

from t2t_flax.config.presets import preset

VOCABULARY = {"de": 9711, "fr": 9536}


def get_config(language: str = "de"):
    if language not in VOCABULARY:
        raise KeyError(f"variant {language!r}: expected de or fr")
    c = preset("wu2021_tiny")
    for key, part in (("train", "train"), ("valid", "val"), ("test", "test2016")):
        setattr(c.data, key, f"tok/{part}.lc.norm.tok.en.gz,tok/{part}.lc.norm.tok.{language}.gz")
    c.data.target_language = language
    c.data.tokenizer_model = f"wu2021/bpe10k.en-{language}.code.gz"
    c.data.vocab_size = VOCABULARY[language]
    c.log.every_steps = 62  # about an epoch
    c.mesh.cpu_devices = 2
    return c
