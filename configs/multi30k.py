"""Multi30k English-German by the recipe of Wu et al. 2021 (arXiv 2105.14462) for their text-only Transformer-Tiny.

    python -m t2t_flax train --config=configs/multi30k.py --config.data.root=DATA/multi30k --workdir=runs/multi30k

data.root holds `tok/SET.lc.norm.tok.{en,de}.gz` (train, val, test2016: the official lower-cased, Moses-tokenised text)
and `wu2021/bpe10k.en-de.code.gz` (their BPE codes for subword-nmt). Published: 41.02 BLEU on test2016, tokenised and
lower-cased, as `scores.tokenized_bleu` of the record.
"""

from t2t_flax.config.presets import preset


def get_config():
    c = preset("wu2021_tiny")
    c.log.every_steps = 62  # about an epoch
    c.mesh.cpu_devices = 2
    return c
