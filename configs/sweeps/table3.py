"""The paper's Table 3: heads, sizes, depth, dropout, label smoothing and learned positions.

WMT14, sizes of the paper:

    python -m t2t_flax sweep --sweep=configs/sweeps/table3.py --workdir=sweeps/table3

Widths / 8, depths / 2; data.root contains Multi30k's cased text, `SET.LANG.gz`:

    python -m t2t_flax sweep --sweep=configs/sweeps/table3.py:multi30k \\
        --workdir=sweeps/table3_multi30k --config.data.root=DATA/multi30k/raw

`:two_cores` trains eight rows of `:multi30k` with two seeds: two hours on two cores with
`--parallel=2`.
"""

from t2t_flax.extensions.recipes.presets import TABLE3_ROWS
from t2t_flax.extensions.sweeps.space import Sweep, concat, named

WIDTHS = ("model.d_model", "model.d_ff", "model.d_k", "model.d_v")
DEPTHS = ("model.num_encoder_layers", "model.num_decoder_layers")
DIVISORS = dict.fromkeys(WIDTHS, 8) | dict.fromkeys(DEPTHS, 2)
"""Divisors of the sizes in `:multi30k`, which keep the paper's ratios."""
TWO_CORES = ("base", "a_h1", "b_dk16", "c_n2", "c_n4", "d_dropout_0", "d_smoothing_0", "e_learned")


def get_sweep(size: str = "wmt14") -> Sweep:
    if size == "wmt14":
        rows = {row: keys for row, (keys, _, _) in TABLE3_ROWS.items()}
        return Sweep(
            concat(*(named(*row) for row in rows.items())),
            config="table3_base",
            baseline="base",
            score="paper_bleu",
        )
    if size not in ("multi30k", "two_cores"):
        raise KeyError(f"variant {size!r}: expected wmt14, multi30k or two_cores")
    rows = {row: shrink(keys) for row, (keys, _, _) in TABLE3_ROWS.items() if row != "big"}
    if size == "two_cores":
        rows = {row: rows[row] for row in TWO_CORES}
    return Sweep(
        concat(*(named(*row) for row in rows.items())),
        config="configs/sweeps/multi30k_eighth.py",
        baseline="base",
        score="sacrebleu",
        seeds=2,
    )


def shrink(keys: dict) -> dict:
    shrunk = {
        key: value // DIVISORS[key] if key in DIVISORS else value for key, value in keys.items()
    }
    return shrunk | ({"model.max_positions": 128} if "model.position" in keys else {})
