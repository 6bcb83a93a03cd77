"""The WMT workload of AlgoPerf, by mlcommons/algorithmic-efficiency at 2c90454 (rules 0.6). Its files are named where a value
is from them; those of model, data, search and targets are in algoperf/workloads/wmt.

Not as there:
- Packing: it fills 128 rows of 256 tokens, sentence by sentence, in the order of a buffer of 1,024; here an update has as many
  real tokens as 128 such rows hold, in rows that are filled better, from a shuffled pass. Its fill is an estimate: 0.86 of the
  source and 0.91 of the target slots with the lengths of newstest2013 and newstest2014.
- Tokenizer: it is trained on the first 10 million characters (datasets/dataset_setup.py), here on data.tokenizer_sentences.
- Padding is <unk> there, so that an <unk> is neither seen nor predicted. Biases start at 0, there with std 1e-6.
- References are scored as they are, there as the tokenizer writes them; pairs above 256 tokens are scored too.
- NAdamW corrects the bias of the momentum with t + 1, as optax does; weight decay leaves out biases and norms.
- Evaluations come after a number of updates, there of minutes (14), and the test set is scored at the end alone.
"""

from t2t_flax.config.presets import Preset

STEPS, MAX_SECONDS = 120_000, 43_336  # workload.py: step_hint, max_allowed_runtime_sec
_EVERY = round(
    14 * 60 * STEPS / MAX_SECONDS
)  # workload.py: eval_period_time_sec; in updates, at the pace of both numbers

_WMT = {
    # wmt_jax/models.py, TransformerConfig and the layers; 6 + 6 layers
    "model.d_model": 1024,
    "model.d_ff": 1024,
    "model.num_heads": 16,
    "model.norm_placement": "pre",
    "model.position": "sinusoid_halves",
    "model.embed_scale": "none",
    "model.embed_init": "normal_1",
    "model.logit_scale": "rsqrt_d",
    "model.decoder_start_token": "pad",
    "model.dropout_ffn": 0.1,
    # input_pipeline.py, datasets/dataset_setup.py, algorithms/baselines/external_tuning/jax_nadamw_full_budget.py (128 rows)
    "data.corpus": "WMT17 German-English; validation and test WMT14",
    "data.train": "tfds:wmt17_translate/de-en:train",
    "data.valid": "tfds:wmt14_translate/de-en:validation",
    "data.test": "tfds:wmt14_translate/de-en:test",
    "data.source_language": "de",
    "data.target_language": "en",
    "data.tokenizer": "unigram",
    "data.vocab_size": 32_000,
    "data.byte_fallback": False,
    "data.batch_tokens": 128 * 230,
    # wmt_jax/workload.py: beam 4, alpha 0.6, 256 tokens
    "decode.max_length_ratio": 0.0,
    "decode.max_length_offset": 256,
    "train.steps": STEPS,
    "train.precision": "float32",
    "eval.every_steps": _EVERY,
    "eval.decode_every_steps": _EVERY,
    "eval.metric": "bleu",
    # workload.py
    "algoperf.target": 30.8491,
    "algoperf.test_target": 30.7219,
    "algoperf.max_seconds": float(MAX_SECONDS),
    "algoperf.stop": True,
    # jax_nadamw_full_budget.py
    "optimizer.name": "nadamw",
    "optimizer.eps": 1e-8,
    "optimizer.schedule": "cosine",
    "optimizer.schedule_first_step": 0,
    "optimizers.decay_steps": STEPS,
    "loss.label_smoothing": 0.0,
}

PRESETS: dict[str, Preset] = {
    "algoperf_wmt": Preset(
        "AlgoPerf's WMT workload, with the last of the five points of its NAdamW baseline",
        # algorithms/baselines/external_tuning/tuning_search_space.json
        _WMT
        | {
            "optimizer.peak_lr": 0.0017486387539278373,
            "optimizer.b1": 1 - 0.06733926164,
            "optimizer.b2": 0.9955159689799007,
            "optimizer.weight_decay": 0.08121616522670176,
            "optimizer.warmup_steps": int(0.02 * STEPS),
        },
        "validation BLEU 30.8491 after 36,155 to 44,556 s of 133,333 updates on 8 V100 (five runs in its logs)",
    ),
    "algoperf_wmt_post_ln": Preset(
        "AlgoPerf's variant with post-norm, and the NAdamW that its targets come from",
        # wmt_jax/workload.py; algorithms/target_setting_algorithms: wmt_post_ln, jax_nadamw.py (3/4 of the updates)
        _WMT
        | {
            "model.norm_placement": "post",
            "algoperf.target": 30.0779,
            "algoperf.test_target": 29.8982,
            "optimizer.peak_lr": 0.0003477912008450351,
            "optimizer.b1": 0.9936632117510711,
            "optimizer.b2": 0.9967873550453692,
            "optimizer.weight_decay": 0.04120183162940475,
            "optimizer.warmup_steps": 9999,
            "optimizers.decay_steps": int(0.75 * STEPS),
        },
    ),
}
