"""Rates times widths, with muP and without: whether the best rate of a narrow model is that of a wide one.

    python -m t2t_flax sweep --sweep=configs/sweeps/widths.py --workdir=sweeps/widths --parallel=2 --stack=4
    python -m benchmarks.mup sweeps/widths --picture=docs/mup_transfer.svg

At the base width both are the same runs, once.
"""

from t2t_flax.extensions.sweeps.space import Sweep, concat, named

BASE, WIDTHS = 64, (64, 128, 256)
RATES = tuple(2.0 ** (-power / 2) for power in range(19, 11, -1))
SHORT = {
    "model.num_encoder_layers": 1,
    "model.num_decoder_layers": 1,
    "data.vocab_size": 500,
    "data.batch_tokens": 512,
    "optimizer.schedule": "linear",
    "optimizer.warmup_steps": 60,
    "optimizers.decay_steps": 300,
    "train.steps": 300,
    "eval.every_steps": 300,
    "checkpoint.every_steps": 0,
    "log.every_steps": 10,
    "data.test": "",
    "mesh.cpu_devices": 1,
}


def get_sweep() -> Sweep:
    rows = []
    for width in WIDTHS:
        for base in (BASE,) if width == BASE else (0, BASE):
            keys = {"model.d_model": width, "model.d_ff": 4 * width, "mup.base_width": base}
            name = f"width {width} base {base}"
            rows += [named(f"{name} rate {rate:.6f}", SHORT | keys | {"optimizer.peak_lr": rate}) for rate in RATES]
    return Sweep(concat(*rows), config="toy", seeds=2)
