"""Translations of a trained model keep what is asked of them, from any form of input."""

import json

import pytest
from helpers.refusals import refused

from t2t_flax.cli.arguments import Change
from t2t_flax.cli.lines import FAILED, Line
from t2t_flax.cli.translate import translating
from t2t_flax.config.data_keys import EOS
from t2t_flax.data.sources import toy
from t2t_flax.decoding.batches import read_lines
from t2t_flax.evaluation.restore import load
from t2t_flax.evaluation.scoring import PairIds
from t2t_flax.extensions.constraints.lines import contains

KEYS = {"decode.batch_size": "8", "decode.max_length_offset": "20"}


def translate(lines, **keys):
    overrides = KEYS | {name.replace("__", "."): str(value) for name, value in keys.items()}
    return [t.text for t in load("pretrained:toy", overrides=overrides).translate(lines)]


@pytest.fixture(scope="module")
def sources():
    return [source for source, _ in toy.pairs("test", 12)]


@pytest.fixture(scope="module")
def free(sources):
    return translate(sources)


@pytest.mark.smoke
def test_phrases_in_the_line_are_in_the_translation(sources):
    wanted = ["Bahnhof", "sehr gut", "Haus"]
    lines = [f"{source}\t{wanted[i % 3]}" if i % 4 else source for i, source in enumerate(sources)]
    found = translate(
        lines, constraints__lines="tabs", decode__strategy="constrained_beam", decode__beam_size=8
    )
    for i, text in enumerate(found):
        assert not i % 4 or contains(text, wanted[i % 3]), text
    plain = translate(sources, decode__beam_size=8)
    assert found[::4] == plain[::4]  # lines without phrases, whatever their batch asks for


def test_phrases_to_avoid_are_not_in_the_translation(sources, free):
    words = [max(text.strip(".?!").split(), key=len) for text in free]
    lines = [
        json.dumps({"text": s, "avoid": [word]}) for s, word in zip(sources, words, strict=True)
    ]
    found = translate(lines, constraints__lines="json")
    assert not any(contains(text, word) for text, word in zip(found, words, strict=True))


@pytest.mark.parametrize(
    "keys", [{"decode.beam_size": "3", "decode.n_best": "3"}, {"decode.strategy": "greedy"}]
)
def test_penalties_rank_translations_and_report_the_log_probabilities_of_the_model(sources, keys):
    run = load("pretrained:toy", overrides=KEYS | keys | {"constraints.repetition_penalty": "1.5"})
    for source, translation in zip(sources, run.translate(sources[:3]), strict=False):
        scores = [one.score for one in translation.hypotheses]
        assert scores == sorted(scores, reverse=True)
        pairs = [
            PairIds(run.encode_source(source), [*one.tokens, EOS]) for one in translation.hypotheses
        ]
        forced = [score.log_prob for score in run.score_pairs(pairs)]
        assert [one.log_prob for one in translation.hypotheses] == pytest.approx(forced, abs=1e-3)


def test_a_glossary_is_used_where_the_source_has_its_terms(sources, free, tmp_path):
    word = max(sources[0].strip(".?!").split(), key=len)
    (tmp_path / "terms.tsv").write_text(f"{word}\tXylophon\tBahnhof\n")
    keys = dict(constraints__glossary=tmp_path / "terms.tsv", decode__strategy="constrained_beam")
    for source, text, before in zip(sources, translate(sources, **keys), free, strict=True):
        if contains(source.lower(), word.lower()):
            assert contains(text, "Xylophon") or contains(text, "Bahnhof")
        else:
            assert text == before


def test_an_output_is_not_resumed_with_another_glossary(tmp_path):
    """The file counts by its content, wherever it lies."""
    from t2t_flax.extensions.bulk_translation.line_files import output_settings
    from t2t_flax.extensions.bulk_translation.resumable_output import ResumableOutput

    def output(terms, name, **keys):
        (tmp_path / name).write_text(terms)
        overrides = {
            "constraints.glossary": str(tmp_path / name),
            "decode.strategy": "constrained_beam",
        }
        settings = output_settings(load("pretrained:toy", overrides=overrides), {})
        return ResumableOutput(str(tmp_path / "out"), settings, **keys)

    with output("dog\tHund\n", "terms") as first:
        first.append([Line(0, "A dog.")], "Ein Hund.\n", 0)
    with output("dog\tHund\n", "moved", resume=True) as again:
        assert again.done == 1
    with refused("--resume", "constraints.glossary"):
        output("dog\tKatze\n", "moved", resume=True).__enter__()


CONTAIN = json.dumps({"text": "A dog.", "constraints": ["Hund"]})


@pytest.mark.parametrize(
    "lines, keys, names",
    [
        (["A dog."], dict(constraints__lines="tabs"), ["constraints.lines", "constrained_beam"]),
        ([CONTAIN], dict(constraints__lines="json"), ["line 1", "constrained_beam"]),
        (["A dog."], dict(decode__strategy="constrained_beam"), ["constraints.glossary"]),
        (
            ["A dog."],
            dict(constraints__suppress="<unk> no-such-piece"),
            ["constraints.suppress", "no-such-piece"],
        ),
        (
            ["A dog.\tHund", "A dog.\t漢字"],
            dict(constraints__lines="tabs", decode__strategy="constrained_beam"),
            ["line 2", "漢字"],
        ),
    ],
)
def test_constraints_that_cannot_be_kept_are_refused(lines, keys, names):
    with refused(*names):
        translate(lines, **keys)


def test_ctranslate2_does_not_decode_by_these_rules():
    keys = {
        "decode.engine": "ctranslate2",
        "decode.early_stopping": "beam_full",
        "decode.length_penalty": "power",
    }
    model = load("pretrained:toy", overrides=keys | {"constraints.min_length": "3"})
    with refused("constraints"):
        model.decoder  # noqa: B018


def test_a_line_of_another_form_costs_that_line_alone():
    run = load("pretrained:toy", overrides=KEYS | {"constraints.lines": "json"})
    answer = translating(run, scores=False, flags={}, say=lambda text: None)
    lines = [
        "It is late.",
        '{"text": 3}',
        '{"text": ',
        '{"text": "It is late."}',
        "[" * 9,
        '{"a":' * 10_000,
    ]
    output, notes = answer(
        [Line(number, line) for number, line in enumerate(lines)], lambda *_: None
    )
    first, *empty, again, other, deep = output.splitlines()
    assert first == again == "Es ist spät." and empty == ["", ""] and other and not deep
    assert {note.number for note in notes if note.event == FAILED} == {1, 2, 5}


@pytest.mark.parametrize("key", ["glossary", "avoid"])
def test_a_file_that_cannot_be_read_is_an_error_of_the_command(tmp_path, key):
    keys = {"decode.strategy": "constrained_beam"} if key == "glossary" else {}
    run = load("pretrained:toy", overrides=KEYS | keys | {f"constraints.{key}": f"{tmp_path}/none"})
    with refused(f"constraints.{key}", f"{tmp_path}/none"):
        translating(run, scores=False, flags={}, say=lambda text: None)


def test_a_line_that_no_output_can_satisfy_is_named_and_left_empty():
    lines = [
        json.dumps({"text": "A dog.", "constraints": ["Hund"], "avoid": avoid})
        for avoid in ([], ["Hund"])
    ]
    keys = KEYS | {
        "constraints.lines": "json",
        "decode.strategy": "constrained_beam",
        "decode.n_best": "2",
    }
    run = load("pretrained:toy", overrides=keys)
    answer = translating(run, scores=False, flags={}, say=lambda text: None)
    output, notes = answer(
        [Line(number, line) for number, line in enumerate(lines)], lambda *_: None
    )
    assert "Hund" in output.splitlines()[0] and output.splitlines()[2:] == ["1 ||| ", "1 ||| "]
    (note,) = notes
    assert note.number == 1


def test_what_is_printed_beside_translations_is_of_the_text_of_a_line(sources, monkeypatch):
    class Beside(Change):
        def answers(self, lines, sources, texts):
            return [[f"{line} ||| {source}"] for line, source in zip(lines, sources, strict=True)]

    monkeypatch.setattr("t2t_flax.cli.arguments.Changes", Beside)
    lines = [f"{source}\tBahnhof" for source in sources[:3]]
    keys = KEYS | {"constraints.lines": "tabs", "decode.strategy": "constrained_beam"}
    run = load("pretrained:toy", overrides=keys).for_decoding()
    answer = translating(run, scores=False, flags={}, say=lambda text: None)
    output, _ = answer([Line(number, line) for number, line in enumerate(lines)], lambda *_: None)
    assert output.splitlines() == [f"{source} ||| {source}" for source in sources[:3]]


def test_phrases_of_a_file_take_memory_once(tmp_path):
    (tmp_path / "avoid.txt").write_text("Bahnhof\nHaus\n")
    run = load("pretrained:toy", overrides={"constraints.avoid": str(tmp_path / "avoid.txt")})
    _, more = read_lines(run.config, run.tokenizers, ["A dog."] * 1000, 0)
    assert more["avoid"].shape[0] == 1000 and more["avoid"].strides[0] == 0
