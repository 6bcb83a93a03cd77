"""Subwords: training sentences in segmentations that are drawn at random; subword-nmt's BPE codes as a tokenizer."""

from t2t_flax.registry import DATA_HOOKS, TOKENIZER_FILES, TOKENIZERS, add_group

add_group("subwords", "t2t_flax.extensions.subwords.keys", "Subwords")
DATA_HOOKS.add("t2t_flax.extensions.subwords.hook", "subwords.bpe_dropout", "subwords.unigram_alpha")
TOKENIZERS.add("subword_nmt", "t2t_flax.extensions.subwords.subword_nmt")
TOKENIZER_FILES.add("subword-nmt codes and vocabulary", "t2t_flax.extensions.subwords.subword_nmt:SubwordNmtTokenizer")
