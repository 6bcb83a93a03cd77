"""Fine-tune an imported model, such as NLLB-200, on your own pairs (docs/finetuning.md).

    python -m t2t_flax import --from=hub:facebook/nllb-200-distilled-600M --workdir=runs/nllb
    python -m t2t_flax train --config=configs/finetune.py --config.finetuning.init_from=runs/nllb \\
        --workdir=runs/nllb-tuned --config.data.train='eng_Latn-ces_Latn=train.en,train.cs' \\
        --config.data.valid='eng_Latn-ces_Latn=valid.en,valid.cs'

The model and its beam search are those of the folder. `--config.finetuning.lora_rank=16` trains
adapters alone, `--config.finetuning.freeze='encoder_* shared_embedding'` the decoder alone.
For several directions, name several sources: 'eng_Latn-ces_Latn=...; ces_Latn-eng_Latn=...'.
"""

from t2t_flax.config import default_config, to_config_dict


def get_config(_: str = "", overrides: dict[str, str] | None = None):
    overrides = overrides or {}
    c = default_config()
    if folder := overrides.get("finetuning.init_from"):
        _take_model(c, folder)

    # A source's name is its direction, by the model's own codes.
    c.languages.directions = "by_name"

    # Sentences of up to 127 tokens. Longer ones are left out and counted.
    c.data.max_length = 128
    # Rows hold several sentences, with little padding.
    c.data.pack_length = 256
    # An update sees some 150 pairs, so that 5,000 pairs are a pass of about 35 updates.
    c.data.batch_tokens = 4096
    # Half of them at a time: the logits of a large vocabulary take much memory.
    c.data.microbatch_tokens = 2048

    # Low rates keep what the model knows; adapters, which begin at zero, need a higher one.
    c.optimizer.peak_lr = 5e-4 if int(overrides.get("finetuning.lora_rank", 0)) else 5e-5
    # A short rise, as Adam's averages begin at zero; then the rate falls with 1 / sqrt(t).
    c.optimizer.schedule = "inverse_sqrt"
    c.optimizer.warmup_steps = 100

    # Thirty passes over 5,000 pairs at most.
    c.train.steps = 1000
    # Stop when the loss of the validation set has not fallen in five measurements.
    c.eval.every_steps = 50
    if "data.valid" in overrides:
        c.eval.patience = 5
    # The last two checkpoints and the best: each holds the optimizer's state.
    c.checkpoint.every_steps = 50
    c.checkpoint.keep_last = 2
    c.log.every_steps = 10
    return c


def _take_model(c, folder: str) -> None:
    """Take the keys of the model in a folder, and of its search."""
    from t2t_flax.evaluation.restore import read_config

    stored = to_config_dict(read_config(folder))
    for group in ("model", "decode"):
        c[group].update(stored[group])
    # Of data, what belongs to the model's tokenizer; of languages, the symbols that it reads.
    for key in ("source_eos", "joint_vocabulary", "vocab_size"):
        c.data[key] = stored.data[key]
    c.languages.source_symbol = stored.languages.source_symbol
