"""Text of several directions.

The symbol of the target language is the first id of every source sentence, and nowhere else.
"""

import pytest
from helpers.configs import DATA as SMALL_DATA
from helpers.refusals import refused
from hypothesis import given
from hypothesis import strategies as st

from t2t_flax import config as config_lib
from t2t_flax.config import Config, Data, default_config, override, resolve
from t2t_flax.config.data_keys import EOS
from t2t_flax.data import hooks
from t2t_flax.data.dataset import prepare_corpus, split_store
from t2t_flax.data.preprocess import Policies, prepare_split, recipe_of
from t2t_flax.data.sources import open_source
from t2t_flax.data.splits import split_source
from t2t_flax.data.tokenizers import SentencePieceTokenizer, train_tokenizers
from t2t_flax.extensions.shared.tagged_source import TaggedSource
from t2t_flax.tasks import task_of

KEYS = {
    "data.train": "en-de=toy:train:200; de-en=toy:train:150; bt=toy:train:30",
    "data.valid": "en-de=toy:valid:20; de-en=toy:valid:15",
    "data.test": "de-en=toy:test:10",
    "languages.directions": "by_name, bt=de-en",
    "mixtures.tags": "bt=<bt>",
    "mixtures.limits": "de-en=100",
    "data.vocab_size": "400",
    "data.batch_tokens": "600",
    "data.max_length": "160",
    "data.pack_length": "160",
}
TOKENS = ("<2de>", "<2en>", "<bt>")


def config_of(**keys):
    groups = {"directions": "languages"}
    more = {f"{groups.get(name, 'data')}.{name}": str(value) for name, value in keys.items()}
    if not keys.get("joint_vocabulary", True):
        more["model.tie_embeddings"] = "decoder"
    return resolve(override(default_config(), KEYS | more))


def prepared(config, folder):
    return prepare_corpus(task_of(config), folder)


@pytest.fixture(scope="module", params=["joint", "separate", "unigram"])
def corpus(request, tmp_path_factory):
    keys = {
        "joint": {},
        "separate": dict(joint_vocabulary=False, vocab_size=350),
        "unigram": dict(tokenizer="unigram"),
    }
    config = config_of(**keys[request.param])
    folder = tmp_path_factory.mktemp("run")
    return config, folder, prepared(config, folder)


def test_the_token_is_the_first_id_and_never_in_the_targets(corpus):
    _, _, data = corpus
    ids = [data.tokenizers.source.control_symbols.get(token) for token in TOKENS]
    assert None not in ids and len(set(ids)) == 3
    to_german, to_english, tag = ids
    store = data.train
    assert store.pairs_of_sources == [200, 100, 30]
    starts = [[to_german]] * 200 + [[to_english]] * 100 + [[to_english, tag]] * 30
    for i, start in enumerate(starts):
        source, target = store.source(i).tolist(), store.target(i).tolist()
        assert source[: len(start)] == start and not set(ids) & set(source[len(start) :])
        assert source[-1] == EOS and (not data.tokenizers.joint or not set(ids) & set(target))
    for name, start in (("valid.en-de", to_german), ("valid.de-en", to_english)):
        assert {int(data.valid[name].source(i)[0]) for i in range(data.valid[name].num_pairs)} == {
            start
        }


def test_sides_have_the_languages_of_the_direction(corpus):
    config, folder, data = corpus
    decode = data.tokenizers.source.decode
    english, german = next(split_source(task_of(config), "valid.en-de").pairs())
    assert english.startswith("<2de> ")
    english = english.removeprefix("<2de> ")
    assert decode(data.valid["valid.en-de"].source(0).tolist()) == english
    assert decode(data.valid["valid.de-en"].source(0).tolist()) == german
    test = split_store(task_of(config), folder, "de-en", data.tokenizers)
    assert test.num_pairs == 10 and test.source(0)[0] == data.tokenizers.source.control_symbols.get(
        "<2en>"
    )


@pytest.fixture(scope="module")
def source_tokenizer():
    data = Data(vocab_size=360)
    return train_tokenizers(
        open_source("toy:train:60", source_language="en", target_language="de"), data, TOKENS
    ).source


@pytest.mark.smoke
@given(words=st.lists(st.sampled_from([*TOKENS, "a", "<", "2"]), max_size=8))
def test_symbols_count_at_the_beginning_of_a_source_alone(source_tokenizer, words):
    """Those of the text are the ids of the symbols, then of the rest.

    In the middle and in targets they are ordinary text.
    """
    count = next((i for i, word in enumerate(words) if word not in TOKENS), len(words))
    symbols, rest = words[:count], " ".join(words[count:])
    ids = [source_tokenizer.control_symbols[symbol] for symbol in symbols]
    text = " ".join(words)
    assert source_tokenizer.encode(text) == [*ids, *source_tokenizer.encode_text(rest)]
    assert not set(source_tokenizer.control_symbols.values()) & set(
        source_tokenizer.encode_text(text)
    )
    assert source_tokenizer.decode(ids + source_tokenizer.encode_text(rest)) == rest


def test_control_symbols_survive_the_file_and_renumbering(tmp_path):
    side = prepared(config_of(), tmp_path).tokenizers.source
    assert SentencePieceTokenizer(side.data).control_symbols.get(
        "<2de>"
    ) == side.control_symbols.get("<2de>")
    assert (
        side.pieces([side.control_symbols.get("<2de>")]) == ["<2de>"]
        and side.decode([side.control_symbols.get("<2de>")]) == ""
    )
    import io

    import sentencepiece

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["a house"] * 10), model_writer=model, vocab_size=15, control_symbols=["<2de>", "<x>"],
        model_type="bpe", minloglevel=2,
    )  # fmt: skip
    other = SentencePieceTokenizer(model.getvalue())  # with <s>, and other ids than ours
    pieces = other.pieces(range(other.vocab_size))
    assert pieces[:3] == ["<pad>", "</s>", "<unk>"] and "<s>" not in pieces
    assert pieces[other.control_symbols.get("<2de>")] == "<2de>" and other.encode("a house")[
        0
    ] not in (0, 1, 2)


@pytest.mark.parametrize(
    ("key", "symbol"), [("languages.directions", "<2de>"), ("mixtures.tags", "<bt>")]
)
def test_given_tokenizers_without_a_symbol_are_refused(key, symbol, tmp_path):
    """Else it would be spelled in pieces, which filters count as text."""
    plain = train_tokenizers(
        open_source("toy:train:60", source_language="en", target_language="de"),
        Data(vocab_size=360),
    )
    plain.source.save(tmp_path / "plain.model")
    config = config_of(tokenizer_model=tmp_path / "plain.model")
    if key == "mixtures.tags":
        config = config.with_values({"languages.directions": ""})
    with refused(f"config.{key}", symbol, "config.data.tokenizer_model", "--control_symbols="):
        prepared(config, tmp_path / "run")
    assert not (tmp_path / "run" / "tokenizer").exists()
    own = prepared(config_of(), tmp_path / "own").tokenizers
    own.source.save(tmp_path / "own.model")
    given_model = prepared(config_of(tokenizer_model=tmp_path / "own.model"), tmp_path / "run")
    assert given_model.tokenizers.digest == own.digest


def test_the_length_limit_counts_the_token(tmp_path):
    source = open_source("toy:train:100", source_language="en", target_language="de")
    tokenizers = train_tokenizers(source, Data(vocab_size=400), TOKENS)
    directed = TaggedSource(source, "<2de>")
    for policy, count in (("drop", "too_long"), ("truncate", "truncated")):
        store = prepare_split(directed, tokenizers, tmp_path / policy, Policies(12, policy, "drop"))
        lengths = store.lengths[0]
        assert lengths.max() <= 12 and store.meta[count] > 0
        assert all(
            store.source(i)[0] == tokenizers.source.control_symbols.get("<2de>")
            for i in range(store.num_pairs)
        )


def test_the_symbol_is_part_of_the_recipe_where_there_is_one():
    source = open_source("toy:train:60", source_language="en", target_language="de")
    tokenizers = train_tokenizers(source, Data(vocab_size=360))
    policies = Policies(24, "drop", "drop")
    recipe, digest = recipe_of(source, tokenizers, policies)
    tagged = recipe_of(TaggedSource(source, "<2de>"), tokenizers, policies)
    assert "tags" not in recipe and tagged[0]["tags"] == ["<2de>"] and tagged[1] != digest
    assert not hooks.control_symbols(Config(data=SMALL_DATA))


def test_training_text_without_a_symbol_is_refused_where_the_tokenizer_has_them(tmp_path):
    own = prepared(config_of(), tmp_path / "own").tokenizers
    own.source.save(tmp_path / "own.model")
    keys = {
        "data.train": "toy:train:30",
        "data.tokenizer_model": str(tmp_path / "own.model"),
        "data.vocab_size": "400",
    }
    with refused("toy:train:30", "<2de>"):
        prepared(resolve(override(default_config(), keys)), tmp_path / "run")
    (tmp_path / "a.en").write_text("\n<2de> It is late.\n")
    (tmp_path / "a.de").write_text("\nEs ist spät.\n")
    keys |= {"data.train": f"{tmp_path}/a.en,{tmp_path}/a.de", "data.valid": "toy:valid:5"}
    with refused("toy:valid:5"):
        prepared(resolve(override(default_config(), keys)), tmp_path / "run")


def test_the_test_set_of_a_direction_has_the_digest_of_its_text():
    """So that systems with and without directions are compared on the same sentences."""
    directed = split_source(task_of(config_of()), "de-en")
    plain = open_source("toy:test:10", source_language="de", target_language="en")
    assert directed.fingerprint() == plain.fingerprint() and directed.tag == "<2en>"


def test_the_source_language_has_a_symbol_if_asked(tmp_path):
    keys = {
        "languages.source_symbol": "True",
        "data.train": "en-de=toy:train:60; de-en=toy:train:60",
    }
    keys |= {"languages.directions": "by_name", "mixtures.tags": "", "mixtures.limits": ""}
    config = resolve(override(default_config(), KEYS | keys))
    assert {"<from:de>", "<from:en>", "<2de>", "<2en>"} == set(hooks.control_symbols(config))
    tokenizer = prepared(config, tmp_path).tokenizers.source
    assert list(tokenizer.source_languages) == list(tokenizer.target_languages) == ["de", "en"]
    source, _ = split_source(task_of(config), "train").parts
    (text, _), *_ = source.pairs()
    assert text.startswith("<2de> <from:en> ") and not tokenizer.lacks_language(text)
    assert tokenizer.lacks_language(text.replace("<from:en> ", ""))
    ids = [tokenizer.control_symbols[symbol] for symbol in text.split()[:2]]
    assert tokenizer.encode(text)[:2] == ids
    plain = resolve(
        override(config_lib.to_config_dict(config), {"languages.source_symbol": "False"})
    )
    with refused("languages.source_symbol", "<from:de>"):
        hooks.training_stream(plain, prepared(config, tmp_path).tokenizers)
