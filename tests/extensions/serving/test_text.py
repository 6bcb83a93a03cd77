"""Lines of texts, control characters, bodies of requests."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from t2t_flax.extensions.serving.text import RequestError, check_text, join_lines, split_lines

pytest.importorskip("fastapi", reason="needs the extra serve")
pytest.importorskip("pydantic", reason="needs the extra serve")
from t2t_flax.extensions.serving.schemas import LibreTranslateRequest, TranslateRequest, parse_body  # noqa: E402

FORM = "application/x-www-form-urlencoded"


@given(st.text(alphabet="a\r\n\t\u2028 ", max_size=20))
def test_joining_the_lines_of_a_text_gives_the_text(text):
    lines = split_lines(text)
    assert join_lines(text, lines) == text and not any("\n" in line for line in lines)


@given(st.text(max_size=30))
def test_only_texts_without_control_characters_pass(text):
    allowed = not any(ord(c) < 32 and c not in "\n\t" or 127 <= ord(c) < 160 for c in text.replace("\r\n", "\n"))
    try:
        check_text("q", [text], 30, 30)
    except RequestError as error:
        assert not allowed and error.status == 400 and "U+" in error.message
    else:
        assert allowed or text.endswith("\r")


def test_length_is_that_of_all_texts():
    check_text("q", ["abc", "de"], 5, 2)
    with pytest.raises(RequestError, match="q has 6 characters: at most 5"):
        check_text("q", ["abc", "def"], 5, 2)


@pytest.mark.parametrize("texts", [["", "", "", ""], ["\n\n\n"], ["a\n", "\n"]])
def test_empty_lines_count_as_lines(texts):
    check_text("q", texts, 9, 4)
    with pytest.raises(RequestError, match="q has 4 lines: at most 3 are allowed."):
        check_text("q", texts, 9, 3)


@pytest.mark.parametrize(
    "body, content_type",
    [
        (b'{"q": "\xc3\xa4 b", "source": "en", "target": "de", "alternatives": 2, "api_key": "k"}', "application/json"),
        (b"q=%C3%A4+b&source=en&target=de&alternatives=2&api_key=", FORM),
    ],
)
def test_json_and_a_form_are_the_same_request(body, content_type):
    request = parse_body(body, content_type, LibreTranslateRequest, form=True)
    expected = LibreTranslateRequest(q="ä b", source="en", target="de", alternatives=2)
    assert request == expected.model_copy(update={"api_key": request.api_key})


@pytest.mark.parametrize("body", [b"q=a&" * 10_001, b"q=%e4", b"q=\xe4"], ids=["too many fields", "Latin-1", "bytes"])
def test_what_a_form_may_not_hold_is_refused(body):
    with pytest.raises(RequestError, match="the body is not a form in UTF-8 with at most 2000 fields."):
        parse_body(body, FORM, LibreTranslateRequest, form=True)


def test_repeated_field_of_a_form_is_a_list():
    body = b"q=a&q=b&source=en&target=de"
    request = parse_body(body, f"{FORM}; charset=utf-8", LibreTranslateRequest, form=True)
    assert request.q == ["a", "b"]


@pytest.mark.parametrize(
    "body, content_type, status, message",
    [
        (b"", "application/json", 400, "not valid JSON"),
        (b'{"text": "\\ud800"}', "application/json", 400, "not valid JSON"),
        (b'{"text": "\xff"}', "application/json", 400, "not valid JSON"),
        (b"[" * 10**5, "application/json", 400, "not valid JSON"),
        (b"[]", "application/json", 422, "the body must be a JSON object."),
        (b"{}", "application/json", 400, "text is missing: a string or a list of strings."),
        (b'{"text": 3}', "application/json", 422, "text must be a string or a list of strings."),
        (b'{"text": ["a", null]}', "application/json", 422, "text must be a string or a list of strings."),
        (b'{"text": "a", "n_best": "2"}', "application/json", 422, "n_best must be a whole number from 1."),
        (b'{"text": "a", "n_best": 1e999}', "application/json", 422, "n_best must be a whole number from 1."),
        (b'{"text": "a", "n_best": 0}', "application/json", 422, "n_best must be a whole number from 1."),
        (b'{"text": "a", "nbest": 1}', "application/json", 422, "unknown field 'nbest': expected model, text, prefix"),
        (b"text=a", FORM, 415, "expected application/json"),
    ],
)  # fmt: skip
def test_wrong_bodies_are_refused_with_one_clear_text(body, content_type, status, message):
    with pytest.raises(RequestError) as error:
        parse_body(body, content_type, TranslateRequest)
    assert error.value.status == status and message in error.value.message and len(error.value.message) < 200


@given(st.recursive(st.none() | st.booleans() | st.floats() | st.text(max_size=5), lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["q", "source", "target", "format", "alternatives", "x"]), inner)))  # fmt: skip
def test_any_json_is_a_request_or_refused(value):
    body = json.dumps(value).encode()
    try:
        parse_body(body, "application/json", LibreTranslateRequest, form=True)
    except RequestError as error:
        assert error.status in (400, 422)


@given(
    st.binary(max_size=60),
    st.sampled_from([FORM, "application/json"]),
)
def test_any_bytes_are_a_request_or_refused(body, content_type):
    try:
        parse_body(body, content_type, LibreTranslateRequest, form=True)
    except RequestError as error:
        assert error.status in (400, 422)
