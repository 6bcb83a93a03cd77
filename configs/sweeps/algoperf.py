"""AlgoPerf's protocol: 5 studies of 5 trials each (rules 0.5; 3 studies since 0.6) for AdamW, NAdamW and schedule-free AdamW.

    python -m t2t_flax sweep --sweep=configs/sweeps/algoperf.py --workdir=sweeps/wmt                   WMT, 75 trials
    python -m t2t_flax sweep --sweep=configs/sweeps/algoperf.py:toy --workdir=sweeps/algoperf --parallel=2
    python -m t2t_flax time_to_target sweeps/algoperf

WMT: the five points of AlgoPerf's baseline for NAdamW, and of the submission schedule_free_adamw to its first competition
(mlcommons/submissions_algorithms, algoperf_v05), in each study; for AdamW 25 points of the space of its archived baseline,
quasi-random. The built-in corpus, half an hour on two cores, with a target of its own: for all three optimizers the same
quasi-random points.
"""

import random

from t2t_flax.extensions.sweeps.space import Overrides, Sweep, choice, log_uniform, quasi_random

STUDIES, TRIALS = 5, 5
# learning rate, 1 - b1, b2, weight decay, warm-up as a share of the updates, label smoothing, dropout
POINTS = {
    "nadamw": (
        (0.001308209823469072, 0.02686663061, 0.9981232922116359, 0.16375311233774334, 0.1, 0.1, 0.0),
        (0.0008445074561975979, 0.11042418465, 0.9978504782314613, 0.08135402759553023, 0.05, 0.2, 0.0),
        (0.001308209823469072, 0.02686663061, 0.9981232922116359, 0.16375311233774334, 0.1, 0.0, 0.0),
        (0.004958460849689891, 0.13625575743, 0.6291854735396584, 0.1147386261512052, 0.02, 0.0, 0.0),
        (0.0017486387539278373, 0.06733926164, 0.9955159689799007, 0.08121616522670176, 0.02, 0.0, 0.1),
    ),
    "schedule_free_adamw": (
        (0.004, 0.1, 0.9955, 0.08, 0.02, 0.4, 0.1),
        (0.003, 0.1, 0.9955, 0.08, 0.02, 0.2, 0.0),
        (0.002, 0.1, 0.9955, 0.08, 0.02, 0.2, 0.0),
        (0.005, 0.1, 0.62918, 0.08, 0.02, 0.4, 0.0),
        (0.001, 0.1, 0.9955, 0.08, 0.02, 0.2, 0.0),
    ),
}
NAMES = ("learning_rate", "one_minus_b1", "b2", "weight_decay", "warmup", "label_smoothing", "dropout")
ADAMW = {
    "learning_rate": log_uniform(1e-4, 1e-2),
    "one_minus_b1": log_uniform(2e-2, 0.5),
    "b2": choice(0.999),
    "weight_decay": log_uniform(5e-3, 1.0),
    "warmup": choice(0.05),
    "label_smoothing": choice(0.1, 0.2),
    "dropout": choice(0.0, 0.1),
}
TOY = ADAMW | {"learning_rate": log_uniform(1e-3, 3e-2), "b2": choice(0.98, 0.99), "label_smoothing": choice(0.0, 0.1)}
TOY_KEYS = {
    "train.steps": 200,
    "eval.every_steps": 10,
    "checkpoint.every_steps": 0,
    "checkpoint.keep_last": 1,
    "model.num_encoder_layers": 1,
    "model.num_decoder_layers": 1,
    "model.d_model": 64,
    "model.d_ff": 256,
    "optimizer.eps": 1e-8,
    "algoperf.target": 2.5,
    "algoperf.stop": True,
    "data.valid": "toy:valid:300",
    "data.test": "",
    "mesh.cpu_devices": 1,
    "trackers.names": "",
}


def get_sweep(variant: str = "wmt") -> Sweep:
    if variant == "wmt":
        points = {"adamw": drawn(ADAMW)} | {name: in_each_study(rows) for name, rows in POINTS.items()}
        rows = [row for name, each in points.items() for row in trials(name, each, 120_000)]
        return Sweep(rows, config="algoperf_wmt", score="valid_bleu")
    if variant == "toy":
        names = ("adamw", "nadamw", "schedule_free_adamw")
        rows = [row | TOY_KEYS for name in names for row in trials(name, drawn(TOY), TOY_KEYS["train.steps"])]
        return Sweep(rows, config="toy", score="valid_nll")
    raise KeyError(f"variant {variant!r}: expected wmt or toy")


def drawn(space: dict) -> list[list[Overrides]]:
    """Points of all trials from one sequence, given to the studies at random."""
    points = quasi_random(space, STUDIES * TRIALS)
    random.Random(0).shuffle(points)
    return [points[study * TRIALS : (study + 1) * TRIALS] for study in range(STUDIES)]


def in_each_study(points: tuple) -> list[list[Overrides]]:
    """The same points in each study."""
    return [[dict(zip(NAMES, point, strict=True)) for point in points]] * STUDIES


def trials(name: str, studies: list[list[Overrides]], updates: int) -> list[Overrides]:
    """Rows of an optimizer; each trial has seeds of its own."""
    free = name == "schedule_free_adamw"
    return [
        {
            "name": f"{name} study {study} trial {trial}",
            "algoperf.study": study,
            "optimizer.name": "adam" if name == "adamw" else name,
            "optimizer.schedule": "constant" if free else "cosine",
            "optimizers.decay_steps": 0 if free else updates,
            "optimizer.peak_lr": point["learning_rate"],
            "optimizer.b1": 1 - point["one_minus_b1"],
            "optimizer.b2": point["b2"],
            "optimizer.weight_decay": point["weight_decay"],
            "optimizer.warmup_steps": int(point["warmup"] * updates),
            "loss.label_smoothing": point["label_smoothing"],
            "model.dropout": point["dropout"],
            "model.dropout_ffn": point["dropout"],
        }
        | dict.fromkeys(("seed.init", "seed.dropout", "seed.data"), TRIALS * study + trial)
        for study, points in enumerate(studies, 1)
        for trial, point in enumerate(points, 1)
    ]
