"""Which items share a batch, and what becomes of jobs that are cancelled or fail."""

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from t2t_flax.extensions.serving.batching import Batcher, Closed, QueueFull, compute


def items_of(parts) -> list:
    return [job.items[index] for job, index in parts]


def batcher_of(max_batch=9, max_queue=9):
    return Batcher(max_batch, max_queue, wait=0.0)


def test_only_equal_keys_share_a_batch_and_jobs_take_turns():
    batcher = batcher_of(3)
    for key, items in [("a", [1, 2]), ("b", [3]), ("a", [4, 5]), ("b", [6])]:
        batcher.submit(key, items)
    assert [items_of(batcher.take(0.0)) for _ in range(3)] == [[1, 4, 2], [3, 6], [5]]
    assert batcher.waiting == 0 and batcher.take(0.0) == []


def test_large_job_takes_one_place_of_a_batch_while_others_wait():
    batcher, taken = batcher_of(2), []
    large, small = batcher.submit("a", [1, 2, 3, 4, 5]), batcher.submit("a", [6])
    while batcher.waiting:
        parts = batcher.take(0.0)
        taken.append(items_of(parts))
        compute(parts, lambda key, items: [10 * item for item in items])
    assert taken == [[1, 6], [2, 3], [4, 5]]
    assert (large.future.result(0), small.future.result(0)) == ([10, 20, 30, 40, 50], [60])


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.lists(st.integers(), max_size=7)), max_size=9),
    st.integers(1, 5),
)
def test_every_item_is_computed_once_with_its_own_key_and_result(jobs, max_batch):
    batcher, seen = batcher_of(max_batch, 99), []

    def process(key, items):
        assert 1 <= len(items) <= max_batch
        seen.extend((key, item) for item in items)
        return [(key, item) for item in items]

    submitted = [batcher.submit(key, items) for key, items in jobs]
    while batcher.waiting:
        compute(batcher.take(0.0), process)
    assert [job.future.result(0) for job in submitted] == [
        [(key, item) for item in items] for key, items in jobs
    ]
    assert sorted(seen) == sorted((key, item) for key, items in jobs for item in items)


def test_batch_waits_for_company_until_it_is_full():
    batcher, batches = Batcher(2, 9, wait=3600.0), []
    thread = threading.Thread(target=lambda: batches.append(batcher.take(3600.0)))
    thread.start()
    batcher.submit("a", [1])
    batcher.submit("b", [2])
    assert not batches
    batcher.submit("a", [3])
    thread.join(60)
    assert items_of(batches[0]) == [1, 3]


def test_error_fails_only_the_job_that_causes_it_with_all_its_items():
    batcher = batcher_of()
    good, bad = batcher.submit("a", [1, 2]), batcher.submit("a", [0, 3])
    error = compute(batcher.take(0.0), lambda key, items: [1 / item for item in items])
    assert isinstance(error, ZeroDivisionError) and good.future.result(0) == [1.0, 0.5]
    with pytest.raises(ZeroDivisionError):
        bad.future.result(0)
    batcher = batcher_of(1)
    batcher.submit("a", [0, 1, 2])
    compute(batcher.take(0.0), lambda key, items: [1 / item for item in items])
    assert batcher.waiting == 0


def test_cancelled_jobs_leave_the_queue_and_make_room():
    batcher = batcher_of(max_queue=2)
    first, second = batcher.submit("a", [1]), batcher.submit("a", [2])
    with pytest.raises(QueueFull):
        batcher.submit("a", [3])
    first.future.cancel()
    batcher.submit("a", [4])
    assert items_of(batcher.take(0.0)) == [2, 4] and not second.future.done()


def test_close_cancels_what_waits_and_ends_the_thread():
    batcher = batcher_of()
    job = batcher.submit("a", [1])
    batcher.close()
    assert job.future.cancelled() and batcher.take(3600.0) is None
    with pytest.raises(Closed):
        batcher.submit("a", [2])
