"""Runs that translate sentences after those before them: data, tokenizers, training, translations, records."""

import dataclasses
import json

import pytest
import sacrebleu
from helpers import capitals_run
from helpers.runs import SHORT_SEARCH, copy_at, start, tiny_run

from t2t_flax.__main__ import main
from t2t_flax.config import Config, default_config, override, resolve
from t2t_flax.data.dataset import prepare_corpus, split_source
from t2t_flax.data.hooks import data_hooks
from t2t_flax.data.sources import toy
from t2t_flax.decoding.translator import Hypothesis, Translation
from t2t_flax.errors import UserError
from t2t_flax.evaluation.evaluate import evaluate, validation_score
from t2t_flax.evaluation.restore import load
from t2t_flax.extensions.documents.hook import OTHER_COUNT, SHORTENED
from t2t_flax.tasks import task_of
from t2t_flax.training import loop
from t2t_flax.training.progress import read_metrics
from t2t_flax.training.train_state import init_state

SEP = "<sep>"
SPLITS = "data.train", "data.valid", "data.test"
LINES = [source for source, _ in toy.pairs("test", 6)]
IDS = "aabbbb"


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """Files of the built-in corpus in documents of three sentences, and their ids."""
    folder = tmp_path_factory.mktemp("text")
    for split, count in (("train", 300), ("valid", 20), ("test", 6)):
        pairs = list(toy.pairs(split, count))
        for name, lines in {
            f"{split}.en": [source for source, _ in pairs],
            f"{split}.de": [target for _, target in pairs],
            f"{split}.ids": [str(number // 3) for number in range(count)] if split != "test" else IDS,
        }.items():
            (folder / name).write_text("".join(f"{line}\n" for line in lines))
    return folder


def config_of(text, steps=4, context=2, target_context=1, **groups):
    files = {split: f"{split}.en,{split}.de" for split in ("train", "valid", "test")}
    ids = ", ".join(f"{split}={split}.ids" for split in files)
    keys = dict(
        data=dict(root=str(text), **files, max_length=80, pack_length=80, batch_tokens=320, microbatch_tokens=0),
        documents=dict(context=context, target_context=target_context, ids=ids) if context else {},
        checkpoint=dict(every_steps=2),
    )
    return tiny_run("", steps=steps, **{name: keys.get(name, {}) | groups.get(name, {}) for name in keys | groups})


@pytest.fixture(scope="module", params=[0, 1], ids=["n-to-1", "n-to-n"])
def run(request, text, tmp_path_factory, cache):
    folder = tmp_path_factory.mktemp("run")
    loop.train(start(config_of(text, target_context=request.param), folder, cache), score=None)
    return load(folder, overrides=SHORT_SEARCH | {"decode.max_source_length": "200"})


def test_stored_pairs_are_windows_and_the_vocabulary_is_that_of_sentences(text, tmp_path):
    with_context = prepare_corpus(task_of(config_of(text, context=2)), tmp_path / "a")
    without = prepare_corpus(task_of(config_of(text, context=0)), tmp_path / "b")
    tokenizer = with_context.tokenizers.source
    pieces = tokenizer.pieces(range(tokenizer.vocab_size))
    assert SEP in pieces and len(pieces) == without.tokenizers.source.vocab_size
    train = list(toy.pairs("train", 300))
    for number in range(9):
        first = number - number % 3
        sides = train[first : number + 1], train[max(first, number - 1) : number + 1]
        for side, (pairs, stored) in enumerate(
            zip(sides, (with_context.train.source, with_context.train.target), strict=True)
        ):
            assert tokenizer.decode(stored(number)[:-1].tolist()) == f"{SEP} ".join(pair[side] for pair in pairs)


def test_windows_that_are_too_long_are_counted_and_all_sentences_are_kept(text, tmp_path):
    config = config_of(text, context=2, data=dict(max_length=30, on_too_long="truncate"))
    corpus = prepare_corpus(task_of(config), tmp_path)
    count = corpus.train.meta["shortened"]
    assert count > 100 and corpus.train.num_pairs == 300
    assert f"{count:,} shortened" in corpus.describe_train(config)
    assert max(corpus.train.source_lengths.max(), corpus.train.target_lengths.max()) <= 30


def test_without_context_nothing_is_as_in_a_run_without_the_extension(text, tmp_path, cache):
    """Losses are equal in all bits, and the stores and tokenizers are the same files."""
    ids = dict(ids="train=train.ids", separator="<x>", target_context=0)
    for name, documents in (("keys", ids), ("none", {})):
        config = config_of(text, context=0, documents=documents)
        loop.train(start(config, tmp_path / name, cache), score=None)
    curves = [[(m["step"], m["loss"]) for m in read_metrics(tmp_path / n) if "loss" in m] for n in ("keys", "none")]
    assert curves[0] == curves[1] and len(curves[0]) == 4
    assert not data_hooks(config_of(text, context=0, documents=ids))


def test_resume_is_bit_exact(text, tmp_path, cache):
    loop.train(start(config_of(text), tmp_path / "whole", cache), score=None)
    copy_at(2, tmp_path / "whole", tmp_path / "parts")
    loop.train(start(config_of(text), tmp_path / "parts", cache), score=None)
    curves = [[(m["step"], m["loss"]) for m in read_metrics(tmp_path / n) if "loss" in m] for n in ("whole", "parts")]
    assert curves[0] == curves[1] and len(curves[0]) == 4


def windows(lines=LINES, ids=IDS, context=2):
    made = []
    for number, line in enumerate(lines):
        same = [other for other, document in zip(lines[:number], ids, strict=False) if document == ids[number]]
        made.append(f"{SEP} ".join([*same[-context:], line]))
    return made


def test_translations_do_not_depend_on_batch_mates_and_have_no_separator(run):
    for line, together in zip(windows(), run.translate(windows()), strict=True):
        (alone,) = run.translate([line])
        assert alone.hypotheses[0].tokens == together.hypotheses[0].tokens and SEP not in together.text


def test_evaluation_decodes_the_windows_of_the_file_and_scores_single_sentences(run, tmp_path, text):
    run = dataclasses.replace(run, workdir=tmp_path)
    (tmp_path / "tokenizer").mkdir()
    record, triples = evaluate(run, "test")
    assert [source for source, *_ in triples] == windows()
    assert [hypothesis for *_, hypothesis in triples] == [t.text for t in run.translate(windows())]
    assert [reference for _, reference, _ in triples] == [target for _, target in toy.pairs("test", 6)]
    documents = record["data"]["documents"]
    assert documents["context"] == 2
    assert [(one["id"], one["sentences"]) for one in documents["documents"]] == [("a", 2), ("b", 4)]
    lines = [hypothesis for *_, hypothesis in triples], [reference for _, reference, _ in triples]
    for document, rows in zip(documents["documents"], (slice(0, 2), slice(2, 6)), strict=True):
        expected = sacrebleu.corpus_bleu(lines[0][rows], [lines[1][rows]]).score
        assert document["sacrebleu"] == pytest.approx(expected, abs=0.01)
    counted = sum(OTHER_COUNT in t.notes for t in run.translate(windows()))
    assert record["notes"] == ({OTHER_COUNT: counted} if counted else {})
    json.dumps(record)


def test_validation_during_training_scores_single_sentences(text, tmp_path, cache):
    setup = start(config_of(text, eval=dict(decode_sentences=3)), tmp_path, cache)
    params = init_state(setup.config, setup.model, setup.tx, setup.mesh)[0].params
    assert set(validation_score(setup)(params)) == {"valid_bleu"}


def hook_of(**documents):
    return data_hooks(Config().with_values({f"documents.{name}": value for name, value in documents.items()}))[0]


def translation(*texts):
    return Translation(tuple(Hypothesis(text, (3,), -1.0, -1.0, False) for text in texts))


@pytest.mark.parametrize(
    "read, output, text, noted",
    [
        ("a<sep> b", "A<sep> B", "B", False),
        ("a<sep> b", "B", "B", True),
        ("a<sep> b", "A<sep> B<sep> C", "C", True),
        ("a<sep> b", "A<sep>", "", False),
        ("b", "B", "B", False),
        ("b", "A<sep> B", "B", True),
        (" ", "", "", False),
    ],
)
def test_the_last_sentence_is_taken_and_another_number_of_separators_noted(read, output, text, noted):
    made = hook_of(context=2, target_context=1).own(read, read, translation(output, output))
    assert [one.text for one in made.hypotheses] == [text, text]
    assert made.notes == ((OTHER_COUNT,) if noted else ())


def test_source_windows_that_are_too_long_lose_their_oldest_sentences(run):
    limit = 1 + max(len(run.tokenizers.source.encode(line)) for line in windows()[:3])
    overrides = SHORT_SEARCH | {"decode.max_source_length": str(limit)}
    short = load(run.workdir, overrides=overrides)
    long = windows()[-1]
    parts = long.split(f"{SEP} ")
    fitting = next(
        text for drop in range(3) if len(run.tokenizers.source.encode(text := f"{SEP} ".join(parts[drop:]))) < limit
    )
    (made,), (same,) = short.translate([long]), short.translate([fitting])
    assert fitting != long and made.hypotheses == same.hypotheses and not made.source_cut
    assert made.notes[:1] == (SHORTENED,) and SHORTENED not in same.notes


def test_a_prefix_would_begin_another_sentence(run):
    if (
        run.config.documents.target_context
        if hasattr(run.config, "documents")
        else run.config.value("documents.target_context")
    ):
        with pytest.raises(UserError, match="a prefix would begin the translation of the first sentence"):
            run.translate(windows(), prefixes=["Ein"] * 6)
    else:
        assert all(t.text.startswith("Ein") for t in run.translate(windows(), prefixes=["Ein"] * 6))


def test_commands_read_lines_in_windows(run, tmp_path, capsys):
    (tmp_path / "in").write_text("".join(f"{line}\n" for line in LINES))
    (tmp_path / "ids").write_text("".join(f"{one}\n" for one in IDS))
    keys = [f"--config.{key}={value}" for key, value in SHORT_SEARCH.items() if "source" not in key]
    flags = [
        f"--workdir={run.workdir}",
        f"--input={tmp_path}/in",
        *keys,
        f"--config.documents.input_ids={tmp_path}/ids",
    ]
    assert main(["translate", *flags, f"--output={tmp_path}/out"]) == 0
    assert (tmp_path / "out").read_text().splitlines() == [t.text for t in run.translate(windows())]
    capsys.readouterr()


@pytest.mark.parametrize("command", ["translate", "translate_file"])
def test_lines_follow_blank_lines_and_resume_from_their_place(command, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr("t2t_flax.training.precision.advice", lambda config, decoding: "")
    run = capitals_run.use(monkeypatch, tmp_path)
    (tmp_path / "in").write_text("a\n<2de> b\n\nc\nd\ne\n<2de> f\n")
    t2t = capitals_run.command(command, monkeypatch, capsys)
    flags = ["--input=in", "--output=out", "--config.documents.context=2"]
    expected = ["a", "<2de> a<sep> b", "", "c", "c<sep> d", "c<sep> d<sep> e", "<2de> d<sep> e<sep> f"]
    if command == "translate_file":
        capitals_run.stop_at_window(run, 1)
        t2t(*flags, code=75)
        flags.append("--resume")
        run.before_window = lambda number: None
    t2t(*flags)
    assert (tmp_path / "out").read_text().splitlines() == [line.upper() for line in expected]


@pytest.mark.parametrize("command", ["translate", "translate_file"])
def test_prefixes_and_absent_files_are_refused_before_a_run_is_loaded(command, monkeypatch, tmp_path, capsys):
    capitals_run.use(monkeypatch, tmp_path)
    monkeypatch.setattr("t2t_flax.cli.arguments.load_run", lambda *args: pytest.fail("a run is loaded"))
    (tmp_path / "in").write_text("a\n")
    (tmp_path / "starts").write_text("\n")
    t2t = capitals_run.command(command, monkeypatch, capsys)
    flags = "--input=in", "--output=out", "--config.documents.context=1"
    error = t2t(*flags, "--prefix=starts", "--config.documents.target_context=1", code=2).err
    assert "a prefix would begin the translation of the first sentence" in error
    assert "no file absent" in t2t(*flags, "--config.documents.input_ids=absent", code=2).err


def test_flags_on_outputs_are_refused(monkeypatch, tmp_path, capsys):
    pytest.importorskip("t2t_flax.extensions.alignments")
    capitals_run.use(monkeypatch, tmp_path)
    t2t = capitals_run.command("translate", monkeypatch, capsys)
    (tmp_path / "in").write_text("a\n")
    error = t2t("--input=in", "--config.documents.context=1", "--alignments=hard", code=2).err
    assert "--alignments is about the words of a line, but the model reads other lines before it" in error
    error = t2t("--input=in", "--split-sentences", "--alignments=hard", code=2).err
    assert "--alignments is about whole lines, of which --split-sentences translates parts" in error


@pytest.mark.parametrize(
    "keys, message",
    [
        ({"documents.context": 1, "documents.target_context": 2}, "target_context = 2 is more than"),
        ({"documents.target_context": 1}, "target_context = 1 is more than config.documents.context = 0"),
        ({"documents.input_ids": "x"}, "config.documents.input_ids = x needs config.documents.context above 0"),
        ({"documents.context": 1, "documents.separator": "a b"}, "separator = 'a b': expected a symbol without spaces"),
        (
            {"documents.ids": "dev=x"} | dict.fromkeys(SPLITS, "toy:train"),
            "no source 'dev'; the sources are train, valid, test",
        ),
        ({"documents.context": 1, "decode.engine": "ctranslate2"}, "needs config.decode.engine = jax"),
        ({"documents.context": 1, "noise.typos": 0.1}, "changed or segmented anew in each pass"),
        (
            {"documents.context": 1, "filters.length_ratio": 3.0},
            "config.filters.length_ratio = 3.0: filters would judge a sentence together with those before it",
        ),
        ({"documents.context": 1, "constraints.lines": "json"}, "config.constraints.lines = json: lines hold more"),
        (
            {"documents.context": 1, "constraints.glossary": "terms"},
            "constraints.glossary = terms: it would ask for the terms",
        ),
        (
            {"documents.context": 1, "alignments.guided": "links"},
            "alignments.guided = links: its word numbers are those of",
        ),
        (
            {"documents.context": 1, "data.tokenizer": "subword_nmt", "data.tokenizer_model": "codes"},
            "data.tokenizer = bpe or unigram",
        ),
    ],
)
def test_keys_that_do_not_go_together_are_named(keys, message):
    with pytest.raises(UserError, match=message):
        resolve(override(default_config(), {name: str(value) for name, value in keys.items()}))


def test_a_tokenizer_without_the_separator_is_refused(run):
    with pytest.raises(UserError, match="documents.separator = <other> is not a piece of the source tokenizer"):
        load(run.workdir, overrides={"documents.separator": "<other>"}).translate(["a"])


def test_sets_of_several_languages_have_windows_after_the_symbol_and_single_references(text):
    pytest.importorskip("t2t_flax.extensions.languages")
    data = dict(train="en-de=train.en,train.de", valid="en-de=valid.en,valid.de", test="en-de=test.en,test.de")
    config = config_of(text, data=data, documents=dict(ids="test.en-de=test.ids"), languages=dict(directions="by_name"))
    source = split_source(task_of(config), "en-de")
    assert [source for source, _ in source.pairs()] == [f"<2de> {window}" for window in windows()]
    assert list(source.references()) == [(target,) for _, target in toy.pairs("test", 6)]


def test_split_source_keeps_the_references_of_named_sets(text):
    config = config_of(text, data=dict(test="one=test.en,test.de,test.de"), documents=dict(ids="test.one=test.ids"))
    source = split_source(task_of(config), "one")
    assert [source for source, _ in source.pairs()] == windows()
    assert list(source.references()) == [(target, target) for _, target in toy.pairs("test", 6)]
