"""Learning rates times widths or depths, with the rules of config.mup and without.

    python -m t2t_flax sweep --sweep=configs/sweeps/sizes.py --workdir=sweeps/widths --parallel=2
    python -m t2t_flax sweep --sweep=configs/sweeps/sizes.py:depth --workdir=sweeps/depths \\
        --parallel=2
    python -m benchmarks.mup sweeps/widths --picture=docs/mup_transfer.svg

The sweep shows whether the best rate of a small model is the best rate of a large one. At the size
of the base model both rules give the same runs, which are trained once.
"""

from t2t_flax.extensions.sweeps.space import Sweep, concat, named

BASE, WIDTHS = 64, (64, 128, 256)
BASE_LAYERS, DEPTHS = 2, (2, 4, 8)
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


def get_sweep(of: str = "width") -> Sweep:
    variants = {"width": _widths, "depth": _depths}
    if of not in variants:
        raise KeyError(f"variant {of!r}: expected width or depth")
    rows = []
    for name, keys in variants[of]():
        rows += [
            named(f"{name} rate {rate:.6f}", SHORT | keys | {"optimizer.peak_lr": rate})
            for rate in RATES
        ]
    return Sweep(concat(*rows), config="toy", seeds=2)


def _widths():
    """(name, keys) of each model."""
    for width in WIDTHS:
        for base in (BASE,) if width == BASE else (0, BASE):
            keys = {"model.d_model": width, "model.d_ff": 4 * width, "mup.base_width": base}
            yield f"width {width} base {base}", keys


def _depths():
    """(name, keys) of each model; all have the width of the base model."""
    for layers in DEPTHS:
        keys = {f"model.num_{stack}_layers": layers for stack in ("encoder", "decoder")}
        keys |= {
            "model.d_model": BASE,
            "model.d_ff": 4 * BASE,
            "mup.base_width": BASE,
            "model.norm_placement": "pre",
        }
        for base in (BASE_LAYERS,) if layers == BASE_LAYERS else (0, BASE_LAYERS):
            yield f"{layers} layers base {base}", keys | {"mup.base_layers": base}
