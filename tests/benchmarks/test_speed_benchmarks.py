"""The training and decoding benchmarks.

The same pairs for every engine, and small runs from end to end.
"""

import json
import os

import numpy as np
import pytest
from helpers.refusals import assert_names, refused

from benchmarks import decoding, growth, training
from benchmarks.engines import weights
from benchmarks.engines.ours_training import config_of, row_arrays
from benchmarks.environments import DEFAULT_FOLDER, Environments, Unavailable
from benchmarks.models import EOS, SIZES, load_batches, save_batches, training_batches
from t2t_flax.config import Model
from t2t_flax.extensions.interop.safetensors_file import unflatten

MINI = SIZES["mini"]
PEERS = os.environ.get("T2T_FLAX_PEERS", DEFAULT_FOLDER)


def needs(name: str) -> pytest.MarkDecorator:
    """Skips where a peer's environment has not been created.

    `python -m benchmarks.decoding` creates it.
    """
    try:
        Environments(PEERS, install=False).python(name)
        return pytest.mark.skipif(False, reason="")
    except Unavailable as error:
        return pytest.mark.skip(reason=str(error))


def pairs_of(source, target) -> list[tuple]:
    return sorted((tuple(s[s > 0]), tuple(t[t > 0])) for s, t in zip(source, target, strict=True))


def test_batches_are_sorted_by_length_and_within_the_tokens(tmp_path):
    batches = training_batches(MINI, 4)
    longest = [target.shape[1] for _, target in batches]
    assert longest == sorted(longest) and longest[0] < longest[-1]
    for source, target in batches:
        real = (target > 0).sum(1)
        assert (
            0.8 * MINI["tokens"] < real.sum() <= MINI["tokens"]
            and (real.max() - real.min()) <= 0.5 * real.max()
        )
        assert (source > 0).sum(1).max() == source.shape[1] <= MINI["row"] - 4
    save_batches(tmp_path / "batches.npz", batches)
    for (s, t), (source, target) in zip(
        load_batches(tmp_path / "batches.npz"), batches, strict=True
    ):
        np.testing.assert_array_equal(s, source)
        np.testing.assert_array_equal(t, target)


def test_padded_rows_hold_the_same_pairs():
    source, target = training_batches(MINI, 1)[0]
    padded = row_arrays(source, target, 4)
    assert padded["target"].shape[1] % 4 == 0
    found = pairs_of(padded["source"][0], padded["target"][0])
    assert [pair for pair in found if pair[0]] == pairs_of(source, target)


def test_flops_count_real_tokens_only():
    source, target = training_batches(MINI, 1)[0]
    wider = [np.pad(x, ((0, 3), (0, 5))) for x in (source, target)]
    assert training.count_flops(MINI, [(source, target)]) == training.count_flops(MINI, [wider]) > 0


@pytest.mark.parametrize(
    "main, flag", [(training.main, "--engines=fairseq"), (decoding.main, "--engines=fairseq")]
)
def test_unknown_engine_is_an_error(main, flag, capsys):
    with pytest.raises(SystemExit):
        main([flag])
    assert_names(capsys.readouterr().err, "fairseq", "ours")


def test_groups_share_the_cap_of_their_longest_sentence():
    sources = [[5] * (n % 20 + 1) + [EOS] for n in range(100)]
    groups = decoding.groups_of(sources, trained=False)
    assert [len(group["sources"]) for group in groups] == [64, 36]
    assert [group["cap"] for group in groups] == [
        int(np.ceil(1.1 * len(group["sources"][-1]))) for group in groups
    ]
    assert sorted(map(len, sources)) == [len(ids) for group in groups for ids in group["sources"]]


def test_agreement_counts_near_ties_apart():
    ours = {"outputs": [[3], [4], [5]], "scores": [-1.0, -2.0, -3.0]}
    theirs = {"outputs": [[3], [9], [9]], "scores": [-1.0, -2.0001, -3.5]}
    assert decoding.agreement(ours, theirs) == {
        "sentences": 3,
        "equal": 1,
        "near_ties": 1,
        "different": 1,
    }


def test_weights_are_stored_by_path_and_other_models_refused(tmp_path):
    tree = {
        "shared_embedding": {"table": np.ones((4, 2))},
        "encoder_0": {"feed_forward": {"bias": np.arange(3)}},
    }
    weights.save(tmp_path, tree, Model(), 3)
    with np.load(tmp_path / "weights.npz") as arrays:
        restored = unflatten(dict(arrays))
    np.testing.assert_array_equal(restored["encoder_0"]["feed_forward"]["bias"], np.arange(3))
    assert json.loads((tmp_path / "model.json").read_text())["vocab"] == 3
    with refused("model.norm_placement", error=ValueError):
        weights.save(tmp_path, tree, Model(norm_placement="pre"), 3)


def test_slope_of_a_power_is_its_exponent():
    assert growth.slope([1, 2, 4], [3, 12, 48]) == pytest.approx(2)
    assert config_of(growth.point({"d_model": 64})).model.d_ff == 256


@pytest.mark.slow
def test_train_step_is_measured_and_missing_peers_are_named(tmp_path, monkeypatch):
    monkeypatch.delenv("XLA_FLAGS", raising=False)  # the tests' many devices
    flags = [
        "--model=mini",
        "--rounds=1",
        "--passes=1",
        "--batches=1",
        "--engines=ours,torch",
        f"--environments={tmp_path}",
        "--no-install",
    ]
    training.main([*flags, f"--out={tmp_path / 'record.json'}"])
    record = json.loads((tmp_path / "record.json").read_text())
    assert (
        record["command"]
        == "python -m benchmarks.training --model=mini --rounds=1 --passes=1 --batches=1 --engines=ours,torch"
    )
    ours = record["engines"]["ours"]
    assert 0 < ours["fraction_of_peak"] < 1 and ours["peak_rss_mb"] > 100
    assert "no complete environment" in record["skipped"]["torch"] and record["ratio_of"] == "ours"


@pytest.mark.slow
def test_search_is_measured_in_both_precisions_without_peers(tmp_path, monkeypatch):
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    flags = [
        "--model=mini",
        "--rounds=1",
        "--passes=1",
        "--sentences=8",
        "--engines=ours,ours_bfloat16,marian",
        "--no-install",
    ]
    decoding.main([*flags, f"--environments={tmp_path}", f"--out={tmp_path / 'record.json'}"])
    record = json.loads((tmp_path / "record.json").read_text())
    assert (
        record["skipped"].keys() == {"marian"}
        and record["agreement"]["ours_bfloat16"]["sentences"] == 8
    )
    types = {name: engine["settings"][0] for name, engine in record["engines"].items()}
    assert types == {"ours": "float32", "ours_bfloat16": "bfloat16"}


@pytest.mark.slow
@needs("ctranslate2")
def test_exported_weights_give_ctranslate2_the_same_outputs(tmp_path, monkeypatch):
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    flags = [
        "--model=mini",
        "--rounds=1",
        "--sentences=32",
        "--engines=ours,ctranslate2_float32",
        "--no-install",
    ]
    decoding.main([*flags, f"--environments={PEERS}", f"--out={tmp_path / 'record.json'}"])
    record = json.loads((tmp_path / "record.json").read_text())
    assert not record["skipped"] and record["ratio"]["ctranslate2_float32"]["median"] > 0
    assert record["agreement"]["ctranslate2_float32"]["different"] == 0
