"""Scores of pairs, with errors in the place of some."""

import dataclasses
from unittest.mock import Mock

import pytest
from helpers.refusals import refused

from t2t_flax.errors import UserError
from t2t_flax.evaluation.restore import load
from t2t_flax.extensions.bulk_translation.score import score_each

ALL = {"mesh.data": "-1"}


@pytest.fixture(scope="module")
def loaded(workdir):
    return load(workdir, overrides=ALL)


def test_a_language_that_some_sources_lack_is_an_error_of_these(loaded):
    source = Mock(wraps=loaded.tokenizers.source, target_languages={"de": 3, "en": 4})
    source.source_languages = {}
    source.lacks_language = lambda text: not text.startswith("It")
    source.lacks_symbol = lambda text, languages: bool(languages) and source.lacks_language(text)
    run = dataclasses.replace(loaded, tokenizers=Mock(wraps=loaded.tokenizers, source=source))
    found = score_each(run, [("It is late.", "Es ist"), ("He left.", "Er")])
    assert [isinstance(each, UserError) for each in found] == [False, True]
    with refused("de, en"):
        score_each(run, [("She left.", "Es ist"), ("He left.", "Er"), ("", "")])
