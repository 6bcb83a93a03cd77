"""The command `attend`: arrays, statistics of heads, pictures, and refusals."""

import numpy as np
import pytest
from helpers.refusals import refused, refused_command

from t2t_flax.__main__ import main
from t2t_flax.api import load
from t2t_flax.data.sources import toy
from t2t_flax.extensions.inspection import attend as attention
from t2t_flax.extensions.shared.attention_maps import attend
from t2t_flax.extensions.shared.picture import check_picture

RUN = "pretrained:toy"
PAIRS = list(toy.pairs("test", 3))


@pytest.fixture(scope="module")
def maps():
    return attend(load(RUN, overrides={"mesh.cpu_devices": 1}), *PAIRS[0])


def test_statistics_of_heads(maps):
    s, layers, heads = len(maps.source_tokens), 2, 4
    entropy, distance = attention.entropy(maps.encoder), attention.mean_distance(maps.encoder)
    assert entropy.shape == distance.shape == (layers, heads)
    assert (distance <= s).all() and (0 <= entropy).all() and (entropy <= np.log(s) + 1e-5).all()
    np.testing.assert_allclose(attention.entropy(np.full((1, 1, 2, 4), 0.25)), np.log(4))
    np.testing.assert_allclose(attention.mean_distance(np.eye(5)[None, None]), 0)


def test_arrays_and_picture_are_written(maps, tmp_path):
    attention.save(maps, tmp_path / "a.npz")
    stored = np.load(tmp_path / "a.npz")
    np.testing.assert_array_equal(stored["cross"], maps.cross)
    assert tuple(stored["target_tokens"]) == maps.target_tokens
    assert tuple(stored["decoder_tokens"]) == ("<start>", *maps.target_tokens[:-1])
    attention.draw(maps, tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes()[:4] == b"\x89PNG"
    with refused("--picture", "a.doc"):
        check_picture("--picture", "a.doc")


@pytest.mark.smoke
def test_attend_writes_arrays_and_prints_heads(tmp_path, capsys):
    output = tmp_path / "attention.npz"
    source, target = PAIRS[0]
    command = ["attend", f"--workdir={RUN}", f"--source={source}", f"--output={output}"]
    assert main([*command, f"--target={target}"]) == 0
    printed = capsys.readouterr().out
    arrays = np.load(output)
    s, t = (len(arrays[f"{side}_tokens"]) for side in ("source", "target"))
    assert arrays["cross"].shape[-2:] == (t, s)
    np.testing.assert_allclose(arrays["cross"].sum(-1), 1, atol=1e-5)
    assert all(str(token) in printed for token in arrays["target_tokens"])


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        (["--source= "], "--source"),
        (["--source=A word.", "--target="], "--target"),
        (["--source=" + "word " * 2000], "source"),
        (["--source=A word.", "--target=" + "Wort " * 2000], "target"),
        (["--source=One.", "--picture=a.doc"], "a.doc"),
    ],
    ids=["empty source", "empty target", "long source", "long target", "picture"],
)
def test_attend_refuses(tmp_path, monkeypatch, flags, name):
    monkeypatch.chdir(tmp_path)
    refused_command(["attend", f"--workdir={RUN}", "--output=a.npz", *flags], name)
    assert not list(tmp_path.iterdir())
