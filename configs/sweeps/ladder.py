"""A ladder of sizes on the built-in corpus, for `fit_scaling`; minutes on two cores.

    python -m t2t_flax sweep --sweep=configs/sweeps/ladder.py --workdir=sweeps/ladder --parallel=2
    python -m t2t_flax fit_scaling sweeps/ladder --hold-out=1

`:sides` varies the numbers of layers of encoder and decoder apart.
"""

from t2t_flax.extensions.sweeps.space import Sweep, concat, named

WIDTHS = (16, 24, 32, 48, 64, 96)
DEPTHS = (1, 2, 4)
SHORT = {
    "train.steps": 300,
    "optimizer.warmup_steps": 100,
    "eval.every_steps": 300,
    "checkpoint.every_steps": 0,
    "log.every_steps": 10,
    "data.test": "",
    "mesh.cpu_devices": 1,
}


def get_sweep(variant: str = "widths") -> Sweep:
    if variant == "widths":
        sizes = {
            f"width {width}": {"model.d_model": width, "model.d_ff": 4 * width} for width in WIDTHS
        }
    elif variant == "sides":
        keys = "model.num_encoder_layers", "model.num_decoder_layers"
        pairs = [(encoder, decoder) for encoder in DEPTHS for decoder in DEPTHS]
        narrow = {"model.d_model": 48, "model.d_ff": 192}
        sizes = {
            f"{pair[0]} + {pair[1]} layers": narrow | dict(zip(keys, pair, strict=True))
            for pair in pairs
        }
    else:
        raise KeyError(f"variant {variant!r}: expected widths or sides")
    rows = concat(*(named(name, SHORT | size) for name, size in sizes.items()))
    return Sweep(rows, config="toy", seeds=2)
