"""Which items share a batch, and what becomes of jobs that are cancelled or fail."""

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from t2t_flax.extensions.serving.batching import Batch, Batcher, Closed, QueueFull, answer


def items_of(batch: Batch) -> list:
    return [job.items[index] for job, index in batch.parts]


def test_only_equal_keys_share_a_batch_and_the_order_of_arrival_is_kept():
    batcher = Batcher(3, 0.0, 9)
    for key, items in [("a", [1, 2]), ("b", [3]), ("a", [4, 5]), ("b", [6])]:
        batcher.submit(key, items)
    batches = [batcher.take() for _ in range(3)]
    assert [(batch.key, items_of(batch)) for batch in batches] == [("a", [1, 4, 2]), ("b", [3, 6]), ("a", [5])]
    assert batcher.waiting == 0


def test_large_job_takes_a_place_of_a_batch_as_long_as_others_wait():
    batcher = Batcher(2, 0.0, 9)
    large, small = batcher.submit("a", [1, 2, 3, 4, 5]), batcher.submit("a", [6])
    taken = []
    while batcher.waiting:
        batch = batcher.take()
        taken.append(items_of(batch))
        answer(batch, lambda key, items: [10 * item for item in items])
    assert taken == [[1, 6], [2, 3], [4, 5]]
    assert (large.future.result(0), small.future.result(0)) == ([10, 20, 30, 40, 50], [60])


@given(st.lists(st.tuples(st.sampled_from("ab"), st.lists(st.integers(), max_size=7)), max_size=9), st.integers(1, 5))
def test_every_item_is_computed_once_with_its_own_key_and_result(jobs, max_batch):
    batcher, seen = Batcher(max_batch, 0.0, 99), []

    def process(key, items):
        assert 1 <= len(items) <= max_batch
        seen.extend((key, item) for item in items)
        return [(key, item) for item in items]

    submitted = [batcher.submit(key, items) for key, items in jobs]
    while batcher.waiting:
        answer(batcher.take(), process)
    assert [job.future.result(0) for job in submitted] == [[(key, item) for item in items] for key, items in jobs]
    assert sorted(seen) == sorted((key, item) for key, items in jobs for item in items)


def test_batch_waits_for_company_until_it_is_full():
    batcher, batches = Batcher(2, 3600.0, 9), []
    thread = threading.Thread(target=lambda: batches.append(batcher.take()))
    thread.start()
    batcher.submit("a", [1])
    batcher.submit("b", [2])
    assert not batches
    batcher.submit("a", [3])
    thread.join(60)
    assert items_of(batches[0]) == [1, 3]


def test_error_fails_only_the_job_that_causes_it():
    batcher = Batcher(9, 0.0, 9)
    good, bad = batcher.submit("a", [1, 2]), batcher.submit("a", [0, 3])
    answer(batcher.take(), lambda key, items: [1 / item for item in items])
    assert good.future.result(0) == [1.0, 0.5]
    with pytest.raises(ZeroDivisionError):
        bad.future.result(0)


def test_failed_job_does_not_come_back_with_its_other_items():
    batcher = Batcher(1, 0.0, 9)
    batcher.submit("a", [0, 1, 2])
    answer(batcher.take(), lambda key, items: [1 / item for item in items])
    assert batcher.waiting == 0


def test_cancelled_jobs_leave_the_queue_and_make_room():
    batcher = Batcher(9, 0.0, 2)
    first, second = batcher.submit("a", [1]), batcher.submit("a", [2])
    with pytest.raises(QueueFull):
        batcher.submit("a", [3])
    first.future.cancel()
    batcher.submit("a", [4])
    assert items_of(batcher.take()) == [2, 4] and not second.future.done()


def test_batch_is_empty_when_nothing_comes():
    batcher = Batcher(9, 0.0, 9)
    assert batcher.take(until=0.0).parts == []
    batcher.submit("a", [1])
    assert items_of(batcher.take(until=0.0)) == [1]


def test_close_cancels_what_waits_and_ends_the_thread():
    batcher = Batcher(9, 0.0, 9)
    job = batcher.submit("a", [1])
    batcher.close()
    assert job.future.cancelled() and batcher.take() is None
    with pytest.raises(Closed):
        batcher.submit("a", [2])


def test_job_without_items_is_done_at_once():
    assert Batcher(1, 0.0, 1).submit("a", []).future.result(0) == []
