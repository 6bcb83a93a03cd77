"""The parsing task: tokens, scores, comparisons, and a training run."""

import json

import numpy as np
import pytest
from helpers.configs import small_config
from helpers.refusals import refused, refused_command

from t2t_flax import config as config_lib
from t2t_flax.__main__ import main
from t2t_flax.config.data_keys import EOS, UNK
from t2t_flax.data.tokenizers import load_tokenizer
from t2t_flax.evaluation.evaluate import compute_scores
from t2t_flax.extensions.parsing.trees import leaves, linear, read_trees
from t2t_flax.extensions.shared.list_tokenizer import SymbolTokenizer
from t2t_flax.tasks import Predictions, task_of

WORDS = {
    "DT": ["the", "a"],
    "NN": ["dog", "cat", "fish"],
    "VBD": ["saw", "ate"],
    "IN": ["with", "of"],
}


def sentence(rng) -> str:
    """A tree of a small grammar in which the preposition determines attachment.

    'of' to the noun, 'with' to the verb.
    """
    word = lambda tag: f"({tag} {WORDS[tag][rng.integers(len(WORDS[tag]))]})"  # noqa: E731
    noun = lambda: f"(NP {word('DT')} {word('NN')})"  # noqa: E731
    target = noun()
    if rng.random() < 0.3:
        target = f"(NP {target} (PP (IN of) {noun()}))"
    verb = f"(VP {word('VBD')} {target})"
    if rng.random() < 0.3:
        verb = f"(VP {word('VBD')} {target} (PP (IN with) {noun()}))"
    return f"(TOP (S {noun()} {verb} (. .)))"


@pytest.fixture
def treebank(tmp_path):
    rng = np.random.default_rng(0)
    for name, count in (("train", 800), ("dev", 40)):
        (tmp_path / f"{name}.trees").write_text("".join(sentence(rng) + "\n" for _ in range(count)))
    return tmp_path


def config_of(**groups):
    return small_config(
        **(
            {
                "data": dict(task="parsing", joint_vocabulary=False),
                "model": dict(tie_embeddings="decoder"),
            }
            | groups
        )
    )


def scores_of(task, sources, outputs, targets, samples=0):
    return compute_scores(
        task.config, task.metrics, task.predictions(sources, outputs, [targets]), samples=samples
    )


def read(text):
    ((_, tree),) = read_trees([text], "x")
    return tree


def test_tree_symbols_are_single_tokens(tmp_path):
    tokenizer = SymbolTokenizer.of(["(S NN )S", "(S VB NN )S"])
    assert tokenizer.vocab_size == 3 + 4 and EOS not in tokenizer.encode("(S NN )S")
    assert tokenizer.decode([*tokenizer.encode("(S VB )S"), EOS]) == "(S VB )S"
    assert tokenizer.encode("(S QQ") == [tokenizer.encode("(S")[0], UNK]
    tokenizer.save(tmp_path / "t.model")
    loaded = load_tokenizer(tmp_path / "t.model")
    assert loaded.digest == tokenizer.digest and loaded.pieces([3]) == tokenizer.pieces([3])
    with pytest.raises(IndexError):
        loaded.decode([99])


@pytest.mark.smoke
def test_scores_and_their_interval():
    task = task_of(config_of())
    trees = [read(sentence(np.random.default_rng(i))) for i in range(50)]
    sources, targets = (
        [" ".join(leaf.word for leaf in leaves(t)) for t in trees],
        [linear(t) for t in trees],
    )
    perfect = scores_of(task, sources, targets, targets, samples=100)
    assert (
        perfect["f1"]["score"]
        == perfect["well_formed"]["score"]
        == perfect["exact_match"]["score"]
        == 100
    )
    broken = [t.replace("(VP", "(XP", 1) if i % 2 else t for i, t in enumerate(targets)]
    scores = scores_of(task, sources, broken, targets, samples=200)
    assert scores["well_formed"]["score"] == 50 and scores["tagging_accuracy"]["score"] == 100
    interval = scores["f1"]["confidence"]
    assert (
        interval["low"] < scores["f1"]["score"] < interval["high"]
        and "COLLINS" in scores["f1"]["how"]
    )
    assert any("F1" in line for line in task.summary(scores | {"perplexity": 1.0}))
    predictions = task.predictions(sources, broken, [targets])
    # The only texts in a record.
    compared = Predictions(predictions.hypotheses, predictions.references)
    statistics = task.metric("f1").statistics(compared, task.config)
    assert statistics.corpus_score == pytest.approx(scores["f1"]["score"], abs=1e-4)


def test_empty_parse_has_zero_precision():
    task = task_of(config_of())
    scores = scores_of(task, ["the dog"], [""], ["(NP DT NN )NP"])
    assert scores["precision"]["score"] == scores["recall"]["score"] == scores["f1"]["score"] == 0


def test_f1_is_given_by_length():
    short, long = "(NP DT NN )NP", " ".join(["(S", *["NN"] * 11, ")S"])
    sources, targets = ["a b", " ".join("a" * 11), "a b"], [short, long, short]
    scores = scores_of(
        task_of(config_of()), sources, [short, long.replace("S", "NP"), short], targets
    )
    assert scores["f1"]["by_words"] == [
        {"from_words": 1, "sentences": 2, "f1": 100.0}, {"from_words": 11, "sentences": 1, "f1": 0.0}
    ]  # fmt: skip


def test_sentences_skipped_by_evalb_are_counted():
    """The output tags the full stop as a noun: EVALB would see sentences of different lengths."""
    task, words = task_of(config_of()), "it ran ."
    target, wrong = "(S (NP PRP )NP (VP VBD )VP . )S", "(S (NP PRP )NP (VP VBD )VP NN )S"
    scores = scores_of(task, [words] * 3, [target, wrong, "(S PRP VBD . )S"], [target] * 3)
    assert scores["evalb_f1"] == {"score": pytest.approx(80.0), "sentences": 2, "left_out": 1}
    assert scores["f1"]["score"] == pytest.approx(100 * 2 * 7 / (9 + 7), abs=1e-3)
    none = scores_of(task, [words], [wrong], [target])
    assert none["evalb_f1"] == {"score": None, "sentences": 0, "left_out": 1}
    assert (
        "as EVALB: no sentence scored, 1 sentences skipped"
        in task.summary(none | {"perplexity": 9.0})[0]
    )


def test_penn_treebank_escapes_are_removed_from_sources():
    task = task_of(config_of())
    assert task.preprocess_source(r"1\/2 of \* (all)") == "1/2 of * -LRB-all-RRB-"
    assert (
        task.preprocess_target(r"1\/2", r"(NP (CD 1\/2))")
        == task.preprocess_target("1/2", "(NP (CD 1/2))")
        == "(NP CD )NP"
    )


def test_user_input_is_preprocessed_like_the_examples():
    task = task_of(config_of())
    assert task.preprocess_source("mice ( n = 5 ) died") == "mice -LRB- n = 5 -RRB- died"
    tree = "(TOP (NP (NNS mice) (-LRB- -LRB-) (CD 5) (-RRB- -RRB-)))"
    assert task.preprocess_target("mice ( 5 )", tree) == "(NP NNS -LRB- CD -RRB- )NP"
    for text, names in (
        ("(NP", ["1 ')'"]),
        ("(NP (NN a)) (NP (NN b))", ["2 trees"]),
        ("(NP (NN rats))", []),
    ):
        with refused(*names):
            task.preprocess_target("mice ( 5 )", text)


def test_empty_source_has_an_empty_output():
    task = task_of(config_of())
    assert task.postprocess("", "(S NN )S") == ""
    lines = ["", "(TOP (NP (NN a)))"]
    statistics = task.metric("f1").statistics(Predictions(lines, [lines]), task.config)
    assert statistics.values[:, 0].tolist() == [0, 1]


@pytest.mark.parametrize(
    ("data", "groups", "names"),
    [
        (
            dict(joint_vocabulary=True),
            dict(model=dict(tie_embeddings="all")),
            ("joint_vocabulary",),
        ),
        (
            dict(valid="v"),
            dict(eval=dict(metric="bleu", decode_every_steps=5)),
            ("'bleu'", "data.task", "f1"),
        ),
        (dict(on_too_long="truncate"), {}, ("data.on_too_long",)),
        (dict(task="translation"), dict(parsing=dict(grammar=True)), ("parsing.grammar",)),
        (
            dict(task="translation"),
            dict(parsing=dict(word_numbers=4)),
            ("parsing.word_numbers", "data.task"),
        ),
    ],
)
def test_impossible_settings_are_refused(data, groups, names):
    groups = {"data": dict(task="parsing", joint_vocabulary=False) | data} | groups
    with refused(*names):
        task_of(
            config_lib.resolve(config_lib.to_config_dict(config_of(**groups)))
        ).validate_config()


@pytest.mark.drill
@pytest.mark.slow
def test_small_grammar_is_learned(treebank, capsys, tmp_path, monkeypatch):
    words = {
        "data.root": treebank, "data.train": "train.trees", "data.valid": "dev.trees", "data.test": "dev.trees",
        "data.vocab_size": 64, "data.max_length": 64, "data.pack_length": 64, "data.batch_tokens": 1024, "model.d_model": 64,
        "model.d_ff": 128, "model.num_heads": 4, "model.num_encoder_layers": 1, "model.num_decoder_layers": 1,
        "model.dropout": 0.0, "train.steps": 120, "optimizer.warmup_steps": 50, "optimizer.peak_lr": 5e-3,
        "eval.every_steps": 60, "eval.decode_every_steps": 60, "eval.metric": "f1", "mesh.cpu_devices": 1,
        "decode.beam_size": 4, "checkpoint.average_last": 0, "checkpoint.every_steps": 60,
    }  # fmt: skip
    run = tmp_path / "run"
    flags = [f"--config.{key}={value}" for key, value in words.items()]
    assert main(["train", "--config=configs/parsing.py", f"--workdir={run}", *flags]) == 0
    out = capsys.readouterr().out
    assert "F1" in out and "well-formed" in out
    record = json.loads((run / "eval" / "test-120.json").read_text())
    assert record["scores"]["f1"]["score"] > 90 and record["scores"]["well_formed"]["score"] > 90
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in metrics if "valid_f1" in line] == [60, 120]
    (tmp_path / "in.txt").write_text("the dog saw a cat .\n\nthe fish ate the cat of a dog .\n")
    assert (
        main(
            [
                "translate",
                f"--workdir={run}",
                f"--input={tmp_path}/in.txt",
                f"--output={tmp_path}/out.txt",
            ]
        )
        == 0
    )
    lines = (tmp_path / "out.txt").read_text().split("\n")
    assert lines[1] == "" and len(lines) == 4
    assert [leaf.word for leaf in leaves(read(lines[0]))] == "the dog saw a cat .".split()
    assert "(PP (IN of)" in lines[2]
    capsys.readouterr()
    pairs = [f"--workdir={run}", f"--source={tmp_path}/in.txt", f"--target={tmp_path}/out.txt"]
    (tmp_path / "in.txt").write_text("the dog saw a cat .\n")
    (tmp_path / "out.txt").write_text(lines[0] + "\n")
    assert main(["score", *pairs, "--tokens"]) == 0 and "<unk>" not in capsys.readouterr().out
    (tmp_path / "out.txt").write_text("(NP (NN dog))\n")
    assert main(["score", *pairs]) == 0 and "nan" in capsys.readouterr().out
    attend = [
        "attend",
        f"--workdir={run}",
        "--source=the dog ate a fish .",
        f"--output={tmp_path}/a.npz",
    ]
    assert main(attend) == 0 and "<unk>" not in capsys.readouterr().out
    prefixed = [
        "translate",
        f"--workdir={run}",
        f"--input={tmp_path}/in.txt",
        f"--prefix={tmp_path}/out.txt",
    ]
    refused_command(prefixed, "prefix")
