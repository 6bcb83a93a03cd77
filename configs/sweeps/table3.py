"""The paper's Table 3: what heads, sizes, depth, dropout, label smoothing and learned positions change.

    python -m t2t_flax sweep --sweep=configs/sweeps/table3.py --workdir=sweeps/table3            WMT14, the paper's sizes

    python -m t2t_flax sweep --sweep=configs/sweeps/table3.py:multi30k --workdir=sweeps/table3_multi30k \\
        --config.data.root=DATA/multi30k/raw                                                      every size an eighth

`:two_cores` trains seven rows of `:multi30k`, two seeds each: hours on a laptop. data.root holds Multi30k's cased text,
`SET.LANG.gz`.
"""

from t2t_flax.config.presets import TABLE3_ROWS
from t2t_flax.sweeps.space import Sweep, chain, named

SHRUNK = 8
"""Of `:multi30k`: d_model, d_ff, d_k and d_v are divided by it, so that all ratios are the paper's."""
SIZES = ("model.d_model", "model.d_ff", "model.d_k", "model.d_v")
TWO_CORES = ("base", "a_h1", "b_dk16", "d_dropout_0", "d_smoothing_0", "e_learned")


def get_sweep(size: str = "wmt14") -> Sweep:
    if size == "wmt14":
        rows = {row: keys for row, (keys, _, _) in TABLE3_ROWS.items()}
        return Sweep(
            chain(*(named(*row) for row in rows.items())), config="table3_base", baseline="base", score="paper_bleu"
        )
    if size not in ("multi30k", "two_cores"):
        raise KeyError(f"variant {size!r}: expected wmt14, multi30k or two_cores")
    rows = {row: shrunk(keys) for row, (keys, _, _) in TABLE3_ROWS.items() if row != "big"}
    if size == "two_cores":
        rows = {row: rows[row] for row in TWO_CORES} | {"c_n3": both_stacks(3)}
    return Sweep(
        chain(*(named(*row) for row in rows.items())),
        config="configs/sweeps/multi30k_eighth.py",
        baseline="base",
        seeds=2,
    )


def shrunk(keys: dict) -> dict:
    return {key: value // SHRUNK if key in SIZES else value for key, value in keys.items()}


def both_stacks(layers: int) -> dict:
    return {"model.num_encoder_layers": layers, "model.num_decoder_layers": layers}
