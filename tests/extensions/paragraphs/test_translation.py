"""Paragraphs in `translate` and `translate_file`.

As many lines as before, each made of the translations of its sentences.
"""

import dataclasses
import re
from types import SimpleNamespace

import pytest
from helpers import capitals_run
from helpers.refusals import assert_names, refused

from t2t_flax.config import Config

pytest.importorskip("sentencex", reason="needs the extra paragraphs")
from t2t_flax.extensions.paragraphs.model import SentenceModel  # noqa: E402

PARAGRAPHS = ["  It is late.\tHe left. ", "", "One.", "A dog. Two dogs! Three?", " \t"]
IN_CAPITALS = ["  IT IS LATE.\tHE LEFT. ", "", "ONE.", "A DOG. TWO DOGS! THREE?", " \t"]


def source(languages=()):
    """What is asked of a source tokenizer."""

    known = {language: 3 + i for i, language in enumerate(languages)}

    def split(text):
        """Tags need no space after them, as in OPUS-MT."""
        match = re.match(r"<2(\w+)> ?", text)
        return ([known[match[1]]], text[match.end() :]) if match else ([], text)

    def lacks_language(text):
        return bool(languages and text.strip()) and not split(text)[0]

    more = dict(source_languages={}, lacks_language=lacks_language, split=split)
    return SimpleNamespace(target_languages=known, **more)


def model(languages=(), **decode):
    run = capitals_run.CapitalsRun(
        Config().with_values({f"decode.{key}": value for key, value in decode.items()})
    )
    run.tokenizers.source = source(languages)
    run.in_sentences = SentenceModel(run)
    return run


def test_a_paragraph_is_the_translations_of_its_sentences():
    run = model()
    assert [
        made.text for made in run.in_sentences.translate(PARAGRAPHS, progress=print)
    ] == IN_CAPITALS
    ((_, sentences),) = run.windows
    assert sentences == ["It is late.", "He left.", "", "One.", "A dog.", "Two dogs!", "Three?", ""]


def test_a_sentence_that_cannot_be_translated_is_an_error_of_its_line():
    run = model()
    run.refused = ("Two dogs!",)
    run.in_sentences.check_line(PARAGRAPHS[0])
    with refused("dogs!"):
        run.in_sentences.check_line(PARAGRAPHS[3])


@pytest.mark.parametrize(
    "name, value",
    [("constraints.lines", "json"), ("decode.strategy", "sample"), ("data.task", "parsing")],
)
def test_other_lines_samples_and_tasks_are_refused(name, value):
    pytest.importorskip(
        f"t2t_flax.extensions.{'constraints' if name == 'constraints.lines' else 'parsing'}"
    )
    with refused("--split-sentences", name):
        SentenceModel(SimpleNamespace(config=Config().with_values({name: value})))


def test_hypotheses_scores_cuts_and_limits_are_those_of_the_sentences():
    run = model(n_best=2)
    whole = run.translate

    def translate(lines, **keys):
        """The first sentence is cut, the translation of the second ends at the limit.

        Tokens and log-probabilities tell them apart.
        """
        made = whole(lines, **keys)
        first, second = (
            tuple(
                dataclasses.replace(
                    h,
                    tokens=(3 + i, 7 + rank),
                    log_prob=-float(i),
                    score=-float(3 * i),
                    hit_cap=i > 0,
                )
                for rank, h in enumerate(each.hypotheses)
            )
            for i, each in enumerate(made)
        )
        return [
            dataclasses.replace(made[0], hypotheses=first, source_cut=True),
            dataclasses.replace(made[1], hypotheses=second),
        ]

    run.translate = translate
    (made,) = run.in_sentences.translate(["One. Two."], progress=print)
    assert made.source_cut and made.hit_cap
    assert [(h.text, h.tokens, h.log_prob, h.score) for h in made.hypotheses] == [
        ("ONE. TWO.", (3, 7, 4, 7), -1.0, -1.5),
        ("ONE.1 TWO.1", (3, 8, 4, 8), -1.0, -1.5),
    ]


def test_a_prefix_begins_the_first_sentence():
    made = model().in_sentences.translate(
        ["One. Two.", "Three."], prefixes=["Der ", ""], progress=print
    )
    assert [each.text for each in made] == ["Der ONE. TWO.", "THREE."]


def test_the_symbol_of_a_language_is_that_of_each_sentence():
    run = model(languages=("de", "zh", "ROMANCE"))
    lines = ["<2de> One. Two.", "<2zh> Three. Four.", "<2ROMANCE>Five. Six."]
    made = run.in_sentences.translate(lines, progress=print)
    sentences = [
        "<2de> One.",
        "<2de> Two.",
        "<2zh> Three.",
        "<2zh> Four.",
        "<2ROMANCE>Five.",
        "<2ROMANCE>Six.",
    ]
    assert run.windows[0][1] == sentences
    assert made[1].text == "<2ZH> THREE.<2ZH> FOUR.", "Chinese has no space between sentences"


def test_progress_counts_lines():
    seen = []
    model().in_sentences.translate(PARAGRAPHS, progress=lambda *counts: seen.append(counts))
    assert seen == [(len(PARAGRAPHS), len(PARAGRAPHS))]


def test_a_server_refuses_what_the_other_commands_refuse(monkeypatch, tmp_path, capsys):
    pytest.importorskip("t2t_flax.extensions.serving")
    capitals_run.use(monkeypatch, tmp_path)
    serve = capitals_run.command("serve", monkeypatch, capsys)
    error = serve("--split-sentences", "--config.decode.strategy=sample", code=2).err
    assert_names(error, "--split-sentences", "decode.strategy")


@pytest.mark.smoke
@pytest.mark.parametrize("command", ["translate", "translate_file"])
def test_commands_split_lines_with_the_flag(command, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr("t2t_flax.training.precision.advice", lambda config, decoding: "")
    capitals_run.use(monkeypatch, tmp_path).tokenizers.source = source()
    (tmp_path / "in").write_text("".join(line + "\n" for line in PARAGRAPHS))
    t2t = capitals_run.command(command, monkeypatch, capsys)
    t2t("--input=in", "--output=out", "--split-sentences")
    assert (tmp_path / "out").read_text() == "".join(line + "\n" for line in IN_CAPITALS)
