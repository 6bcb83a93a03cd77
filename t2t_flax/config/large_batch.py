"""The keys of the large-batch recipe of MLPerf Training v0.7 (Google's JAX entry, TPU v3-8192)."""

# Published with the entry: the shape, 2,048 packed rows of 256 tokens an update (at 97 % full these are 508,000 real
# tokens), Adam's betas and epsilon, warm-up 664, the factor 3.309 of d_model^-0.5, whose peak is 4.0e-3.
MLPERF_BIG = {
    "model.d_model": 1024,
    "model.d_ff": 4096,
    "model.num_heads": 16,
    "data.max_length": 256,
    "data.pack_length": 256,
    "data.batch_tokens": 2048 * 248,
    "optimizer.b1": 0.9087,
    "optimizer.b2": 0.9199,
    "optimizer.eps": 1e-9,
    "optimizer.lr_scale": 3.309,
    "optimizer.warmup_steps": 664,
    # What the entry takes from tensor2tensor's big model.
    "model.norm_placement": "pre",
    "model.position": "sinusoid_halves",
    "model.dropout": 0.1,
    "model.dropout_attention": 0.1,
    "model.dropout_ffn": 0.1,
    "loss.label_smoothing_over": "non_target",
    "data.corpus": "WMT17 English-German; test WMT14",
    "data.train": "tfds:wmt17_translate/de-en:train",
    "data.valid": "tfds:wmt14_translate/de-en:validation",
    "data.test": "tfds:wmt14_translate/de-en:test",
    "data.vocab_size": 32_768,
    # Ours: an epoch is about 280 updates, and the paper's checkpoints every 10 minutes would never come.
    "train.steps": 2000,
    "eval.every_steps": 250,
    "checkpoint.every_steps": 250,
}
