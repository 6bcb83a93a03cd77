"""Noise: what each change does, on which pairs, and that no other text is changed."""

import string
from random import Random
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from helpers.configs import small_config
from helpers.runs import copy_at, start, tiny_run
from helpers.thread_groups import run_processes
from hypothesis import given, settings
from hypothesis import strategies as st

from t2t_flax.data.dataset import prepare_corpus
from t2t_flax.data.hooks import data_hooks
from t2t_flax.errors import UserError
from t2t_flax.extensions.augmentation import Noise
from t2t_flax.extensions.augmentation.changes import CHANGES, PUT_IN
from t2t_flax.extensions.augmentation.hook import AugmentationHook
from t2t_flax.tasks import task_of
from t2t_flax.training import loop
from t2t_flax.training.model_summary import describe

DATA = dict(
    train="toy:train:200", valid="toy:valid:20", vocab_size=500, max_length=60, pack_length=64, batch_tokens=512
)
TEXT = st.text(f"{string.ascii_letters} ßñ日.!?0🙂{{}}", min_size=1, max_size=40).filter(str.strip)


def corpus_of(folder, **groups):
    config = small_config(data=DATA, **groups)
    return config, prepare_corpus(task_of(config), folder)


def changed(name: str, source: str, target: str, seed: int = 0) -> tuple[str, str]:
    return CHANGES[name](source, target, Random(seed))


def test_the_changes_are_those_of_the_keys():
    assert [*CHANGES] == [*vars(Noise())]


@pytest.mark.parametrize("name", CHANGES)
@given(source=TEXT, target=TEXT, seed=st.integers(0, 99))
@settings(deadline=None, max_examples=100)
def test_changed_texts_are_lines_with_text_and_always_the_same(name, source, target, seed):
    texts = changed(name, source, target, seed)
    assert texts == changed(name, source, target, seed)
    assert all(text.strip() and "\n" not in text for text in texts)
    if name in ("typos", "lower_case"):
        assert texts[1] == target


def test_case():
    pair = "An old House by the Sea.", "Ein altes Haus am Meer."
    assert changed("upper_case", *pair) == ("AN OLD HOUSE BY THE SEA.", "EIN ALTES HAUS AM MEER.")
    assert changed("title_case", *pair) == ("An Old House By The Sea.", "Ein Altes Haus Am Meer.")
    assert changed("lower_case", *pair) == ("an old house by the sea.", "Ein altes Haus am Meer.")


def test_final_punctuation_is_left_out_on_both_sides_or_on_none():
    assert changed("unpunctuated", "Who is it?", "Wer ist es ?!") == ("Who is it", "Wer ist es")
    assert changed("unpunctuated", "你好\uff01", "谁\uff1f") == ("你好", "谁")
    assert changed("unpunctuated", "Yes.", "Ja") == ("Yes.", "Ja")
    assert changed("unpunctuated", "...", "Ja.") == ("...", "Ja.")


@given(st.integers(0, 10_000))
@settings(deadline=None)
def test_typos_are_few_and_in_letters(seed):
    words = [f"wonderful{i}" for i in range(20)]
    noised, _ = changed("typos", " ".join(words), "", seed)
    kept = set(words) & set(noised.split(" "))
    assert noised != " ".join(words) and 8 <= len(kept) <= 19
    assert [c for c in noised if c.isdigit()] == [c for c in " ".join(words) if c.isdigit()] or len(kept) < 20


@given(st.integers(0, 200))
@settings(deadline=None)
def test_emoji_and_placeholders_stand_at_corresponding_places(seed):
    source, target = "On Monday Anna sees 12 birds .", "Anna sieht am Montag 12 Vögel ."
    for name in ("emoji", "placeholders"):
        texts = [text.split() for text in changed(name, source, target, seed)]
        new = [
            [word for word in words if word not in text.split()]
            for words, text in zip(texts, (source, target), strict=True)
        ]
        assert len(new[0]) == 1 and new[0] == new[1], "the same on both sides"
        before = [words[words.index(new[0][0]) - 1] for words in texts]
        assert name == "placeholders" or before[0] == before[1] in ("Anna", "12")
    assert changed("placeholders", "no words", "keine Wörter", seed) == ("no words", "keine Wörter")
    first, second = changed("emoji", "no words", "keine Wörter", seed)
    assert first.split()[-1] == second.split()[-1] and first.startswith("no words")


@pytest.mark.parametrize("name", ["placeholders", "emoji"])
def test_a_word_beside_a_no_break_space_is_not_changed_on_one_side_only(name):
    """Words are what stands between spaces, where they are looked for and where they are replaced."""
    source, target = "it costs 12\u00a0euros there", "das kostet 12 \u20ac"
    for seed in range(20):
        ends = [
            text.removeprefix(plain)
            for text, plain in zip(changed(name, source, target, seed), (source, target), strict=True)
        ]
        assert ends[0] == ends[1] and len(ends[0]) == (0 if name == "placeholders" else 2)


def test_copies_are_the_same_on_both_sides():
    source, target = changed("copies", "a house", "ein Haus")
    assert source == target and 1 <= len(source.split()) <= 6


def texts_of(corpus, batches, updates):
    """Source and target texts by (pass, pair)."""
    found = {}
    for k in range(updates):
        batch = batches.batch(k)
        for pair, at in zip(batch.pairs.tolist(), batch.index.tolist(), strict=True):
            sides = [side.ids[o : o + n] for side in batch.sides for o, n in [(side.offsets[at], side.lengths[at])]]
            source, target = (corpus.tokenizers.source.decode(ids.tolist()) for ids in sides)
            found[batch.epoch, pair] = source, target
    return found


def test_a_share_of_the_pairs_is_changed_in_each_pass_and_no_validation_text(tmp_path):
    config, corpus = corpus_of(tmp_path / "noised", noise=dict(upper_case=0.3))
    _, plain = corpus_of(tmp_path / "plain")
    assert corpus.valid["valid"].digest == plain.valid["valid"].digest
    batches = corpus.batches(config)
    seen = texts_of(corpus, batches, 4 * batches.updates_per_epoch)
    passes = [
        {pair for (number, pair), (source, target) in seen.items() if number == n and target.isupper()}
        for n in range(3)
    ]
    assert all(25 <= len(of_pass) <= 95 for of_pass in passes) and len({str(sorted(p)) for p in passes}) == 3
    assert all(source.isupper() == target.isupper() for source, target in seen.values())


def test_without_noise_the_batches_are_the_same(tmp_path):
    """The keys of another extension change nothing, and noise of no pair writes no text."""
    config, corpus = corpus_of(tmp_path / "a")
    silent, other = corpus_of(tmp_path / "b", noise=dict(typos=0.0))
    assert corpus.train.digest == other.train.digest and "source_text" not in other.train.meta
    for k in range(20):
        for name, array in corpus.batches(config).batch(k).arrays.items():
            np.testing.assert_array_equal(array, other.batches(silent).batch(k).arrays[name])


@pytest.mark.smoke
def test_noise_and_drawn_segmentations_compose(tmp_path):
    """With shares and tags; batch k is a function of (config, k), and the text that is segmented is the changed one."""
    config, corpus = corpus_of(
        tmp_path,
        noise=dict(upper_case=0.5, copies=0.1),
        subwords=dict(bpe_dropout=0.3),
        mixtures=dict(tags="train=<t>"),
    )
    first, second = (corpus.batches(config) for _ in range(2))
    symbol = corpus.tokenizers.source.control_symbols["<t>"]
    backwards = {k: first.batch(k).arrays for k in reversed(range(12))}
    for k in range(12):
        arrays = second.batch(k).arrays
        for name, array in arrays.items():
            np.testing.assert_array_equal(array, backwards[k][name])
        starts = arrays["source_segments"] * (arrays["source_positions"] == 0) > 0
        assert (arrays["source"][starts] == symbol).all() and (arrays["source"] == symbol).sum() == starts.sum()
    assert "noise in a share of the pairs of each pass: upper_case 0.5, copies 0.1" in describe(config)
    lines = corpus.describe_train(config)
    assert "noise.upper_case: " in lines and "noise.copies: " in lines and "<t>" not in lines


def drawn_run(workdir):
    """Mixed sources with a tag, noise and drawn segmentations; shares change in the midst of a window."""
    return tiny_run(
        workdir,
        data=dict(
            train="many=toy:train:300; few=toy:train:60", valid="toy:valid:30", vocab_size=600, byte_fallback=True
        ),
        mixtures=dict(shares="many=3, few=1; 5: few=1", tags="few=<t>"),
        noise=dict(typos=0.3, upper_case=0.2, emoji=0.2, copies=0.1),
        subwords=dict(bpe_dropout=0.2),
        checkpoint=dict(every_steps=2),
        train=dict(steps=7),
    )


@pytest.mark.slow
def test_a_resumed_run_has_the_bits_of_one_that_was_not(tmp_path, cache):
    """Before and after the shares change."""
    whole = loop.train(start(drawn_run(tmp_path), tmp_path / "whole", cache), score=None)
    for step in (4, 6):
        copy_at(step, tmp_path / "whole", tmp_path / str(step))
        resumed = loop.train(start(drawn_run(tmp_path), tmp_path / str(step), cache), score=None)
        for actual, expected in zip(jax.tree.leaves(resumed.state), jax.tree.leaves(whole.state), strict=True):
            np.testing.assert_array_equal(actual, expected)


def test_hosts_build_the_rows_of_one(tmp_path):
    """Each opens the store, draws the window and fills its own rows."""
    config = drawn_run(tmp_path)

    def rows(group):
        corpus = prepare_corpus(task_of(config), tmp_path / "run", group=group)
        batches = corpus.batches(config, shards=group.count)
        found = []
        for k in range(9):
            batch = batches.batch(k)
            share = batch.shape.rows // group.count
            found.append(batch.rows(group.index * share, (group.index + 1) * share))
        return found

    (alone,), together = run_processes(1, rows), run_processes(2, rows)
    for k in range(9):
        for name in alone[k]:
            rows_of_all = np.concatenate([host[k][name] for host in together], axis=1)
            one = alone[k][name].reshape(-1, alone[k][name].shape[-1])
            np.testing.assert_array_equal(rows_of_all.reshape(-1, one.shape[-1])[: len(one)], one)


def test_unsuitable_configs_are_refused(tmp_path):
    parsing = small_config(data=dict(task="parsing"), noise=dict(typos=0.1))
    with pytest.raises(UserError, match="noise.typos = 0.1 changes text of data.task = translation, not of parsing"):
        parsing.group("noise").check(parsing)
    spelled = small_config(data=DATA | dict(byte_fallback=False, vocab_size=200), noise=dict(emoji=0.1))
    with pytest.raises(UserError, match="noise.emoji = 0.1 .* needs config.data.byte_fallback = true"):
        prepare_corpus(task_of(spelled), tmp_path)


@pytest.mark.parametrize(("name", "absent"), [("emoji", "🌍"), ("placeholders", "%"), ("copies", "φ")])
@pytest.mark.parametrize("side", ["source", "target"])
def test_tokenizers_of_both_sides_must_spell_every_sign_that_a_change_puts_in(name, absent, side):
    (hook,) = [
        one for one in data_hooks(small_config(data=DATA, noise={name: 0.1})) if isinstance(one, AugmentationHook)
    ]

    def tokenizer(without=""):
        return SimpleNamespace(changes=lambda text: bool(without) and without in text)

    tokenizers = dict(source=tokenizer(), target=tokenizer())
    hook.check_tokenizers(SimpleNamespace(**tokenizers))
    with pytest.raises(
        UserError, match=f"noise.{name} = 0.1 puts signs into the text that the {side} tokenizer cannot"
    ):
        hook.check_tokenizers(SimpleNamespace(**tokenizers | {side: tokenizer(absent)}))


def test_the_signs_of_the_check_are_those_that_are_put_in():
    """Every character that no side had before."""
    for name, signs in PUT_IN.items():
        drawn = {sign for seed in range(500) for text in changed(name, "Q 7", "Q 7", seed) for sign in text.lower()}
        assert drawn - {"q", "7"} <= set(signs) | {" "}, name
