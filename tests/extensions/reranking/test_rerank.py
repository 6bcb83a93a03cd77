"""Reranking: choices against brute force, weights, right-to-left models, and the command."""

from types import SimpleNamespace

import numpy as np
import pytest
from helpers.configs import small_config
from helpers.refusals import assert_names, refused, refused_command
from helpers.runs import start, tiny_run
from hypothesis import given
from hypothesis import strategies as st

from t2t_flax.__main__ import main
from t2t_flax.config import Config
from t2t_flax.data.sources import open_source, toy
from t2t_flax.evaluation.restore import load
from t2t_flax.extensions.reranking.candidates import read_candidates
from t2t_flax.extensions.reranking.rerank import choose, tune
from t2t_flax.extensions.reranking.right_to_left import reverse_words
from t2t_flax.tasks import task_of
from t2t_flax.training import loop


@given(
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=6),
    seed=st.integers(0, 99),
    missing=st.floats(0.0, 1.0),
)
def test_the_highest_weighted_sum_is_chosen(sizes, seed, missing):
    """Values of few kinds, so that sums are often equal: the first counts.

    A candidate without a score comes last.
    """
    rng = np.random.default_rng(seed)
    features = rng.integers(-2, 3, (sum(sizes), 3)).astype(float)
    features[rng.random(len(features)) < missing, 1] = rng.choice([np.nan, -np.inf])
    weights = rng.integers(-2, 3, 3).astype(float)
    starts = np.cumsum([0, *sizes[:-1]]).tolist()
    for index, first, size in zip(choose(features, starts, weights), starts, sizes, strict=True):
        keys = [
            (
                not np.isfinite(row).all(),
                -sum(w * x for w, x in zip(weights, row, strict=True))
                if np.isfinite(row).all()
                else 0,
                i,
            )
            for i, row in enumerate(features[first : first + size])
        ]
        assert index == first + min(keys)[2]


def test_tuned_weights_find_a_known_sum():
    """Quality is 2 a - b; c is noise.

    No feature alone chooses the best candidates, the weights that are found do so.
    """
    rng = np.random.default_rng(0)
    features = rng.normal(size=(600, 3)) * [1.0, 10.0, 0.1]
    quality = 2 * features[:, :1] - features[:, 1:2] / 10
    starts = list(range(0, 600, 6))

    def score(sums):
        return float(sums[0])

    weights, value = tune(features, starts, quality, score)
    best = sum(quality[s : s + 6].max() for s in starts)
    alone = [score(quality[choose(features, starts, w)].sum(0)) for w in np.eye(3)]
    assert value == pytest.approx(score(quality[choose(features, starts, weights)].sum(0)))
    assert max(alone) < value and value > 0.99 * best
    assert np.abs(weights).max() == 1 and tune(features, starts, quality, score)[1] == value


def test_where_the_first_candidates_are_best_all_weights_may_be_zero():
    features, quality = np.array([[2.0], [1.0], [3.0]] * 5), np.array([[1.0], [0.0], [0.0]] * 5)
    weights, value = tune(features, range(0, 15, 3), quality, lambda sums: float(sums[0]))
    assert value == 5.0 and list(weights) == [0.0]


def right_to_left(**keys):
    return task_of(small_config(data=dict(task="right_to_left")).with_values(keys))


def test_models_from_right_to_left_read_reversed_targets_and_users_see_them_in_order():
    plain, task = (
        open_source("toy:test:5", source_language="en", target_language="de"),
        right_to_left(),
    )
    source = task.open_source("toy:test:5", key="data.test")
    assert [(s, reverse_words(t)) for s, t in source.pairs()] == list(plain.pairs())
    assert (
        [r for (r,) in source.references()]
        == [t for _, t in source.pairs()]
        != [t for _, t in plain.pairs()]
    )
    assert source.fingerprint() != plain.fingerprint() and source.where(2) == plain.where(2)
    sources, references = zip(*plain.pairs(), strict=True)
    seen = task.predictions(
        sources, ["Satz Ein", "", "x", "", ""], [[t for _, t in source.pairs()]]
    )
    assert seen.references == [list(references)] and seen.hypotheses[:2] == ["Ein Satz", ""]
    assert task.preprocess_target("", references[0]) == next(source.pairs())[1]


@pytest.mark.parametrize(
    ("key", "value"),
    [("filters.copies", True), ("filters.scorer", "mine.py:score"), ("constraints.lines", "tabs"),
     ("constraints.glossary", "terms.tsv"), ("constraints.avoid", "phrases"), ("filters.language", 0.95)],
)  # fmt: skip
def test_keys_that_read_targets_in_order_are_refused(key, value):
    with refused(f"config.{key}", "translation, not", "right_to_left"):
        task = right_to_left(**{key: value})
        task.config.group("filters").check(task.config)
        task.validate_config()


def test_sides_that_would_be_cut_at_other_ends_are_refused():
    with refused("config.data.on_too_long", "right_to_left"):
        right_to_left(**{"data.on_too_long": "truncate"}).validate_config()


@pytest.fixture
def write(tmp_path):
    def write(name, lines):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))
        return str(tmp_path / name)

    return write


def test_candidates_are_read_from_flat_files_and_n_best_lists(write):
    flat = write("flat", ["a", "b", "", "d"])
    assert list(read_candidates(flat, 2)) == [[("a", None), ("b", None)], [("", None), ("d", None)]]
    lists = write("lists", ["0 ||| a b", "1 ||| c", "1 |||  ||| -1.0"])
    assert list(read_candidates(lists, None)) == [[("a b", None)], [("c", None), ("", -1.0)]]


def test_fields_between_translation_and_score_are_not_its_text(write):
    """Marian writes features and alignments there, Moses features."""
    lists = write("lists", [
        "0 ||| Der Hund ist da. ||| F0= -4.20 ||| -0.350",
        "0 ||| Hund ! ||| 0-0 1-1 ||| F0= -4.20 F1= -1 ||| -0.4",
        "1 ||| ein Haus ||| LM0= -36.0 WordPenalty0= -9 ||| -1e1",
    ])  # fmt: skip
    first = [("Der Hund ist da.", -0.35), ("Hund !", -0.4)]
    assert list(read_candidates(lists, None)) == [first, [("ein Haus", -10.0)]]


@pytest.mark.parametrize("fields, names", [
    ("a ||| b", ["b"]), ("a ||| b ||| -1", ["b"]), ("a ||| -1 ||| 0-0", ["0-0"]), ("a ||| F0= -1", ["F0="]),
    ("a ||| ", ["line 2"]),
])  # fmt: skip
def test_a_line_with_other_fields_is_refused_by_its_number(write, fields, names):
    lists = write("lists", ["0 ||| a ||| -1", f"0 ||| {fields}"])
    with refused("line 2", *names):
        list(read_candidates(lists, None))


@pytest.mark.smoke
def test_score_files_and_weights(write, tmp_path, capsys):
    lists = write(
        "lists", ["0 ||| a b ||| -1", "0 ||| a ||| -2", "1 ||| c ||| -1", "1 ||| d ||| -1"]
    )
    scores = write("scores.tsv", ["-5\t2\t-1", "-1\t1\t-1", "nan\t0\tnan", "-9\t1\t-9"])
    shared = [f"--candidates={lists}", f"--scores={scores}", f"--output={tmp_path / 'out'}"]

    def output(*words):
        assert main(["rerank", *shared, *words]) == 0
        return (tmp_path / "out").read_text().split("\n")[:-1]

    assert output("--weights=nbest=1") == ["a b", "c"]
    assert output("--weights=nbest=1,scores.tsv=1") == ["a", "d"]
    assert "1 candidates" in capsys.readouterr().out
    assert output("--weights=words=-1") == ["a", "c"]
    texts = [
        "the cat sat on the mat",
        "the cat sat on a mat",
        "it is very late now",
        "it is too late now",
    ]
    longer = write("longer", [f"{i // 2} ||| {text} ||| -1" for i, text in enumerate(texts)])
    better, reference = (
        write("better", ["-5", "-1", "-7", "-9"]),
        write("reference", [texts[1], texts[2]]),
    )
    tuned = [f"--candidates={longer}", f"--scores={better}", f"--output={tmp_path / 'tuned'}"]
    capsys.readouterr()
    assert main(["rerank", *tuned, f"--reference={reference}"]) == 0
    said = capsys.readouterr().out
    assert (tmp_path / "tuned").read_text().splitlines() == [texts[1], texts[2]]
    assert "100.00" in said
    (tmp_path / "tuned").unlink()
    assert main(["rerank", *tuned, f"--weights={said.split('--weights=')[1].strip()}"]) == 0
    assert (tmp_path / "tuned").read_text().splitlines() == [texts[1], texts[2]]
    some = [
        f"--candidates={write('some', ['0 ||| a b ||| -1', '0 ||| a'])}",
        f"--output={tmp_path / 'out'}",
    ]
    assert main(["rerank", *some, f"--reference={write('one', ['a b'])}"]) == 0
    assert "nbest" in capsys.readouterr().out


@pytest.mark.parametrize("lines, names", [
    (["", "it is very late now"], ["1 lines", "100.00"]), ([" ", "\u200b"], ["reference.de", "no text"]),
    (["它在路上！", ""], ["1 lines"]),
])  # fmt: skip
def test_weights_are_chosen_without_lines_that_have_no_reference(
    write, tmp_path, capsys, caplog, lines, names
):
    chinese = "路" in lines[0]
    texts = (
        ["它 在 路上 !", "它在路上！"]
        if chinese
        else ["the cat sat on the mat", "the cat sat on a mat"]
    )
    texts += ["it is very late now", "it is too late now"]
    longer = write("longer", [f"{i // 2} ||| {text} ||| -1" for i, text in enumerate(texts)])
    reference = write("reference.zh" if chinese else "reference.de", lines)
    command = [
        "rerank",
        f"--candidates={longer}",
        f"--output={tmp_path / 'out'}",
        f"--reference={reference}",
    ]
    if not any(line.strip(" \u200b") for line in lines):
        refused_command(command, *names)
        return
    assert main(command) == 0
    assert_names(capsys.readouterr().out, *names)
    assert not caplog.records, "the language is that of the file's name"


LISTS = ["--candidates=lists", "--scores=scores"]
OTHER = {
    "lists": ["0 ||| a", "1 ||| b"],
    "scores": ["1", "2"],
    "short": ["1"],
    "one": ["a"],
    "words": ["x", "y"],
}


@pytest.mark.parametrize(
    "words, names",
    [
        (LISTS, ["--weights", "--reference"]),
        ([*LISTS, "--weights=words=1", "--reference=lists"], ["--weights", "--reference"]),
        ([*LISTS, "--weights=other=1"], ["--weights=other=1", "NAME=NUMBER"]),
        ([*LISTS, "--weights=words=x"], ["--weights=words=x", "NAME=NUMBER"]),
        ([*LISTS, "--workdir=w", "--weights=words=1"], ["--workdir", "--source=FILE"]),
        ([*LISTS, "--workdir=w", "--source=lists", "--reference=absent"], ["absent"]),
        (
            [*LISTS, "--workdir=w", "--source=short", "--weights=w=1"],
            ["short", "1 lines", "2 sources"],
        ),
        ([*LISTS, "--reference=one"], ["one", "1 lines", "2 sources"]),
        ([*LISTS, "--scores=short", "--weights=short=1"], ["short", "1 lines", "2 candidates"]),
        ([*LISTS, "--scores=words", "--weights=words-2=1"], ["words", "line 1"]),
        (["--candidates=lists", "--weights=nbest=1"], ["--weights", "nbest", "lists"]),
        (
            ["--candidates=scores", "--num-candidates=3", "--weights=words=1"],
            ["scores", "2 lines", "of 3"],
        ),
        (["--candidates=scores", "--weights=words=1"], ["scores", "line 1", "N |||"]),
        (["--candidates=gap", "--weights=words=1"], ["gap", "line 2"]),
        (
            [*LISTS, "--target-language=de", "--weights=scores=1"],
            ["--target-language", "--workdir"],
        ),
    ],
    ids=lambda value: " ".join(value),
)
def test_wrong_files_and_flags_are_named(words, names, write, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, lines in (OTHER | {"gap": ["0 ||| a", "2 ||| b"]}).items():
        write(name, lines)
    refused_command(["rerank", *words, "--output=out"], *names)
    assert not (tmp_path / "out").exists()


def test_sources_are_scored_with_the_symbol_of_the_flag(monkeypatch, write, tmp_path, capsys):
    seen = []
    run = SimpleNamespace(
        config=Config(),
        in_language=lambda text, language="": f"[{language}]{text}",
        encode_pair=lambda source, target: seen.append(source),
        score_pairs=lambda pairs: [SimpleNamespace(log_prob=-2.0), SimpleNamespace(log_prob=-1.0)],
    )
    monkeypatch.setattr("t2t_flax.cli.arguments.prepare_to_load", lambda *args: None)
    monkeypatch.setattr("t2t_flax.evaluation.restore.load", lambda *args, **keys: run)
    words = [
        f"--candidates={write('lists', ['0 ||| a', '0 ||| b'])}",
        f"--output={tmp_path / 'out'}",
        "--target-language=fr",
    ]
    assert (
        main(
            ["rerank", *words, f"--source={write('source', ['x'])}", "--workdir=w", "--weights=w=1"]
        )
        == 0
    )
    assert seen == ["[fr]x", "[fr]x"] and (tmp_path / "out").read_text() == "b\n"
    given = []

    def tuned(_, lines, config, *rest):
        return (
            given.append(config.data.target_language),
            (np.ones(2), ""),
        )[1]

    monkeypatch.setattr("t2t_flax.evaluation.restore.stored_config", lambda workdir: Config())
    monkeypatch.setattr("t2t_flax.extensions.reranking.rerank_command._tuned", tuned)
    more = [
        f"--source={write('source', ['x'])}",
        "--workdir=w",
        f"--reference={write('one', ['b'])}",
    ]
    assert main(["rerank", *words, *more]) == 0 and given == ["fr"]


@pytest.mark.slow
def test_a_right_to_left_run_scores_reversed_candidates(tmp_path, cache, write, capsys):
    config = tiny_run(
        tmp_path / "r2l",
        steps=3,
        checkpoint=dict(every_steps=3),
        data=dict(test="toy:test:4", task="right_to_left"),
    )
    loop.train(start(config, tmp_path / "r2l", cache), score=None)
    pairs = list(toy.pairs("test", 4))
    candidates = [[target, reverse_words(target), "Ja."] for _, target in pairs]
    lists = write(
        "lists", [f"{i} ||| {text}" for i, texts in enumerate(candidates) for text in texts]
    )
    source = write("source", [source for source, _ in pairs])
    output, devices = tmp_path / "out", "--config.mesh.data=-1"
    words = [
        f"--candidates={lists}",
        f"--source={source}",
        f"--workdir={tmp_path / 'r2l'}",
        f"--output={output}",
        devices,
    ]
    assert main(["rerank", *words, "--weights=r2l=1"]) == 0
    model = load(tmp_path / "r2l", overrides={"mesh.data": "-1"})
    for (line, _), texts, chosen in zip(
        pairs, candidates, output.read_text().splitlines(), strict=True
    ):
        scores = [model.score([(line, text)])[0] for text in texts]
        assert chosen == texts[int(np.argmax([score.log_prob for score in scores]))]
        written = ["".join(score.tokens[:-1]).replace("▁", " ").strip() for score in scores]
        assert written == list(map(reverse_words, texts)), (
            "they are scored in the order in which the model writes"
        )
    lines = [line for line, _ in pairs]
    run = [f"--workdir={tmp_path / 'r2l'}", f"--input={source}", f"--output={output}", devices]
    assert main(["translate", *run]) == 0
    assert output.read_text() == "".join(
        f"{reverse_words(t.text)}\n" for t in model.translate(lines)
    )
    refused_command(["translate", *run, f"--prefix={source}"], "right_to_left", "prefix")
    refused_command(["align", run[0], devices, "toy:test:4"], "right_to_left", "translation")
