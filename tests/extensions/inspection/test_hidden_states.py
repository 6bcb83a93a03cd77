"""Hidden states: against NumPy, whatever else is in the batch; their file.

The command `inspect`.
"""

import jax
import numpy as np
import pytest
from conformance import numpy_transformer as reference
from helpers.refusals import assert_names, refused, refused_command

from t2t_flax.__main__ import main
from t2t_flax.data.sources import toy
from t2t_flax.evaluation.restore import load
from t2t_flax.extensions.inspection import inspect_command
from t2t_flax.extensions.inspection.hidden_states import hidden_states, layers_of

RUN = "pretrained:toy"
PAIRS = list(toy.pairs("test", 40))
NAMES = "encoder/embeddings,encoder/0,encoder/1,decoder/embeddings,decoder/0,decoder/1"


@pytest.fixture(scope="module")
def run():
    return load(RUN)


def states_of(run, pairs, names=NAMES):
    layers = layers_of(names, run.config.model)
    return list(hidden_states(run, layers, pairs))


def by_numpy(run, source: list[int], target: list[int]) -> dict[str, np.ndarray]:
    """The states of a pair in float64, one layer after the other."""
    p = jax.tree.map(lambda x: np.asarray(x, np.float64), jax.device_get(run.params))
    m, found = run.config.model, {}
    source_table, target_table, _ = reference.tables(p, m)
    factor = np.sqrt(m.d_model) if m.embed_scale == "sqrt_d" else 1.0
    x = factor * source_table[source] + reference.positions(
        p.get("source_positions"), m, len(source)
    )
    found["encoder/embeddings"] = x
    for n in range(m.num_encoder_layers):
        found[f"encoder/{n}"] = x = reference.encoder_layer(x, p[f"encoder_{n}"], m)
    memory = x if m.norm_placement == "post" else reference.norm(x, p["encoder_norm"], m)
    assert m.decoder_start_token == "zeros"
    x = np.concatenate([np.zeros((1, m.d_model)), factor * target_table[target[:-1]]])
    x = x + reference.positions(p.get("target_positions"), m, len(target))
    found["decoder/embeddings"] = x
    for n in range(m.num_decoder_layers):
        found[f"decoder/{n}"] = x = reference.decoder_layer(x, memory, p[f"decoder_{n}"], m)
    return found


def test_states_equal_numpys(run):
    for (source, target), states in zip(PAIRS[:3], states_of(run, PAIRS[:3]), strict=True):
        ids = [[*tokenizer.encode(text), 1] for tokenizer, text in (
            (run.tokenizers.source, source), (run.tokenizers.target, target))]  # fmt: skip
        expected = by_numpy(run, *ids)
        assert states.hidden.keys() == expected.keys()
        for name, x in states.hidden.items():
            assert x.dtype == np.float32
            np.testing.assert_allclose(x, expected[name], atol=2e-4, err_msg=name)
        assert [len(states.tokens[side]) for side in ("source", "target")] == [
            len(each) for each in ids
        ]
        assert states.tokens["source"][-1] == states.tokens["target"][-1] == "</s>"


def test_states_do_not_depend_on_other_lines(run):
    together = states_of(run, PAIRS)
    for i in (0, 17, 39):
        (alone,) = states_of(run, [PAIRS[i]])
        for name, x in alone.hidden.items():
            np.testing.assert_allclose(x, together[i].hidden[name], atol=1e-5)


def test_encoder_does_not_need_targets(run):
    with_targets = states_of(run, PAIRS[:3], "encoder/1")
    without = states_of(run, [(source, None) for source, _ in PAIRS[:3]], "encoder/1")
    for one, other in zip(without, with_targets, strict=True):
        np.testing.assert_allclose(one.hidden["encoder/1"], other.hidden["encoder/1"], atol=1e-5)
        assert set(one.tokens) == {"source"}
    with refused("--target"):
        states_of(run, [(PAIRS[0][0], None)], "decoder/0")


@pytest.mark.parametrize(
    "name", ["encoder/2", "encoder", "encoder/-1", "middle/0", "", "decoder/1,decoder/x"]
)
def test_layers_that_do_not_exist_are_named(run, name):
    with refused("--layers", "encoder/1", "decoder/1"):
        layers_of(name, run.config.model)


@pytest.fixture
def files(tmp_path):
    """Source and target lines."""
    for side, name in enumerate(("a.en", "a.de")):
        (tmp_path / name).write_text("".join(f"{pair[side]}\n" for pair in PAIRS))
    return tmp_path


def command(folder, *flags, output="states.npz"):
    return [
        "inspect",
        f"--workdir={RUN}",
        f"--input={folder / 'a.en'}",
        f"--output={folder / output}",
        *flags,
    ]


def test_file_holds_the_states_of_each_line(run, files):
    flags = (f"--target={files / 'a.de'}", "--layers=encoder/1,decoder/embeddings,decoder/0")
    assert main(command(files, *flags)) == 0
    arrays = np.load(files / "states.npz")
    expected = states_of(run, PAIRS, "encoder/1,decoder/embeddings,decoder/0")
    for side, layers in (
        ("source", ["encoder/1"]),
        ("target", ["decoder/embeddings", "decoder/0"]),
    ):
        offsets = arrays[f"{side}_offsets"]
        assert len(offsets) == len(PAIRS) + 1
        for i, states in enumerate(expected):
            rows = slice(offsets[i], offsets[i + 1])
            assert arrays[f"{side}_tokens"][rows].tolist() == states.tokens[side]
            for name in layers:
                np.testing.assert_allclose(arrays[name][rows], states.hidden[name], atol=1e-5)
                assert arrays[name].shape == (offsets[-1], run.config.model.d_model)
    assert sorted(path.name for path in files.iterdir()) == ["a.de", "a.en", "states.npz"]


def test_windows_do_not_change_the_states(files, monkeypatch):
    assert main(command(files, "--layers=encoder/0", output="one.npz")) == 0
    monkeypatch.setattr(inspect_command, "window_size", lambda loaded: 7)
    assert main(command(files, "--layers=encoder/0", output="two.npz")) == 0
    one, two = (np.load(files / name) for name in ("one.npz", "two.npz"))
    assert one.files == two.files
    np.testing.assert_allclose(one["encoder/0"], two["encoder/0"], atol=1e-5)
    np.testing.assert_array_equal(one["source_tokens"], two["source_tokens"])


def test_a_line_that_cannot_be_read_has_no_rows_and_is_named(files, capsys):
    (files / "gap").write_text("It is late.\n\nA dog.\n" + "word " * 2000 + "\n")
    flags = [f"--input={files / 'gap'}", f"--output={files / 'x.npz'}", "--layers=encoder/0"]
    assert main(["inspect", f"--workdir={RUN}", *flags]) == 0
    assert_names(capsys.readouterr().err, "2 (", "4 (")
    arrays = np.load(files / "x.npz")
    first, second, third, fourth = np.diff(arrays["source_offsets"])
    assert second == fourth == 0 < min(first, third) and len(arrays["encoder/0"]) == first + third


def test_wrong_input_is_refused_and_leaves_nothing(files):
    (files / "short").write_text("Eins.\n")
    (files / "empty").write_text("")
    before = sorted(path.name for path in files.iterdir())
    page = ["inspect", f"--workdir={RUN}", f"--html={files / 'x.html'}"]
    for flags, name in (
        (command(files), "--layers"),
        (command(files, "--layers=encoder/9"), "encoder/9"),
        (command(files, "--layers=decoder/0"), "--target"),
        (command(files, "--layers=encoder/0", f"--target={files / 'short'}"), "short"),
        (command(files, "--layers=encoder/0", "--html=x.html"), "--html"),
        (
            [
                "inspect",
                f"--workdir={RUN}",
                f"--input={files / 'empty'}",
                f"--output={files / 'x'}",
                "--layers=encoder/0",
            ],
            "empty",
        ),
        (page, RUN),
        ([*page, "--step=3"], "--step"),
        ([*page, "--config.decode.alpha=1"], "--config.decode.alpha"),
    ):
        refused_command(flags, name)
    assert sorted(path.name for path in files.iterdir()) == before
