"""Guided alignments: links follow their pairs into batches, and the head that they train learns them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.runs import start, tiny_run

from t2t_flax.data.hooks import data_hooks
from t2t_flax.data.sources import toy
from t2t_flax.distributed import mesh as mesh_lib
from t2t_flax.errors import UserError
from t2t_flax.evaluation.restore import load
from t2t_flax.extensions.alignments import Alignments
from t2t_flax.extensions.alignments.attention import Head, Pair, word_weights
from t2t_flax.extensions.alignments.guided import BEGIN, END, AlignmentArrays
from t2t_flax.extensions.alignments.guided_loss import GuidedLoss
from t2t_flax.extensions.alignments.links import Gold, errors, hard_links, pharaoh
from t2t_flax.models.dropout import Noise, noise_key
from t2t_flax.training import loop
from t2t_flax.training.setup import put_batch
from t2t_flax.training.train_step import loss_sums

PAIRS = list(toy.pairs("train", 300))


def by_position(pair):
    """A known alignment: target word i with the source word at the same relative place."""
    sizes = [len(side.split()) for side in pair]
    return frozenset((t * sizes[0] // sizes[1], t) for t in range(sizes[1]))


@pytest.fixture
def files(tmp_path):
    """Text with an empty line, which is dropped, and its alignments."""
    pairs = [*PAIRS[:150], ("", "leer"), *PAIRS[150:]]
    for i, side in enumerate(("en", "de")):
        (tmp_path / f"train.{side}").write_text("".join(pair[i] + "\n" for pair in pairs))
    links = [by_position(pair) if pair[0] else frozenset() for pair in pairs]
    (tmp_path / "links").write_text("".join(pharaoh(own) + "\n" for own in links))
    return tmp_path


def guided_run(folder, **groups):
    data = dict(train=f"{folder}/train.en,{folder}/train.de", **groups.pop("data", {}))
    keys = dict(guided=str(folder / "links"), layer=1, head=2) | groups.pop("alignments", {})
    return tiny_run(folder / "run", data=data, alignments=keys, **groups)


@pytest.mark.parametrize("batching", ["packed", "buckets"])
def test_links_follow_their_pairs_into_rows(files, cache, batching):
    """Of every sentence of every row, whatever was dropped, shuffled and packed: the span of a target token is that of the source
    word to which its word is linked.
    """
    config = guided_run(files, data=dict(batching=batching))
    setup = start(config, files / "run", cache)
    tokenizer = setup.corpus.tokenizers.source
    known = {pair: by_position(pair) for pair in PAIRS}
    seen = 0
    for k in range(4):
        arrays = {name: x.reshape(-1, x.shape[-1]) for name, x in setup.batches.batch(k).arrays.items()}
        for row in range(len(arrays["source"])):
            for segment in range(1, arrays["target_segments"][row].max() + 1):
                places = [np.flatnonzero(arrays[f"{side}_segments"][row] == segment) for side in ("source", "target")]
                ids = [arrays[side][row][at].tolist() for side, at in zip(("source", "target"), places, strict=True)]
                texts = tuple(tokenizer.decode(x) for x in ids)
                words = [np.cumsum([p.startswith("\u2581") for p in tokenizer.pieces(x[:-1])]) - 1 for x in ids]
                links = {t: s for s, t in known[texts]}
                for at, word in zip(places[1], words[1], strict=False):
                    span = places[0][:-1][words[0] == links[word]]
                    assert (arrays[BEGIN][row, at], arrays[END][row, at]) == (span[0], span[-1] + 1)
                assert not arrays[END][row, places[1][-1]], "the end of a sentence has no link"
                seen += 1
            assert not arrays[END][row][arrays["target_segments"][row] == 0].any()
    assert seen > 20
    (line,) = data_hooks(config)[0].describe(setup.corpus)
    assert line.startswith("guided alignments: of 300 pairs") and "none" not in line


def test_pairs_are_read_once(files, cache, monkeypatch):
    """Later starts find what was read beside the tokens; another file, and a damaged copy, are read again."""
    setup = start(guided_run(files), files / "run", cache)
    before = AlignmentArrays(setup.config, setup.corpus).table
    (kept,) = setup.corpus.train.folder.glob("alignments-*")

    def unread(*_):
        raise AssertionError("read again")

    with monkeypatch.context() as patch:
        patch.setattr("t2t_flax.extensions.alignments.guided._pairs", unread)
        again = AlignmentArrays(setup.config, setup.corpus).table
        assert all(np.array_equal(a, b) for a, b in zip(again, before, strict=True))
        assert data_hooks(setup.config)[0].describe(setup.corpus)
        for damaged in (kept.read_bytes()[:-100], b""):
            kept.write_bytes(damaged)
            with pytest.raises(AssertionError, match="read again"):
                assert AlignmentArrays(setup.config, setup.corpus).table
    again = AlignmentArrays(setup.config, setup.corpus).table
    assert all(np.array_equal(a, b) for a, b in zip(again, before, strict=True))
    (files / "links").write_text("\n" * 301)
    other = AlignmentArrays(setup.config, setup.corpus).table
    assert before.spans.any() and not other.spans.any()


def test_the_loss_is_minus_the_log_of_what_linked_words_get():
    rng = np.random.default_rng(0)
    weights = rng.dirichlet(np.ones(6), (2, 2, 5)).astype(np.float32)
    begin = np.array([[0, 2, 0, 5, 1], [0, 0, 3, 0, 0]])
    end = np.array([[1, 5, 0, 6, 2], [0, 0, 4, 0, 0]])
    config = tiny_run("x", alignments=dict(layer=1, head=2, weight=0.5))
    term, total = GuidedLoss(config)(
        {"decoder_0": {"cross_attention": {"weights": (jnp.asarray(weights),)}}},
        {BEGIN: jnp.asarray(begin), END: jnp.asarray(end)},
    )
    expected = -sum(
        np.log(weights[b, 1, t, begin[b, t] : end[b, t]].sum()) for b in range(2) for t in range(5) if end[b, t]
    )
    np.testing.assert_allclose(total, expected, rtol=1e-5)
    np.testing.assert_allclose(term, expected / 2, rtol=1e-5)


@pytest.mark.slow
def test_a_weight_of_zero_is_no_guidance_and_others_reach_the_head_alone(files, cache):
    """The same loss without a weight; gradients of the keys and queries of the head with one."""
    setup = start(guided_run(files), files / "run", cache)
    batch = jax.tree.map(lambda x: x[0], put_batch(setup.batches.batch(0), setup.mesh).arrays)
    params = setup.model.init(jax.random.key(0), batch)["params"]
    params = jax.tree.map(lambda x: getattr(x, "value", x), params, is_leaf=lambda x: hasattr(x, "value"))
    noise = Noise(noise_key(0, 0), jnp.arange(len(batch["target"]), dtype=jnp.uint32))

    def loss(weight, batch):
        config = setup.config.with_values({"alignments.weight": weight})
        of_params = lambda params: loss_sums(config, setup.model, params, batch, noise)  # noqa: E731
        return jax.jit(jax.value_and_grad(of_params, has_aux=True))(params)

    (plain, _), _ = loss(0.0, {n: x for n, x in batch.items() if n not in (BEGIN, END)})
    (zero, sums), without = loss(0.0, batch)
    (one, _), guided = loss(1.0, batch)
    np.testing.assert_allclose(zero, plain, rtol=1e-6)
    np.testing.assert_allclose(one, plain + sums["alignment_loss"], rtol=1e-5)
    changed = jax.tree.map(lambda a, b: np.abs(a - b), without, guided)["decoder_0"]["cross_attention"]["query"][
        "kernel"
    ]
    changed = np.asarray(changed).max((0, 2))
    assert changed[1] > 1e-6 and changed[0] < 1e-6 * changed[1].clip(1)


def final_loss(config, folder, cache):
    setup = start(config, folder, cache)
    loop.train(setup, score=None)
    return load(folder)


@pytest.mark.slow
def test_a_trained_head_has_learned_its_alignments(files, cache):
    """It aligns the training pairs much more as the file does than another head."""
    config = guided_run(
        files,
        steps=250,
        alignments=dict(weight=1.0),
        optimizer=dict(peak_lr=3e-3, schedule="constant", warmup_steps=10),
        checkpoint=dict(every_steps=250, keep_last=1),
    )
    run = final_loss(config, files / "run", cache)
    pairs, gold = [Pair(*pair) for pair in PAIRS[:60]], [Gold(by_position(p), by_position(p)) for p in PAIRS[:60]]
    rates = {}
    for head in (Head(1, 2), Head(1, 1)):
        links = [hard_links(weights) for weights in word_weights(run, pairs, head)]
        rates[head.head] = errors(links, gold).error_rate
    assert rates[2] < rates[1] - 0.2, rates


@pytest.mark.slow
def test_microbatches_and_devices_change_nothing(files, cache):
    """Sums of the term add up as those of the loss do."""
    from helpers.configs import devices_mesh

    from t2t_flax.training.train_state import init_state
    from t2t_flax.training.train_step import make_train_step

    config = guided_run(files, model=dict(dropout=0.0))
    setup = start(config, files / "run", cache)
    found = []
    for axes, tokens in (((1, 1, 1), 0), ((2, 1, 1), 64), ((1, 2, 2), 64)):
        own = config.with_values({"data.microbatch_tokens": tokens})
        mesh = devices_mesh(*axes)
        state, shardings = init_state(own, setup.model, setup.tx, mesh)
        step = make_train_step(own, setup.model, setup.tx, mesh, shardings)
        with mesh_lib.use(mesh):
            batch = put_batch(setup.corpus.batches(own, shards=mesh_lib.batch_shards(mesh)).batch(0), mesh).arrays
            _, values = step(state, batch)
        found.append([float(values[name]) for name in ("loss", "alignment_loss", "grad_norm")])
    assert found[0][1] > 0
    np.testing.assert_allclose(found, [found[0]] * len(found), rtol=2e-4)


def test_files_that_do_not_fit_are_refused(files, cache):
    setup = start(guided_run(files), files / "run", cache)
    lines = (files / "links").read_text().splitlines()
    for name, content, message in (
        ("short", lines[:-1], "short has 300 lines, and .* more pairs"),
        ("long", [*lines, ""], "long has more lines than the 301 pairs"),
        ("beyond", ["99-0", *lines[1:]], "beyond line 1: a link 99-0, but the pair has"),
        ("other", ["0,0", *lines[1:]], "other line 1: '0,0' is no link"),
    ):
        (files / name).write_text("".join(line + "\n" for line in content))
        arrays = AlignmentArrays(guided_run(files, alignments=dict(guided=str(files / name))), setup.corpus)
        with pytest.raises(UserError, match=message):
            assert arrays.table
    two = AlignmentArrays(guided_run(files, alignments=dict(guided="a,b")), setup.corpus)
    with pytest.raises(UserError, match="names 2 files, config.data.train 1 sources"):
        assert two.table


def test_a_missing_file_is_found_before_pairs_are_tokenised(files, cache):
    gone = guided_run(files, alignments=dict(guided=str(files / "gone")))
    with pytest.raises(UserError, match=r"config.alignments.guided: no file .*gone"):
        start(gone, files / "run", cache)
    assert not [*files.glob("run/**/train-*")]


@pytest.mark.slow
def test_a_run_is_not_resumed_with_other_alignments(files, cache):
    config = guided_run(files, steps=1)
    final_loss(config, files / "run", cache)
    lines = (files / "links").read_text().splitlines()
    (files / "links").write_text("".join(line + "\n" for line in ["", *lines[1:]]))
    with pytest.raises(UserError, match=r"was made with other word alignments \(digest .* restore the data"):
        final_loss(config.with_values({"train.steps": 2}), files / "run", cache)


def test_links_of_reversed_targets_are_refused():
    pytest.importorskip("t2t_flax.extensions.reranking")
    config = tiny_run("x", rerank=dict(right_to_left=True))
    with pytest.raises(UserError, match="cannot be used with config.rerank.right_to_left"):
        Alignments(guided="links", layer=1).check(config)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_of_a_pair_that_occurs_twice_the_first_alignment_counts(tmp_path, cache, order):
    for side in ("en", "de"):
        (tmp_path / f"train.{side}").write_text("".join(pair[side == "de"] + "\n" for pair in [*PAIRS, PAIRS[0]]))
    own = ["0-0", "1-0"]
    (tmp_path / "links").write_text("\n".join([own[order[0]], *[""] * (len(PAIRS) - 1), own[order[1]], ""]))
    setup = start(guided_run(tmp_path), tmp_path / "run", cache)
    source = setup.corpus.tokenizers.source
    begin = (len(source.encode_text(PAIRS[0][0].split()[0])), 0)[order[0] == 0]
    arrays = AlignmentArrays(setup.config, setup.corpus)
    spans = arrays.spans(setup.corpus.train.source(0), setup.corpus.train.target(0))
    assert spans[0, 0] == begin < spans[1, 0]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (dict(), "needs config.alignments.layer"),
        (dict(layer=1, row="reads"), "config.alignments.row = predicts"),
    ],
)
def test_impossible_keys_are_refused(keys, message):
    with pytest.raises(UserError, match=message):
        Alignments(guided="links", **keys).check(tiny_run("x"))


def test_the_head_of_a_guided_run_stays():
    before, now = (tiny_run("x", alignments=dict(guided="links", layer=1, head=head)) for head in (1, 2))
    Alignments.of(now).check_change(now, now, 3)
    with pytest.raises(UserError, match=r"cannot change .* \(1, 1\) in the workdir, \(1, 2\) now"):
        Alignments.of(now).check_change(before, now, 3)
