"""A ladder of sizes on the built-in corpus, to which `fit_scaling` fits a law; minutes on two cores.

    python -m t2t_flax sweep --sweep=configs/sweeps/ladder.py --workdir=sweeps/ladder --parallel=2
    python -m t2t_flax fit_scaling sweeps/ladder --hold-out=1

`:sides` varies the widths of encoder and decoder apart, by their numbers of layers.
"""

from t2t_flax.extensions.sweeps.space import Sweep, over, product, zipped

WIDTHS = (16, 24, 32, 48, 64, 96, 128)
DEPTHS = (1, 2, 4)


def get_sweep(variant: str = "widths") -> Sweep:
    fixed = product(
        over("train.steps", [300]),
        over("eval.every_steps", [300]),
        over("checkpoint.every_steps", [0]),
        over("optimizer.warmup_steps", [100]),
        over("log.every_steps", [10]),
        over("data.test", [""]),
        over("mesh.cpu_devices", [1]),
    )
    if variant == "widths":
        sizes = zipped(over("model.d_model", WIDTHS), over("model.d_ff", [4 * width for width in WIDTHS]))
    elif variant == "sides":
        sizes = product(
            over("model.d_model", [48]),
            over("model.d_ff", [192]),
            over("model.num_encoder_layers", DEPTHS),
            over("model.num_decoder_layers", DEPTHS),
        )
    else:
        raise KeyError(f"variant {variant!r}: expected widths or sides")
    return Sweep(product(fixed, sizes), config="toy", seeds=2)
