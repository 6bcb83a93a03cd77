"""Multi30k English-German by the recipe of Wu et al. 2021 (arXiv 2105.14462) for their text-only Transformer-Tiny.

    python -m t2t_flax train --config=configs/multi30k.py --config.data.root=DATA/multi30k --workdir=runs/multi30k

data.root holds `tok/SET.lc.norm.tok.{en,de}.gz` (train, val, test2016: the official lower-cased, Moses-tokenised text)
and `wu2021/bpe10k.en-de.code.gz` (their BPE codes for subword-nmt). Published: 41.02 BLEU on test2016, tokenised and
lower-cased, as `scores.tokenized_bleu` of the record.
"""

from t2t_flax.config import default_config


def get_config():
    c = default_config()
    c.data.corpus = "Multi30k task 1, lower-cased, Moses-tokenised"
    for split, name in (("train", "train"), ("valid", "val"), ("test", "test2016")):
        c.data[split] = f"tok/{name}.lc.norm.tok.en.gz,tok/{name}.lc.norm.tok.de.gz"
    c.data.tokenized = True
    c.data.tokenizer, c.data.tokenizer_model = "subword_nmt", "wu2021/bpe10k.en-de.code.gz"
    c.data.vocab_size = 9711
    c.data.batch_tokens, c.data.batch_count, c.data.batch_groups = 8192, "padded_max", 2
    c.data.max_length, c.data.row_length = 1024, 64
    c.model.num_encoder_layers = c.model.num_decoder_layers = 4
    c.model.d_model, c.model.d_ff, c.model.num_heads = 128, 256, 4
    c.model.norm_eps = 1e-5
    c.model.position, c.model.position_start = "sinusoid_halves", 2
    c.model.decoder_start, c.model.attention_bias = "eos", True
    c.model.kernel_init = "xavier_qkv_rsqrt2"
    c.model.dropout = 0.3
    c.model.vocab_multiple = 8
    c.optimizer.eps = 1e-8
    c.optimizer.schedule, c.optimizer.peak_lr, c.optimizer.warmup_steps = "inverse_sqrt", 5e-3, 2000
    c.optimizer.warmup_init, c.optimizer.step_origin = 1e-7, 0
    c.optimizer.clip_norm = 25.0
    c.train.steps, c.train.precision = 8000, "float32"
    c.eval.every_steps, c.eval.every_epochs, c.eval.metric, c.eval.patience = 0, 1, "loss", 10
    c.checkpoint.every_steps, c.checkpoint.every_epochs = 0, 1
    c.checkpoint.keep_last = c.checkpoint.average_last = 10
    c.decode.beam_size, c.decode.length_penalty, c.decode.alpha, c.decode.stop = 5, "power", 1.0, "beam_full"
    c.decode.max_ratio, c.decode.max_extra = 0.0, 200
    c.seed.init = c.seed.dropout = c.seed.data = 1
    c.log.every_steps = 62
    c.mesh.cpu_devices = 2
    return c
