"""Length penalties and stopping rules of other toolkits, against a NumPy beam search."""

from types import SimpleNamespace

import jax
import numpy as np
import pytest
from helpers.configs import devices_mesh, model_and_state, small_config
from helpers.table_model import PARAMS, TableModel, sentences

from t2t_flax.config import Config, Decode
from t2t_flax.config.data_keys import PAD
from t2t_flax.data.tokenizers import Frame, TokenizerPair
from t2t_flax.decoding import translator as translator_module
from t2t_flax.decoding.beam_search import BeamSearch, length_penalty
from t2t_flax.decoding.search_loop import run_search

EOS, MODEL = 1, TableModel()
DIVISORS = {
    "gnmt": lambda n, a: ((5 + n) / 6) ** a,
    "power": lambda n, a: n**a,
    "none": lambda n, a: 1.0,
}


def reference_search(seed, options, cap, params):
    """The best finished hypothesis under the stopping rule, or else the best alive one."""
    beam = options.beam_size
    alive, finished, top = [(0.0, ())], [], False
    divisor = lambda n: DIVISORS[options.length_penalty](n, options.alpha)  # noqa: E731
    for step in range(1, cap + 1):
        candidates = [
            (p + MODEL.log_probs(seed, t, params)[v], (*t, v))
            for p, t in alive
            for v in range(1, MODEL.vocab)
        ]
        candidates = sorted(candidates, key=lambda c: -c[0])[: 2 * beam]
        finished += [(p / divisor(step), t) for p, t in candidates[:beam] if t[-1] == EOS]
        top = top or candidates[0][1][-1] == EOS
        alive = [c for c in candidates if c[1][-1] != EOS][:beam]
        if options.early_stopping == "beam_full" and len(finished) >= beam:
            break
        if options.early_stopping == "top_finished" and top and len(finished) >= options.n_best:
            break
    return max(finished)[1] if finished else alive[0][1]


@pytest.mark.parametrize(
    "kind, stop, alpha",
    [
        ("gnmt", "beam_full", 1.0),
        ("gnmt", "top_finished", 1.0),
        ("power", "beam_full", 1.0),
        ("power", "top_finished", 0.0),
        ("none", "beam_full", 1.0),
    ],
)
def test_stopping_rules_equal_the_numpy_search(kind, stop, alpha):
    seeds, cap, params = np.arange(60) + 7, 9, PARAMS | {"eos": np.float32(1.0)}
    options = BeamSearch(3, alpha, 1, kind, stop)
    cache = MODEL.start(seeds, 3, 12)
    result = jax.tree.map(
        np.asarray, run_search(MODEL, params, cache, options, sentences([cap] * 60), lengths=(12,))
    )
    outputs = [tuple(result.tokens[b, 0, : result.lengths[b, 0]].tolist()) for b in range(60)]
    assert outputs == [reference_search(int(seed), options, cap, params) for seed in seeds]


def test_length_penalties_equal_their_formulas():
    lengths = np.array([1, 10, 25])
    np.testing.assert_allclose(
        length_penalty(lengths, 0.6, "gnmt"), [1.0, 1.732862, 2.626528], rtol=1e-6
    )
    np.testing.assert_allclose(length_penalty(lengths, 0.6, "power"), lengths**0.6)
    np.testing.assert_allclose(length_penalty(lengths, 0.6, "none"), 1.0)
    assert (Decode().length_penalty, Decode().early_stopping) == ("gnmt", "exact")


def test_penalty_and_stopping_keys_reach_the_search(monkeypatch):
    """decode.length_penalty, early_stopping and alpha become the beam search's options."""
    model, _, state, _ = model_and_state(small_config(model=dict(dropout=0.0)))
    tokenizer = SimpleNamespace(
        digest="fixed",
        split=lambda text: ([], text),
        frame=lambda symbols: Frame(symbols, [], PAD),
        encode_text=lambda text: [5, 6],
        decode=lambda ids: " ".join(map(str, ids)),
    )

    class Searched(Exception):
        """Ends the translation where its search would begin."""

    def search(step, params, cache, options, *_, **__):
        raise Searched(options)

    monkeypatch.setattr(translator_module, "run_search", search)
    config = Decode(
        length_penalty="power",
        early_stopping="beam_full",
        alpha=1.0,
        batch_size=1,
        max_length_offset=2,
    )
    pair = TokenizerPair(tokenizer, tokenizer)
    translator = translator_module.Translator(model, pair, devices_mesh(), Config(decode=config))
    with pytest.raises(Searched) as raised:
        translator.translate(state.params, ["x"])
    (options,) = raised.value.args
    assert (options.length_penalty, options.early_stopping, options.alpha) == (
        "power",
        "beam_full",
        1.0,
    )
