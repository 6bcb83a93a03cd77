"""Alignments by a trained model.

Against a direct computation, the corpus' gold alignments, and beside translations.
"""

import signal
from types import SimpleNamespace

import numpy as np
import pytest
from helpers.refusals import refused, refused_command
from helpers.runs import DIRECTIONS, start, tiny_run

from t2t_flax.__main__ import main
from t2t_flax.cli.lines import Signalled
from t2t_flax.config import Config
from t2t_flax.data.sources import toy
from t2t_flax.errors import STOPPED
from t2t_flax.evaluation.restore import load
from t2t_flax.evaluation.scoring import rows_of
from t2t_flax.extensions.alignments import attention, choice
from t2t_flax.extensions.alignments.attention import Head, Pair, weights_of_heads, word_weights
from t2t_flax.extensions.alignments.choice import head_of, ranked
from t2t_flax.extensions.alignments.links import hard_links, parse_gold, pharaoh
from t2t_flax.extensions.alignments.outputs import WithTags
from t2t_flax.training import loop
from tools.toy_corpus.alignments import gold

RUN, ONE = "pretrained:toy", "--config.mesh.cpu_devices=1"
HEAD = Head(2, 4)
KEYS = [*HEAD.flags.split(), ONE]
PAIRS = [Pair(*pair) for pair in toy.pairs("test", 60)]


@pytest.fixture(scope="module")
def run():
    return load(RUN)


@pytest.fixture(scope="module")
def ranking(run):
    golds = [parse_gold(gold("test", i), "") for i in range(len(PAIRS))]
    return ranked(run, PAIRS, golds), ranked(run, PAIRS)


def command(capsys, *words):
    """(standard output, standard error) of a command."""
    capsys.readouterr()
    assert main([str(word) for word in words]) == 0, capsys.readouterr()
    return capsys.readouterr()


def by_hand(run, pair, head):
    """Return a pair's weights, by loops over the model's weights and SentencePiece's pieces."""
    ids = run.encode_pair(pair.source, pair.target)
    batch = {name: np.asarray(x) for name, x in rows_of([ids], 1).items()}
    _, state = run.model.apply(
        {"params": run.params}, batch, method="hidden", mutable=["intermediates"]
    )
    layer = state["intermediates"][f"decoder_{head.layer - 1}"]["cross_attention"]["weights"][0][0]
    of_head = np.asarray(layer[head.head - 1] if head.head else layer.mean(0))

    def words(tokenizer, tokens):
        starts = [piece.startswith("\u2581") for piece in tokenizer.pieces(tokens[:-1])]
        return np.cumsum(starts) - 1

    source, target = (
        words(run.tokenizers.source, ids.source),
        words(run.tokenizers.target, ids.target),
    )
    out = np.zeros((target[-1] + 1, source[-1] + 1))
    for t, target_word in enumerate(target):
        for s, source_word in enumerate(source):
            row = t + (head.row == "reads")
            out[target_word, source_word] += of_head[row, s] / (target == target_word).sum()
    return out


@pytest.mark.parametrize("head", [Head(1, 0), Head(2, 4, "reads")], ids=str)
def test_weights_are_those_of_each_pair_alone(run, head):
    """Also beside longer pairs and pairs with an empty side."""
    long = Pair("and " * 40 + "it rains.", "und " * 40 + "es regnet.")
    pairs = [*PAIRS[:8], Pair("", "Ein Wort"), long, Pair("a word", " ")]
    for pair, weights in zip(pairs, word_weights(run, pairs, head), strict=True):
        assert weights.shape == (len(pair.target.split()), len(pair.source.split()))
        if pair.source.strip() and pair.target.strip():
            np.testing.assert_allclose(weights, by_hand(run, pair, head), atol=1e-5)
            assert (weights.sum(1) <= 1 + 1e-5).all(), "the rest is of EOS"
        else:
            assert not weights.any()


def test_all_heads_at_once_are_each_head_alone(run):
    for i, by_head in weights_of_heads(run, PAIRS[:3]):
        assert len(by_head) == 2 * (2 * 4 + 2 + 1)
        for head in (HEAD, Head(1), Head(), Head(1, 2, "reads")):
            np.testing.assert_allclose(
                by_head[head], word_weights(run, PAIRS[i : i + 1], head)[0], atol=1e-6
            )


def test_a_head_aligns_the_corpus_nearly_as_its_grammar_does(ranking):
    by_gold, without = ranking
    errors = {head: found.error_rate for head, _, found in by_gold}
    assert by_gold[0][2].error_rate == min(errors.values()) < 0.15
    assert errors[without[0][0]] < min(errors.values()) + 0.03, "chosen without gold alignments"
    assert errors[without[-1][0]] > 0.4
    assert [head for head, *_ in without] != sorted(errors), "the order is one of merit"


def test_a_run_uses_the_head_of_its_keys_or_chooses_one_on_its_validation_set(
    run, ranking, capsys, monkeypatch
):
    monkeypatch.setattr(choice, "_chosen", {})  # another test may have chosen for the same model
    assert head_of(load(RUN, overrides={"alignments.layer": "1", "alignments.head": "2"})) == Head(
        1, 2
    )
    chosen = head_of(run)
    assert chosen == next(head for head, *_ in ranking[1] if head.layer)
    assert chosen.flags in capsys.readouterr().err
    with refused("nowhere.en", "align --choose"):
        head_of(load(RUN, overrides={"data.valid": "nowhere.en,nowhere.de", "decode.alpha": "0.5"}))


@pytest.mark.slow
def test_a_model_of_several_languages_chooses_a_head_too(tmp_path, cache, capsys):
    """On validation pairs with the symbol of their language."""
    valid = "en-de=toy:valid:6; de-en=toy:valid:6"
    config = tiny_run(
        tmp_path, steps=1, data=DIRECTIONS | dict(valid=valid), languages=dict(directions="by_name")
    )
    loop.train(start(config, tmp_path, cache), score=None)
    run = load(tmp_path)
    assert head_of(run).flags in capsys.readouterr().err


def test_html_beside_constraints_in_the_line_is_refused():
    config = Config().with_values({"constraints.lines": "tabs"})
    with refused("--tags=html", "config.constraints.lines"):
        WithTags(SimpleNamespace(config=config), "html")


@pytest.mark.smoke
def test_align_writes_a_line_for_each_pair_and_the_errors_against_gold(run, tmp_path, capsys):
    pairs = [*PAIRS[:5], Pair("", "Nichts")]
    for side in ("source", "target"):
        (tmp_path / side).write_text("".join(getattr(pair, side) + "\n" for pair in pairs))
    lines = [pharaoh(hard_links(weights)) for weights in word_weights(run, pairs, HEAD)]
    align = ["align", f"--workdir={RUN}", *KEYS, f"{tmp_path}/source,{tmp_path}/target"]
    written, _ = command(capsys, *align)
    assert written.splitlines() == lines and lines[-1] == ""
    (tmp_path / "own").write_text(written)
    _, said = command(capsys, *align, f"--gold={tmp_path}/own", f"--output={tmp_path}/out")
    assert (tmp_path / "out").read_text() == written
    assert "AER 0.000" in said and "1 of 6" in said
    (tmp_path / "short").write_text("0-0\n")
    refused_command([*align, f"--gold={tmp_path}/short"], "short", "1 lines", "6 pairs")
    (tmp_path / "wrong").write_text("0-99\n" * 6)
    refused_command([*align, f"--gold={tmp_path}/wrong"], "--gold", "line 1", "0-99")


def test_choose_prints_every_head_the_best_first(tmp_path, capsys):
    (tmp_path / "gold").write_text("".join(gold("test", i) + "\n" for i in range(60)))
    choose = ["align", f"--workdir={RUN}", ONE, "--choose", "toy:test:60"]
    for flags in ([], [f"--gold={tmp_path}/gold"]):
        heading, *rows, keys = command(capsys, *choose, *flags).out.splitlines()
        assert len(rows) == 22 and ("AER" in rows[0]) == bool(flags)
        assert "--config.alignments.layer=2 --config.alignments.head=" in keys


@pytest.fixture
def lines(tmp_path):
    path = tmp_path / "lines"
    path.write_text("".join(pair.source + "\n" for pair in PAIRS[:6]) + "\n")
    return path


@pytest.mark.smoke
def test_translate_prints_alignments_of_what_it_prints(run, lines, capsys):
    """The translations are those without the flag, and their alignments those of `align`."""
    translate = ["translate", f"--workdir={RUN}", *KEYS, f"--input={lines}"]
    plain = command(capsys, *translate).out.splitlines()
    aligned = command(capsys, *translate, "--alignments=hard").out.splitlines()
    pairs = [
        Pair(source, text)
        for source, text in zip(lines.read_text().splitlines(), plain, strict=True)
    ]
    links = [pharaoh(hard_links(weights)) for weights in word_weights(run, pairs, HEAD)]
    assert aligned == [f"{text} ||| {own}" for text, own in zip(plain, links, strict=True)]
    assert aligned[-1] == " ||| "
    soft = command(capsys, *translate, "--alignments=soft").out.splitlines()
    for pair, line in zip(pairs[:-1], soft, strict=False):
        rows = [row.split(",") for row in line.split(" ||| ")[1].split()]
        assert len(rows) == len(pair.target.split()) and all(
            len(row) == len(pair.source.split()) for row in rows
        )
    many = command(capsys, *translate, "--alignments=0.01").out.splitlines()
    assert set(links[0].split()) < set(many[0].split(" ||| ")[1].split())


def test_n_best_lists_and_scores_have_alignments_before_scores(lines, capsys):
    flags = ["--n-best=2", "--scores", "--alignments=hard"]
    printed = command(
        capsys, "translate", f"--workdir={RUN}", *KEYS, f"--input={lines}", *flags
    ).out.splitlines()
    assert len(printed) == 14
    for number, line in enumerate(printed):
        index, text, links, score = line.split(" ||| ")
        assert int(index) == number // 2 and float(score) <= 0
        assert [int(link.split("-")[1]) for link in links.split()] or not text
        assert sorted(int(link.split("-")[1]) for link in links.split()) == list(
            range(len(text.split()))
        )


def test_translate_file_goes_on_only_with_the_same_alignments(tmp_path, capsys, monkeypatch):
    out, lines = tmp_path / "out", tmp_path / "many"
    lines.write_text("".join(pair.source + "\n" for pair in PAIRS[:20]))
    command_line = [
        "translate_file",
        f"--workdir={RUN}",
        *KEYS,
        f"--input={lines}",
        f"--output={out}",
        "--resume",
    ]
    monkeypatch.setattr("t2t_flax.cli.lines.WINDOW_LINES", 1)
    monkeypatch.setattr("t2t_flax.cli.lines.WINDOW_BATCHES", 1)
    whole = command(
        capsys, "translate", f"--workdir={RUN}", *KEYS, f"--input={lines}", "--alignments=hard"
    ).out
    small = [*command_line, "--config.decode.batch_size=1", "--alignments=hard"]
    calls = iter(range(9))
    real = attention.word_weights

    def fails_later(*args):
        if next(calls) == 1:
            raise Signalled(signal.SIGTERM)
        return real(*args)

    monkeypatch.setattr("t2t_flax.extensions.alignments.outputs.word_weights", fails_later)
    refused_command(small, "SIGTERM", code=STOPPED)
    monkeypatch.setattr("t2t_flax.extensions.alignments.outputs.word_weights", real)
    refused_command([*small[:-1], "--alignments=soft"], "--alignments")
    refused_command([*small, "--config.alignments.row=reads"], "alignments.row")
    command(capsys, *small)
    assert out.read_text() == whole


@pytest.mark.parametrize(
    "flags, names",
    [
        *((f"--alignments={form}", ["--alignments"]) for form in ("yes", "0", "1.5", "nan", "-1")),
        ("--tags=xml", ["--tags"]),
        ("--tags=html --alignments=hard", ["--tags", "--alignments"]),
        ("--config.alignments.layer=3", ["config.alignments.layer"]),
        ("--config.alignments.layer=1 --config.alignments.head=5", ["config.alignments.head"]),
        ("--config.alignments.head=1", ["config.alignments.layer"]),
    ],
)
def test_wrong_flags_are_refused(flags, names, lines):
    refused_command(
        ["translate", f"--workdir={RUN}", ONE, f"--input={lines}", *flags.split()], *names
    )
