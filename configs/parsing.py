"""English constituency parsing (6.3) from bracket files, on two CPU cores; `:paper` for WSJ.

    python -m t2t_flax train --config=configs/parsing.py \\
        --config.data.root=DATA/craft_treebank --workdir=runs/parsing

    python -m t2t_flax train --config=configs/parsing.py:paper --workdir=runs/wsj \\
        --config.data.train='wsj/0[2-9]/*.mrg,...' \\
        --config.data.valid='wsj/22/*.mrg' --config.data.test='wsj/23/*.mrg'

data.root of the first holds train.trees.gz and dev.trees.gz, one tree a line. `:paper` is the
paper's
model. Published for WSJ: F1 91.3 (Table 4).
"""

from t2t_flax.config import default_config
from t2t_flax.config.presets import preset


def get_config(size: str = "small"):
    if size == "paper":
        return preset("aiayn_parsing")
    if size != "small":
        raise KeyError(f"variant {size!r}: expected small or paper")
    c = default_config()
    c.data.task = "parsing"
    c.data.train, c.data.valid, c.data.test = "train.trees.gz", "dev.trees.gz", "dev.trees.gz"
    c.parsing.word_numbers, c.parsing.grammar = 24, True
    c.data.joint_vocabulary, c.model.tie_embeddings = False, "decoder"
    c.data.vocab_size, c.data.byte_fallback = 3000, False
    # In CRAFT 99.6 % of the trees have at most 256 tokens on either side; a sentence of 24 words,
    # the median, has about 60.
    c.data.max_length, c.data.pack_length = 256, 256
    c.data.batch_tokens = 9 * 256
    c.model.num_encoder_layers, c.model.num_decoder_layers = 3, 2
    c.model.d_model, c.model.d_ff, c.model.num_heads = 128, 512, 4
    c.model.dropout = 0.1
    c.model.pad_vocab_to_multiple = 8
    c.optimizer.name = "muon"
    c.optimizer.schedule, c.optimizer.peak_lr, c.optimizer.warmup_steps = "wsd", 3e-3, 200
    c.train.steps = c.optimizers.decay_steps = 2700
    c.optimizers.cooldown_steps = 800
    c.eval.every_steps = 600
    c.checkpoint.every_steps = 300
    c.checkpoint.keep_last, c.checkpoint.average_last = 5, 0
    c.decode.beam_size, c.decode.alpha, c.decode.max_length_offset = 4, 0.3, 300
    c.mesh.cpu_devices = 2
    return c
