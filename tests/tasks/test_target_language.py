"""Scores by target language: sacreBLEU's tokenizer and the available metrics."""

import urllib.request

import pytest
from helpers.refusals import assert_names, refused, refused_command
from helpers.scores import score_translations, translation_config
from sacrebleu.metrics import BLEU, CHRF, TER
from sacrebleu.significance import PairedTest

from t2t_flax.tasks import Predictions, task_of
from t2t_flax.tasks.translation import _warn_of_undivided, tokenizer_of, undivided_lines

TEXTS = {
    "zh": (
        ["我们今天去公园散步，天气很好。", "他不喜欢喝咖啡。"],
        ["我们今天去公园走走，天气很好。", "他不爱喝咖啡。"],
    ),
    "ja": (
        ["私は猫が好きです。", "今日は雨が降っています。"],
        ["私は犬が好きです。", "今日は雨が降りました。"],
    ),
    "ko": (
        ["나는 고양이를 좋아합니다.", "오늘은 비가 옵니다."],
        ["나는 개를 좋아합니다.", "오늘은 비가 왔습니다."],
    ),
    "de": (["Das ist ein Haus.", "Er kommt nicht."], ["Das ist ein Hof.", "Er kommt."]),
}


@pytest.mark.parametrize("code, tokenizer", [
    ("de", "13a"), ("en", "13a"), ("und", "13a"), ("zh", "zh"), ("zh-CN", "zh"), ("zh_Hant", "zh"), ("zho_Hans", "zh"),
    ("ja", "ja-mecab"), ("jpn", "ja-mecab"), ("KO", "ko-mecab"), ("th", "flores200"), ("khm_Khmr", "flores200"),
])  # fmt: skip
def test_auto_tokenizer_is_sacrebleus_recommendation(code, tokenizer):
    assert tokenizer_of("auto", code) == tokenizer
    assert tokenizer_of("char", code) == "char"


@pytest.mark.parametrize("language, setting, signature", [
    ("de", "auto", "tok:13a|"), ("zh", "auto", "tok:zh|"), ("ja", "auto", "tok:ja-mecab"), ("ko", "auto", "tok:ko-mecab"),
    ("de", "intl", "tok:intl|"), ("ja", "char", "tok:char|"), ("zh", "none", "tok:none|"),
])  # fmt: skip
def test_signature_names_the_tokenizer_of_the_language(language, setting, signature):
    """Key eval.sacrebleu_tokenizer."""
    if signature.endswith("mecab"):
        pytest.importorskip({"ja": "MeCab", "ko": "mecab_ko"}[language])
    hypotheses, references = TEXTS[language]
    score = score_translations(
        hypotheses, [references], names=["sacrebleu"], language=language, tokenizer=setting
    )["sacrebleu"]
    assert (
        signature in score["signature"]
        and f"tokenizer {tokenizer_of(setting, language)}" in score["how"]
    )
    expected = BLEU(tokenize=tokenizer_of(setting, language)).corpus_score(hypotheses, [references])
    assert score["score"] == pytest.approx(expected.score, abs=1e-4)


CHINESE = ["旧的狗，它很大！", "那只门，它在路上！", "旧的花园，它很漂亮！"]
TIBETAN = ["བོད་ཀྱི་སྐད་ཡིག་ནི་བོད་མིའི་སྐད་ཡིག་ཡིན།"]


@pytest.mark.parametrize("tokenizer, references, undivided", [
    ("13a", CHINESE, 3), ("none", CHINESE, 3), ("intl", CHINESE, 3), ("ko-mecab", CHINESE, 3), ("zh", CHINESE, 0),
    ("char", CHINESE, 0), ("zh", ["ひらがなだけのぶんしょうです"], 1), ("ja-mecab", TIBETAN, 1), ("flores200", TIBETAN, 0),
    ("13a", [TEXTS["ko"][0][0]], 0), ("13a", ["他 不 喜欢 喝 咖啡 。"], 0), ("13a", ["Er fuhr nach 北京 und kam zurück."], 0),
    ("13a", ["ฉันไม่รู้ว่าเขาจะมาเมื่อไหร่", "ok"], 1), ("none", ["ភាសាខ្មែរជាភាសាផ្លូវការ"], 1), ("13a", ["", "。"], 0),
])  # fmt: skip
def test_references_that_the_tokenizer_does_not_divide_are_counted(
    tokenizer, references, undivided
):
    assert undivided_lines(tokenizer, references) == undivided


def test_undivided_references_are_named_in_warning_and_record(caplog):
    _warn_of_undivided.cache_clear()
    hypotheses = [line.replace("，", ",") for line in CHINESE]
    entry = score_translations(hypotheses, [CHINESE], names=["sacrebleu", "tokenized_bleu"])[
        "sacrebleu"
    ]
    assert entry["score"] < 1 and entry["undivided_references"] == 3
    (message,) = {record.getMessage() for record in caplog.records}
    assert_names(message, "eval.sacrebleu_tokenizer", "data.target_language", "13a", "3 references")
    entry = score_translations(hypotheses, [CHINESE], names=["sacrebleu"], language="chi")[
        "sacrebleu"
    ]
    assert entry["score"] > 50 and "undivided_references" not in entry


def test_inapplicable_metrics_of_a_language_are_omitted():
    def names(language):
        return [
            metric.name
            for metric in task_of(translation_config(language)).metrics
            if metric.statistics
        ]

    assert names("de") == ["sacrebleu", "tokenized_bleu", "paper_bleu", "chrf", "chrf++", "ter"]
    assert names("zh") == names("ja") == names("ko") == ["sacrebleu", "chrf", "chrf++", "ter"]
    assert names("th") == ["sacrebleu", "chrf", "chrf++"]
    hypotheses, references = TEXTS["zh"]
    scores = score_translations(hypotheses, [references], language="zh")
    assert set(scores) == {*names("zh"), "exact_match"}
    assert "norm:yes|punct:yes|asian:yes" in scores["ter"]["signature"], (
        "Chinese characters are edited one by one"
    )
    assert 0 < scores["ter"]["score"] < 50


def test_scores_signatures_and_intervals_are_sacrebleus():
    hypotheses, references = (side * 20 for side in TEXTS["de"])
    scores = score_translations(hypotheses, [references], samples=100)
    for name, metric in (
        ("chrf", CHRF()),
        ("chrf++", CHRF(word_order=2)),
        ("ter", TER()),
        ("sacrebleu", BLEU()),
    ):
        expected = metric.corpus_score(hypotheses, [references])
        assert scores[name]["score"] == pytest.approx(expected.score, abs=1e-4)
        assert scores[name]["signature"] == str(metric.get_signature())
        systems = [("a", hypotheses), ("b", references)]
        _, results = PairedTest(systems, {name: metric}, [references], "bs", 100)()
        (expected,) = (result[0] for key, result in results.items() if key != "System")
        assert scores[name]["confidence"]["mean"] == pytest.approx(expected.mean, abs=1e-3)
        assert scores[name]["confidence"]["half_width"] == pytest.approx(expected.ci, abs=1e-3)
    assert "lower is better" in scores["ter"]["how"]


def test_several_references_are_scored_together():
    hypotheses, first = TEXTS["de"]
    references = [first, ["Das ist ein Haus.", "Er kommt heute nicht."]]
    scores = score_translations(hypotheses, references)
    for name, metric in (
        ("sacrebleu", BLEU()),
        ("chrf", CHRF()),
        ("chrf++", CHRF(word_order=2)),
        ("ter", TER()),
    ):
        assert scores[name]["score"] == pytest.approx(
            metric.corpus_score(hypotheses, references).score, abs=1e-4
        )
        assert scores[name]["signature"].startswith("nrefs:2|")
    assert scores["exact_match"] == {"score": 50.0, "sentences": 1}, "with any of the references"
    with refused("2 hypotheses", "2, 1", error=ValueError):
        Predictions(hypotheses, [first, first[:1]])


def test_missing_references_are_left_out_of_every_metric():
    """A line is scored by the references that it has; by one alone as if there were no other."""
    hypotheses, first = TEXTS["de"]
    other = ["Das ist ein Haus.", "Er kommt nicht."]
    scores = score_translations(hypotheses, [[first[0], " "], ["", other[1]]])
    expected = score_translations(hypotheses, [[first[0], other[1]]])
    for name in ("sacrebleu", "tokenized_bleu", "paper_bleu", "chrf", "chrf++", "ter"):
        assert scores[name]["score"] == expected[name]["score"]
    scores = score_translations(hypotheses, [first, ["", other[1]]])
    metric = BLEU()
    assert scores["sacrebleu"]["score"] == pytest.approx(
        metric.corpus_score(hypotheses, [first, [None, other[1]]]).score, abs=1e-4
    )
    assert scores["sacrebleu"]["signature"] == str(metric.get_signature())
    empty = score_translations(["", "a"], [["b", "a"], ["", "c"]], names=["exact_match"])
    assert empty["exact_match"] == {"score": 50.0, "sentences": 1}, (
        "an empty output is no reference"
    )
    with refused("2 lines", "line 1"):
        score_translations([*hypotheses, "a"], [["", *first[1:], " "], ["\u200b", *other[1:], ""]])


@pytest.mark.parametrize("language, extra", [("ja", "ja"), ("ko", "ko")])
def test_missing_tokenizer_package_is_reported_before_training(
    tmp_path, monkeypatch, language, extra
):
    import sacrebleu.tokenizers.tokenizer_ja_mecab as ja
    import sacrebleu.tokenizers.tokenizer_ko_mecab as ko

    monkeypatch.setattr({"ja": ja, "ko": ko}[language], "MeCab", None)
    with refused("target_language", language, f"sacrebleu[{extra}]"):
        task_of(translation_config(language)).check_requirements()
    task_of(translation_config(language, tokenizer="char")).check_requirements()
    for name in ("a.en", f"a.{language}"):
        (tmp_path / name).write_text("one\n")
    text = f"{tmp_path}/a.en,{tmp_path}/a.{language}"
    train = [
        "train",
        "--config=configs/toy.py",
        f"--workdir={tmp_path}/run",
        "--config.mesh.cpu_devices=1",
    ]
    train += [f"--config.data.target_language={language}"]
    train += [f"--config.data.train={text}", f"--config.data.test={text}", "--config.data.valid="]
    refused_command(train, f"sacrebleu[{extra}]")
    assert not (tmp_path / "run" / "data").exists()


def test_missing_tokenizer_model_is_reported_at_the_start(tmp_path, monkeypatch):
    import sacrebleu.tokenizers.tokenizer_spm as spm
    import sacrebleu.utils

    def offline(*words):
        raise OSError("no route to host")

    monkeypatch.setattr(spm, "SACREBLEU_DIR", str(tmp_path))
    monkeypatch.setattr(sacrebleu.utils, "SACREBLEU_DIR", str(tmp_path))
    monkeypatch.setattr(urllib.request, "urlopen", offline)
    with refused("flores200", "no route", f"{tmp_path}/models"):
        task_of(translation_config("th")).check_requirements()
    task_of(translation_config("th", tokenizer="char")).check_requirements()


def test_sacrebleu_tokenizer_is_not_needed_without_its_scores(monkeypatch):
    import sacrebleu.tokenizers.tokenizer_ja_mecab as ja

    from t2t_flax.distributed.coordination import ProcessGroup
    from t2t_flax.evaluation.sets import check_scores

    monkeypatch.setattr(ja, "MeCab", None)
    task_of(translation_config("ja", task="parsing", joint_vocabulary=False)).check_requirements()
    check_scores(translation_config("ja", valid="a,b"), [], ProcessGroup())
