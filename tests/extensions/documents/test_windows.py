"""Windows: a sentence after those before it in its document, by brute force on random documents."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from t2t_flax.data.sources import open_source
from t2t_flax.errors import UserError
from t2t_flax.extensions.documents.hook import ShortenWindows
from t2t_flax.extensions.documents.windows import WindowForm, Windows, documents_of

SEP = "<sep>"
SENTENCES = st.sampled_from(["", " ", "a", "b c", "d.", "e f g"])
ROWS = st.lists(st.tuples(SENTENCES, SENTENCES, st.sampled_from("xxxyz")), max_size=14)
FORMS = st.tuples(st.integers(1, 4), st.integers(0, 4)).filter(lambda both: both[1] <= both[0])


def form_of(context, target_context):
    return WindowForm(context, target_context, SEP)


def expected(rows, number, context, target_context, by_id):
    """The window of a row, by looking back from it."""
    source, target, document = rows[number]
    before = []
    for other in reversed(rows[:number]):
        if (other[2] != document) if by_id else not other[0].strip():
            break
        if other[0].strip() and (other[1].strip() or not target_context):
            before.insert(0, other)
    before = before[-context:]
    own_document = by_id or source.strip()
    sides = before if own_document else [], before[-target_context:] if own_document and target_context else []
    return tuple(
        f"{SEP} ".join([*(other[i] for other in sides[i]), text]) if text.strip() else text
        for i, text in enumerate((source, target))
    )


@given(ROWS, FORMS, st.booleans())
def test_windows_are_those_of_the_definition(rows, form, by_id):
    ids = iter([document for *_, document in rows]) if by_id else None
    made = list(form_of(*form).windows(((source, target) for source, target, _ in rows), ids))
    assert made == [expected(rows, number, *form, by_id) for number in range(len(rows))]


@given(ROWS, FORMS)
def test_no_sentence_is_before_one_of_another_document(rows, form):
    """Each sentence names its document here."""
    rows = [(f"{source}{document}", f"{target}{document}", document) for source, target, document in rows]
    made = form_of(*form).windows(((source, target) for source, target, _ in rows), iter([d for *_, d in rows]))
    for (*_, document), window in zip(rows, made, strict=True):
        assert {text[-1] for side in window for text in side.split(SEP)} == {document}


def test_a_pair_that_its_source_drops_ends_a_document_and_further_references_are_single():
    rows = [("a", "A", "1"), "duplicate", ("b", "B", "2"), ("c", "C", "3")]
    made = list(form_of(2, 1).windows(rows, None))
    assert made == [rows[0], "duplicate", rows[2], ("b<sep> c", "B<sep> C", "3")]


def test_a_line_with_the_separator_is_a_window_already():
    lines = [("a",), ("x<sep> b",), ("c",)]
    assert list(form_of(2, 0).windows(lines, None)) == [("a",), ("x<sep> b",), ("a<sep> b<sep> c",)]


def test_symbols_stand_before_the_window_of_their_own_row():
    rows = [("<2de> a", "A"), ("<2fr> <bt> b", "B"), ("c", "C"), ("<2de>", ""), ("<2de> <2de> d", "D"), ("e", "E")]
    made = [source for source, _ in form_of(1, 0).windows(rows, None, ["<bt>"])]
    assert made == ["<2de> a", "<2fr> <bt> a<sep> b", "b<sep> c", "<2de>", "<2de> <2de> d", "d<sep> e"]


def side(symbols=()):
    """A tokenizer whose pieces are 9 for the separator and 3 for any other letter."""
    return SimpleNamespace(
        encode_text=lambda text: [9 if word == SEP else 3 for word in text.replace(SEP, f" {SEP} ").split()],
        pieces=lambda ids: [SEP if token == 9 else "a" for token in ids],
        control_symbols=dict.fromkeys(symbols, 5),
    )


WINDOW = st.lists(st.integers(1, 5), min_size=1, max_size=5)


@given(
    WINDOW, st.lists(st.integers(1, 5), min_size=5, max_size=5), st.integers(0, 4), st.integers(1, 20), st.booleans()
)
def test_the_oldest_sentences_go_first_until_both_sides_fit(source, target, target_context, most, symbol):
    form = form_of(4, target_context)
    target = target[-form.of_target(len(source) - 1) - 1 :]
    head = [5] if symbol else []

    def ids(lengths, head=()):
        parts = [[9, *[3 + n % 2] * n] for n in lengths]
        return [*head, *sum(parts, [])[1:]]

    def kept(drop):
        return ids(source[drop:], head), ids(target[-form.of_target(len(source) - 1 - drop) - 1 :])

    drop = next((n for n in range(len(source)) if max(map(len, kept(n))) <= most), len(source) - 1)
    made = [ids(source, head), ids(target)]
    shortened = ShortenWindows(form)(SimpleNamespace(source=side(["<2de>"]), target=side()), made, most)
    assert (tuple(made), shortened) == (kept(drop), drop > 0)


def windows_of(tmp_path, sources, ids=None):
    for name, lines in {"s": sources, "t": [line.upper() for line in sources], "ids": ids or []}.items():
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))
    text = open_source("s,t", root=str(tmp_path), source_language="en", target_language="de")
    return Windows(text, form_of(1, 1), text.files[0].parent / "ids" if ids else None)


def test_a_source_of_windows_has_single_references_and_depends_on_its_ids(tmp_path):
    first = windows_of(tmp_path, "abc", "112")
    assert list(first.pairs()) == [("a", "A"), ("a<sep> b", "A<sep> B"), ("c", "C")]
    assert list(first.references()) == [("A",), ("B",), ("C",)]
    by_id = first.fingerprint()
    assert (
        len({by_id, windows_of(tmp_path, "abc").fingerprint(), windows_of(tmp_path, "abc", "122").fingerprint()}) == 3
    )
    assert list(windows_of(tmp_path, "abc", "122").pairs())[1:] == [("b", "B"), ("b<sep> c", "B<sep> C")]
    assert windows_of(tmp_path, "abc", "112").fingerprint() == by_id


def test_documents_of_a_set_are_those_of_its_ids_or_blank_lines(tmp_path):
    (tmp_path / "ids").write_text("a\na\nb\na\n")
    assert documents_of(["x"] * 4, tmp_path / "ids") == [("a", [0, 1]), ("b", [2]), ("a", [3])]
    assert documents_of(["x", "y", " ", "", "z"], None) == [("1", [0, 1]), ("2", [4])]


@pytest.mark.parametrize("ids, counts", [("11", "2 lines and s,t 3 pairs"), ("1111", "4 lines and s,t 3 pairs")])
def test_a_file_of_ids_has_one_for_each_pair(ids, counts, tmp_path):
    with pytest.raises(UserError, match=f"ids has {counts}: expected the id of a document for each pair"):
        list(windows_of(tmp_path, "abc", ids).pairs())


def test_a_text_with_the_separator_is_named(tmp_path):
    with pytest.raises(UserError, match=r"s line 2, .*t line 2: the text holds <sep>.*documents.separator"):
        list(windows_of(tmp_path, ["a", "b<sep>c"]).pairs())
