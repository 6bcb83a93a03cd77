"""Subword regularisation: training sentences in segmentations that are drawn at random."""

from t2t_flax.registry import DATA_HOOKS, add_group

add_group("subwords", "t2t_flax.extensions.subwords.keys", "Subwords")
DATA_HOOKS.add("t2t_flax.extensions.subwords.hook", "subwords.bpe_dropout", "subwords.unigram_alpha")
