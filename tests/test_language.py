"""Language codes: what each spelling means to each library, and what the names of files say."""

import dataclasses
import itertools

import pytest
from helpers.refusals import refused
from helpers.scores import translation_config

from t2t_flax.config import (
    Config,
    Data,
    as_json,
    default_config,
    from_json,
    override,
    resolve,
    to_json,
)
from t2t_flax.data.splits import split_source
from t2t_flax.language import Language, named_languages, near_codes
from t2t_flax.tasks import task_of
from t2t_flax.tasks.translation import detokenizer, recipe, tokenizer_of


@pytest.mark.parametrize("codes, base, tokenizer", [
    ("de DE de_DE de-AT deu ger deu_Latn", "de", "13a"),
    ("fr fr_FR fra_Latn fre FR-ca", "fr", "13a"),
    ("zh zh-CN zh-Hans zho_Hant chi cmn cmn_Hans", "zh", "zh"),
    ("lzh lzh_Hant", "lzh", "zh"), ("wuu", "wuu", "zh"), ("nan", "nan", "zh"), ("yue yue_Hant", "yue", "zh"),
    ("zh_Latn", "zh", "13a"), ("nan_Latn", "nan", "13a"), ("ja jpn ja_JP", "ja", "ja-mecab"), ("ko kor", "ko", "ko-mecab"),
    ("bo bod tib bod_Tibt", "bo", "flores200"), ("dz dzo", "dz", "flores200"), ("my bur mya_Mymr", "my", "flores200"),
    ("th tha lo km shn", None, "flores200"), ("ckb_Arab", "ckb", "13a"), ("nb nob", "nb", "13a"), ("tlh mul und", None, "13a"),
])  # fmt: skip
def test_every_spelling_is_the_same_language(codes, base, tokenizer):
    for code in codes.split():
        assert Language.read(code).base == base or not base
        assert tokenizer_of("auto", code) == tokenizer


@pytest.mark.parametrize("code", ["German", "xx", "jp", "cz", "d", "de DE", "de_", "Ελ", "en,de"])
def test_what_is_no_code_is_refused_by_name(code):
    with refused("data.target_language", repr(code)):
        resolve({"data": {"target_language": code}})
    assert Language.known(code).base == "und" and Language.known("deu").base == "de"


def test_the_table_is_that_of_cldr():
    aliases = pytest.importorskip("babel.core").get_global("language_aliases")
    letters = [*map("".join, itertools.product("abcdefghijklmnopqrstuvwxyz", repeat=3))]
    # CLDR prefers fil to tl, sr_Latn to sh, ak to tw.
    deprecated = {
        "fil",
        "hbs",
        "pbt",
        "quy",
        "tgl",
        "twi",
    }
    bases = {code: Language.read(code).base for code in letters if code not in deprecated}
    found = {code: base for code, base in bases.items() if len(base) == 2}
    assert len(found) > 210 and {code: str(aliases[code]) for code in found} == found


@pytest.mark.parametrize("codes, text, tokens", [
    ("de de_DE DE deu_Latn", "Am 3. Oktober kam sie.", "Am 3. Oktober kam sie ."),
    ("fr fr_FR fra_Latn", "L'homme n'est pas là.", "L&apos; homme n&apos; est pas là ."),
    ("en en_GB eng", "It's 3. Oktober.", "It &apos;s 3 . Oktober ."),
])  # fmt: skip
def test_moses_has_the_rules_of_every_spelling(codes, text, tokens):
    first, *others = codes.split()
    for name in ("tokenized_bleu", "paper_bleu"):
        expected = recipe(name, translation_config(first))
        assert f"language {first} on" in expected.method or f"language {first}," in expected.method
        for code in others:
            steps = recipe(name, translation_config(code))
            assert (
                steps.prepare([text]) == expected.prepare([text])
                and steps.method == expected.method
            )
        assert recipe("tokenized_bleu", translation_config(first)).prepare([text]) == [tokens]
    assert len({detokenizer(code)([tokens])[0] for code in [first, *others]}) == 1


def test_rules_that_moses_lacks_are_named():
    assert "tr (" in recipe("tokenized_bleu", translation_config("tur_Latn")).method


@pytest.mark.parametrize("spec, codes", [
    ("t.en,t.zh", "en zh"), ("train.*.en, train.*.de", "en de"), ("a.b/t.en.txt.gz,a.b/t.de.txt.gz", "en de"),
    ("gs://x/t.fr,gs://x/t.en", "fr en"), ("FILE.jsonl:en,zh", "en zh"), ("jsonl:f.jsonl:text.de,text.en:score>=0.5", "de en"),
    ("eng_Latn.devtest,ckb_Arab.devtest", "eng_Latn ckb_Arab"), ("t.zh_Hans,t.zh_Hant", "zh_Hans zh_Hant"),
    ("v.en,v.de,v.ref2,v.deu", "en de - deu"), ("t.en,t.ckb", "en -"), ("t.src,t.tgt", "- -"), ("a.txt,b.txt", "- -"),
    ("t.en,t.en", "- -"), ("x.bak,y.bak", "- -"), ("f.tsv:1,2", "- -"), ("toy:train:5", ""), ("tfds:wmt/de-en:train", ""),
])  # fmt: skip
def test_languages_in_names(spec, codes):
    assert [
        language.code if language else "-" for language in named_languages(spec)
    ] == codes.split()


@pytest.mark.parametrize("data, pair", [
    ({}, "en de"), ({"train": "toy:train"}, "en de"), ({"train": "t.src,t.tgt"}, "en de"),
    ({"train": "t.en,t.zh"}, "en zh"), ({"train": "t.de,t.en"}, "de en"), ({"test": "t.cs,t.uk"}, "cs uk"),
    ({"train": "a=t.src,t.tgt; b=t.fr,t.en", "valid": "v.x,v.y"}, "fr en"),
    ({"train": "t.zh,t.en", "source_language": "zh_Hant"}, "zh_Hant en"),
    ({"train": "t.src,t.tgt", "target_language": "fr"}, "en fr"),
    ({"train": "t.fr,t.cs", "task": "right_to_left"}, "fr cs"),
])  # fmt: skip
def test_the_languages_of_a_run_are_those_of_its_files(data, pair):
    config = resolve({"data": data})
    assert [config.data.source_language, config.data.target_language] == pair.split()
    assert from_json(to_json(config)) == config, "stored"
    edited = override(
        default_config(), {f"data.{name}": str(value) for name, value in data.items()}
    )
    assert resolve(edited) == config
    assert as_json(Config())["data"]["target_language"] == "de"


@pytest.fixture
def files(tmp_path):
    for name in ("t.en", "t.zh", "t.zho_Hant", "t.de", "t.ckb", "t.src"):
        (tmp_path / name).write_text("a\n")
    return tmp_path


@pytest.mark.parametrize("data, names", [
    ({"train": "t.en,t.zh", "target_language": "de"}, ["t.zh", "target_language", "de", "zh"]),
    ({"train": "t.de,t.en", "source_language": "en"}, ["t.de", "source_language"]),
    ({"train": "t.en,t.de", "valid": "t.en,t.de,t.zh"}, ["data.valid", "t.zh", "target_language"]),
    ({"train": "t.en,t.de", "test": "x=t.de,t.en"}, ["data.test", "(x)", "source_language"]),
    ({"train": "a=t.en,t.de; b=t.en,t.zh"}, ["t.zh", "target_language"]),
    ({"train": "t.en,t.ckb"}, ["t.ckb", "target_language"]),
    ({"train": "t.src,t.de"}, ["t.src", "source_language"]),
    ({"train": "toy:train", "target_language": "zh"}, ["target_language", "zh"]),
])  # fmt: skip
def test_names_that_contradict_the_keys_are_refused(files, data, names):
    task = task_of(resolve({"data": data | {"root": str(files)}}))
    sets = [*task.config.data.valid_sets, *task.config.data.test_sets]
    with refused(*names):
        for split in ("train", *sets):
            split_source(task, split)


@pytest.mark.parametrize("train, pair", [
    ("t.en,t.zho_Hant", "en zh"), ("t.en,t.zh", "eng yue"), ("t.en,t.de", "en_GB deu"), ("toy:train", "deu en_US"),
    ("t.src,t.ckb", "en de"),
])  # fmt: skip
def test_other_spellings_and_names_without_a_language_are_taken(files, train, pair):
    source, target = pair.split()
    data = Data(train=train, root=str(files), source_language=source, target_language=target)
    assert split_source(task_of(dataclasses.replace(Config(), data=data)), "train").sample(1)


@pytest.mark.parametrize(
    "code, near",
    [
        ("de", ["deu_Latn"]),
        ("zh", ["zho_Hans", "zho_Hant"]),
        ("deu_Lat", ["deu_Latn"]),
        ("zulu", ["zul_Latn"]),
        ("x", []),
    ],
)
def test_near_codes_are_of_the_same_language_or_spelled_alike(code, near):
    assert near_codes(code, ["deu_Latn", "fra_Latn", "zho_Hans", "zho_Hant", "zul_Latn"]) == near
