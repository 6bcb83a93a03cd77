"""filters.language drops pairs with a side in another language, counted and listed."""

import dataclasses
import importlib.metadata
import pickle
import sys
from importlib.util import find_spec

import pytest
from helpers.refusals import refused

from t2t_flax.config import default_config, override, resolve
from t2t_flax.data.dataset import prepare_corpus
from t2t_flax.data.hooks import training_policies
from t2t_flax.data.preprocess import Pair, Policies, recipe_of
from t2t_flax.data.sources import open_source
from t2t_flax.data.sources.toy import ToySource
from t2t_flax.extensions.corpora import language_filter
from t2t_flax.extensions.corpora.language_filter import OtherLanguages
from t2t_flax.extensions.corpora.list_dropped import dropped_by
from t2t_flax.tasks import task_of

POLICIES = Policies(max_length=200, on_too_long="drop", empty_lines="drop")
FILTER = OtherLanguages((("en", "de"),), 0.95)
ENGLISH, GERMAN, FRENCH = (
    "A man in a blue shirt is standing.",
    "Zwei Männer stehen am Herd.",
    "Un homme dort sur un canapé vert.",
)


def accepts(rule, source, target):
    return rule.drops([Pair(source, target, [5], [6], 0)]) == [False]


needs_py3langid = pytest.mark.skipif(
    find_spec("py3langid") is None, reason="py3langid is not installed"
)


@needs_py3langid
@pytest.mark.parametrize(
    ("source", "target", "accepted"),
    [
        (ENGLISH, GERMAN, True),
        (GERMAN, ENGLISH, False),
        (ENGLISH, ENGLISH, False),
        (GERMAN, GERMAN, False),
        (ENGLISH, FRENCH, False),
        (ENGLISH.upper(), GERMAN, True),
        ("1990", "1990", True),
        ("OK", "OK", True),
        ("http://example.org/?q=1", "http://example.org/?q=1", True),
        ("", "   ", True),
        ("Yes.", "Ja.", True),
        ("!!!", "\udcff", True),
    ],
)
def test_only_confident_mistakes_are_refused(source, target, accepted):
    assert accepts(FILTER, source, target) is accepted


@needs_py3langid
def test_spellings_are_one_language_and_a_higher_confidence_drops_fewer():
    for codes in (("en-GB", "de_AT"), ("eng", "deu_Latn")):
        rule = OtherLanguages((codes,), 0.95)
        assert (
            rule.as_stored()
            and accepts(rule, ENGLISH, GERMAN)
            and not accepts(rule, GERMAN, ENGLISH)
        )
    pairs = list(open_source("toy:train:300", source_language="en", target_language="de").pairs())
    swapped = [
        sum(
            OtherLanguages(FILTER.languages, confidence).drops(
                [Pair(t, s, [5], [6], 0) for s, t in pairs]
            )
        )
        for confidence in (0.5, 0.99, 0.9999)
    ]
    assert 300 >= swapped[0] > swapped[1] > swapped[2] and swapped[0] > 290
    assert all(accepts(FILTER, *pair) for pair in pairs)


@needs_py3langid
@pytest.mark.parametrize(
    "text", ["Eg veit ikkje kva du meiner med dette.", "Hun sa at hun ikke ville komme tilbake."]
)
def test_a_code_of_several_languages_accepts_each(text):
    """no: Bokmål and Nynorsk. nn is one of them."""
    for code, accepted in (
        ("no", True),
        ("nor", True),
        ("nn", text.startswith("Eg")),
        ("nb", text.startswith("Hun")),
    ):
        assert accepts(OtherLanguages((("en", code),), 0.9), ENGLISH, text) is accepted


@needs_py3langid
def test_worker_processes_get_the_filter_without_the_model():
    assert accepts(FILTER, ENGLISH, GERMAN)
    copied = pickle.dumps(FILTER)
    assert (
        len(copied) < 300
        and pickle.loads(copied) == FILTER
        and not accepts(pickle.loads(copied), GERMAN, GERMAN)
    )


@needs_py3langid
def test_what_decides_is_part_of_the_recipe(monkeypatch):
    """Languages, confidence and the version of py3langid, whose model decides."""

    def recipe(*filters):
        tokenizers = dataclasses.make_dataclass("T", ["digest"])("t")
        return recipe_of(
            ToySource("toy:test:1", "test", 1),
            tokenizers,
            dataclasses.replace(POLICIES, filters=filters),
        )

    others = OtherLanguages(FILTER.languages, 0.9), OtherLanguages((("en", "fr"),), 0.95)
    digests = {recipe()[1], *(recipe(one)[1] for one in (FILTER, *others))}
    stored, installed = recipe(FILTER)[0], importlib.metadata.version("py3langid")
    assert [each["py3langid"] for each in stored["language_filters"]] == [installed]
    monkeypatch.setattr(importlib.metadata, "version", lambda name: {"py3langid": "99.0"}[name])
    assert len(digests | {recipe(FILTER)[1]}) == 5


def config_of(**keys):
    values = {"data.train": "toy:train:30", "data.vocab_size": "300", "filters.language": "0.95"}
    return resolve(
        override(
            default_config(),
            values
            | {name if "." in name else f"data.{name}": value for name, value in keys.items()},
        )
    )


def test_the_config_names_the_languages():
    assert training_policies(config_of()).filters == (FILTER,)
    assert training_policies(config_of(**{"filters.language": "0"})).filters == ()


@needs_py3langid
def test_each_direction_is_filtered_by_its_languages(tmp_path):
    """A corpus in both directions loses the pairs that are the wrong way round, and no others."""
    lines = {"en": [ENGLISH, GERMAN, ENGLISH], "de": [GERMAN, ENGLISH, GERMAN]}
    for name, text in lines.items():
        (tmp_path / f"train.{name}").write_text("".join(f"{line}\n" for line in text))
    config = config_of(
        train="en-de=train.en,train.de; de-en=train.de,train.en",
        root=str(tmp_path),
        **{"languages.directions": "by_name"},
    )
    tokenizers = prepare_corpus(task_of(config), tmp_path / "run").tokenizers
    dropped = [where for where, reason in dropped_by(config, tokenizers) if reason == "language"]
    assert len(dropped) == 2 and all("line 2" in where for where in dropped), dropped


@needs_py3langid
def test_unknown_languages_are_refused_before_the_tokenizer_is_trained(tmp_path):
    config = config_of(source_language="tlh", train="a.tsv", root=str(tmp_path))
    (tmp_path / "a.tsv").write_text("Qapla'\tErfolg\n")
    with refused("filters.language", "language tlh"):
        prepare_corpus(task_of(config), tmp_path / "run")
    assert not (tmp_path / "run" / "data").exists()


def test_a_missing_package_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "py3langid.langid", None)
    language_filter._identifier.cache_clear()
    with refused("filters.language", "py3langid", ".[langid]"):
        prepare_corpus(task_of(config_of()), tmp_path / "run")
