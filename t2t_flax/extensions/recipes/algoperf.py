"""WMT workload of AlgoPerf, mlcommons/algorithmic-efficiency at 2c90454 (rules 0.6).

Comments name the file of a value; values of model, data, search and targets are in
algoperf/workloads/wmt.

Differences:
- Packing: it fills 128 rows of 256 tokens, sentence by sentence, in the order of a buffer of 1,024;
  here an update has as many real tokens as 128 such rows hold, in rows that are filled better, from
  a shuffled pass. Its fill is an estimate: 0.86 of the source and 0.91 of the target slots with the
  lengths of newstest2013 and newstest2014.
- Tokenizer: it is trained on the first 10 million characters (datasets/dataset_setup.py), here on
  data.tokenizer_sentences.
- Padding is <unk> there, so that an <unk> is neither seen nor predicted. Biases start at 0, there
  with std 1e-6.
- References are scored unchanged, there as the tokenizer writes them; pairs above 256 tokens are
  scored too.
- NAdamW corrects the bias of the momentum with t + 1, as optax does; weight decay leaves out biases
  and norms.
- Evaluations come after a number of updates, there of minutes (14), and the test set is scored at
  the end alone.

Published times: the fastest trial of each study (five by rules 0.5, three by 0.6);
mlcommons/submissions_algorithms at 12c8e4e.
"""

from t2t_flax.config.presets import Preset
from t2t_flax.extensions.recipes.presets import FLAX_WMT

# workload.py: step_hint, max_allowed_runtime_sec, eval_period_time_sec; evaluations in updates, at
# the pace of the first two
STEPS = 120_000
_EVERY = round(14 * 60 * STEPS / 43_336)
_LOGS = "mlcommons/submissions_algorithms@12c8e4e"

_WMT = FLAX_WMT | {
    # wmt_jax/models.py, TransformerConfig and the layers; 6 + 6 layers
    "model.d_model": 1024,
    "model.d_ff": 1024,
    "model.num_heads": 16,
    # input_pipeline.py, datasets/dataset_setup.py,
    # algorithms/baselines/external_tuning/jax_nadamw_full_budget.py (128 rows)
    "data.corpus": "WMT17 German-English; validation and test WMT14",
    "data.valid": "tfds:wmt14_translate/de-en:validation",
    "data.test": "tfds:wmt14_translate/de-en:test",
    "data.byte_fallback": False,
    "data.batch_tokens": 128 * 230,
    "train.steps": STEPS,
    "train.precision": "float32",
    "eval.every_steps": _EVERY,
    "eval.decode_every_steps": _EVERY,
    "eval.metric": "bleu",
    "optimizer.eps": 1e-8,
    "optimizer.schedule_first_step": 0,
    "optimizer.warmup_steps": int(0.02 * STEPS),
}

PRESETS: dict[str, Preset] = {
    "algoperf_wmt": Preset(
        "AlgoPerf's WMT workload, with the last of the five points of its NAdamW baseline",
        # algorithms/baselines/external_tuning: tuning_search_space.json, jax_nadamw_full_budget.py
        _WMT
        | {
            "model.dropout": 0.1,
            "model.dropout_ffn": 0.1,
            "loss.label_smoothing": 0.0,
            "optimizer.name": "nadamw",
            "optimizer.schedule": "cosine",
            "optimizers.decay_steps": STEPS,
            "optimizer.peak_lr": 0.0017486387539278373,
            "optimizer.b1": 1 - 0.06733926164,
            "optimizer.b2": 0.9955159689799007,
            "optimizer.weight_decay": 0.08121616522670176,
        },
        "validation BLEU 30.8491 after 100,000 to 121,000 updates, medians of 41,189 s on 8 V100"
        f" by rules 0.5 and 35,319 s by rules 0.6 ({_LOGS})",
    ),
    "algoperf_wmt_schedule_free": Preset(
        "AlgoPerf's WMT workload, with schedule-free AdamW at the point that was fastest there",
        # the submission schedule_free_adamw, trial 3
        _WMT
        | {
            "model.dropout": 0.0,
            "model.dropout_ffn": 0.0,
            "loss.label_smoothing": 0.2,
            "optimizer.name": "schedule_free_adamw",
            "optimizer.schedule": "constant",
            "optimizer.peak_lr": 0.002,
            "optimizer.b1": 0.9,
            "optimizer.b2": 0.9955,
            "optimizer.weight_decay": 0.08,
        },
        "validation BLEU 30.8491 after 39,677 to 46,789 updates, 14,335 to 16,853 s on 8 V100 by"
        f" rules 0.5 ({_LOGS})",
    ),
}
