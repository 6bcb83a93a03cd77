"""An encoder-decoder beside decoder-only models on Multi30k: identical batches, three seeds; an hour and a half on two cores.

    python -m t2t_flax sweep --sweep=configs/sweeps/one_stack.py --workdir=sweeps/one_stack \
        --config.data.root=DATA/multi30k/raw --parallel=2

Four layers of one stack do the multiply-adds of 3 + 3 layers (9.2 and 9.3 million a token), seven have their parameters.
"""

from t2t_flax.extensions.sweeps.space import Sweep, concat, named

KEYS = {"eval.every_steps": 400, "checkpoint.every_steps": 400}


def get_sweep() -> Sweep:
    one_stack = {
        f"decoder-only, {layers} layers": {
            "model.architecture": "decoder_only",
            "model.num_encoder_layers": 0,
            "model.num_decoder_layers": layers,
        }
        for layers in (4, 7)
    }
    rows = {"encoder-decoder, 3 + 3 layers": {}} | one_stack
    return Sweep(
        concat(*(named(name, KEYS | row) for name, row in rows.items())), config="configs/multi30k_small.py", seeds=3
    )
