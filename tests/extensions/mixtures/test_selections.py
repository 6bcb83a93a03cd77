"""Limits and random samples of sources."""

from collections import Counter

import pytest
from helpers.refusals import refused
from hypothesis import given, settings
from hypothesis import strategies as st

from t2t_flax.config import default_config, override, resolve
from t2t_flax.data.sources import Source
from t2t_flax.data.splits import split_source
from t2t_flax.extensions.mixtures import selections
from t2t_flax.extensions.mixtures.selections import FirstPairs, RandomPairs
from t2t_flax.tasks import task_of


class Rows(Source):
    """Pairs that are their positions; the source drops those in `dropped`."""

    def __init__(self, count, dropped=()):
        super().__init__(f"rows:{count}:{sorted(dropped)}")
        self._count, self._dropped = count, dropped
        self.reasons = {"score": "with a low score"} if dropped else {}

    def read(self):
        return ("score" if i in self._dropped else (str(i), str(i)) for i in range(self._count))

    def fingerprint(self):
        return self.spec

    def where(self, i):
        return f"row {i}"


COUNTS = st.integers(1, 40).flatmap(
    lambda count: st.tuples(st.just(count), st.sets(st.integers(0, count - 1), max_size=count - 1))
)


@given(
    corpus=COUNTS,
    share=st.floats(0.01, 1),
    seed=st.integers(0, 5),
    block=st.integers(1, 50),
    random=st.booleans(),
)
@settings(max_examples=200, deadline=None)
def test_exactly_so_many_pairs_keep_their_order_and_place(corpus, share, seed, block, random):
    count, dropped = corpus
    source, size = Rows(count, dropped), max(1, int(share * (count - len(dropped))))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(selections, "_BLOCK", block)
        selected = RandomPairs(source, "x", size, seed) if random else FirstPairs(source, size)
        rows, pairs = list(selected.rows()), [int(text) for text, _ in selected.pairs()]
        assert len(pairs) == size and pairs == sorted(set(pairs)) and rows == list(selected.rows())
        if not random:
            assert pairs == [i for i in range(count) if i not in dropped][:size]
        assert {"score"} >= {row for row in rows if isinstance(row, str)}
        for i in [*range(len(rows)), *reversed(range(len(rows)))]:
            at = int(selected.where(i).removeprefix("row "))
            assert at in dropped if rows[i] == "score" else rows[i] == (str(at), str(at))
        if random:
            assert rows.count("score") == len(dropped), "what the source drops stays listed"


def test_every_pair_is_drawn_equally_often():
    drawn = Counter(
        text for seed in range(2000) for text, _ in RandomPairs(Rows(10), "x", 3, seed).pairs()
    )
    # 600 expected, 20 the standard deviation.
    assert all(520 < drawn[str(i)] < 680 for i in range(10)), drawn


def test_a_sample_depends_on_seed_and_name():
    samples = {
        tuple(RandomPairs(Rows(1000), name, 100, seed).pairs())
        for name, seed in (("a", 0), ("b", 0), ("a", 1))
    }
    fingerprints = {
        RandomPairs(Rows(9), name, size, seed).fingerprint()
        for name, size, seed in (("a", 3, 0), ("b", 3, 0), ("a", 4, 0), ("a", 3, 1))
    }
    assert len(samples) == 3 and len(fingerprints) == 4


@pytest.mark.parametrize("now", [9, 11])
def test_a_source_that_changes_after_it_was_counted_is_refused(now):
    source = Rows(10)
    selected = RandomPairs(source, "x", 3, 0)
    assert len(list(selected.pairs())) == 3
    source._count = now
    with refused("rows:10:"):
        list(selected.pairs())


@pytest.fixture
def config_of(tmp_path):
    (tmp_path / "a.tsv").write_text("".join(f"{i}\t{i}\n" for i in range(50)))

    def of(**keys):
        values = {f"mixtures.{name}": value for name, value in keys.items()}
        return resolve(
            override(
                default_config(),
                {"data.train": "a=a.tsv; b=a.tsv", "data.root": str(tmp_path)} | values,
            )
        )

    return of


def test_what_selects_and_tags_rows_keeps_their_lines(config_of):
    source = split_source(
        task_of(config_of(samples="b=20", limits="a=9", tags="a=<a>, b=<b>")), "train"
    )
    for part in source.parts:
        for i, (text, line) in enumerate(part.pairs()):
            assert text == f"{part.tag} {line}" and part.where(i).endswith(
                f"a.tsv line {int(line) + 1}"
            )


def test_a_config_takes_a_sample_of_a_source(config_of):
    source = split_source(task_of(config_of(samples="b=20")), "train")
    a, b = (list(part.pairs()) for part in source.parts)
    assert len(a) == 50 and len(b) == 20 and b != a[:20] and source.parts[1].count == 20
    for keys in (dict(sample_seed="1"), dict(samples="b=21")):
        other = split_source(task_of(config_of(**{"samples": "b=20"} | keys)), "train")
        assert other.fingerprint() != source.fingerprint()


@pytest.mark.parametrize(
    ("keys", "names"),
    [
        (dict(samples="b=51"), ("50 pairs,", "51")),
        (dict(samples="b=20", limits="b=30"), ("mixtures.limits",)),
        (dict(samples="c=20"), ("'c'",)),
        (dict(samples="b=half"), ("'half'",)),
    ],
)
def test_impossible_samples_are_refused(config_of, keys, names):
    with refused("config.mixtures.samples", *names):
        list(split_source(task_of(config_of(**keys)), "train").pairs())
