"""Settings of configs/text.py for little text: which size, dropout, rate and vocabulary fit.

    python -m t2t_flax sweep --sweep=configs/sweeps/text.py --workdir=sweeps/text --parallel=2 \\
        --config.data.train=train.en,train.de --config.data.valid=valid.en,valid.de

Rows are ranked by BLEU of the validation set. docs/experiments.md has results on captions.
"""

from t2t_flax.extensions.sweeps.space import Sweep, concat, named

# (layers, width, dropout, rate, warm-up, pieces)
ROWS = (
    (2, 256, 0.3, 1e-3, 300, 2000),
    (2, 256, 0.3, 2e-3, 300, 2000),
    (2, 256, 0.1, 1e-3, 300, 2000),
    (3, 128, 0.15, 4e-3, 500, 4000),
    (3, 128, 0.3, 4e-3, 500, 4000),
    (3, 128, 0.3, 4e-3, 500, 2000),
    (2, 128, 0.3, 4e-3, 500, 2000),
    (2, 256, 0.2, 1e-3, 300, 4000),
    (3, 128, 0.4, 4e-3, 500, 1000),
    (3, 256, 0.3, 1e-3, 500, 4000),
)


def get_sweep() -> Sweep:
    rows = [
        named(
            f"layers {layers} width {width} dropout {dropout} rate {rate} pieces {pieces}",
            {
                "model.num_encoder_layers": layers,
                "model.num_decoder_layers": layers,
                "model.d_model": width,
                "model.d_ff": 2 * width,
                "model.dropout": dropout,
                "optimizer.peak_lr": rate,
                "optimizer.warmup_steps": warmup,
                "data.vocab_size": pieces,
                "mesh.cpu_devices": 1,
            },
        )
        for layers, width, dropout, rate, warmup, pieces in ROWS
    ]
    return Sweep(concat(*rows), config="configs/text.py", seeds=1)
