"""A server that takes another checkpoint while it answers."""

import concurrent.futures
import dataclasses
import gc
import os
import threading
import weakref

import jax
import jax.numpy as jnp
import pytest

from t2t_flax.data.sources import toy
from t2t_flax.extensions.serving.programs import Programs

for package in ("fastapi", "uvicorn", "prometheus_client", "httpx"):
    pytest.importorskip(package, reason="needs the extra serve and httpx")
from helpers.http_server import serving, wait_for  # noqa: E402

from t2t_flax.extensions.serving.command import checkpoints_of  # noqa: E402
from t2t_flax.extensions.serving.reload import other_checkpoints  # noqa: E402

LINES = [source for source, _ in toy.pairs("test", 6)]
BODY = {"q": LINES[0], "source": "en", "target": "de"}


def translated(run, *lines):
    return [translation.text for translation in run.translate(lines)]


class Counted(Programs):
    """count: programs that were compiled."""

    count = 0

    def make(self, *args):
        self.count += 1
        return super().make(*args)


def other_checkpoint(run, step):
    """The run with parameters of a later step, which translates otherwise."""
    params = jax.tree.map(lambda x: x + 0.3 * jax.random.normal(jax.random.key(step), x.shape), run.params)
    made = run.with_params(params)
    return dataclasses.replace(made, checkpoint=dataclasses.replace(made.checkpoint, steps=(step,)))


def test_another_checkpoint_is_taken_while_requests_are_answered(run, caplog):
    """No request fails, each has the translation of one of both, no program is made; what is not finite is left."""
    after, last, broken = (other_checkpoint(run, step) for step in (4, 5, 6))
    broken = broken.with_params(jax.tree.map(lambda x: x * float("nan"), broken.params))
    before = translated(run, *LINES), translated(after, *LINES)
    assert before[0] != before[1]
    current, stop, answers = [run], threading.Event(), []
    programs = Counted()
    try:
        with serving({"tiny": lambda: current[0]}, watch=lambda: current[0].steps) as server:

            def ask(number):
                while not stop.is_set():
                    answers.append(server.post("/translate", BODY | {"q": LINES}))

            def steps():
                return server.get("/api/models").json()[0]["steps"]

            with concurrent.futures.ThreadPoolExecutor(3) as pool:
                clients = [pool.submit(ask, number) for number in range(3)]
                wait_for(lambda: len(answers) >= 3, "answers")
                current[0] = after
                wait_for(lambda: steps() == [4], "new checkpoint")
                seen = len(answers)
                wait_for(lambda: len(answers) >= seen + 6, "answers with it")
                stop.set()
                for client in clients:
                    client.result()
            server.post("/translate", BODY)
            known, current[0] = programs.count, last
            wait_for(lambda: steps() == [5], "last checkpoint")
            answer = server.post("/translate", BODY).json()
            assert answer["translatedText"] == translated(last, LINES[0])[0]
            assert programs.count == known
            current[0] = broken
            wait_for(lambda: "stays at step 5: the model produces numbers" in caplog.text, "warning")
            assert steps() == [5] and 't2t_flax_step{model="tiny"} 5.0' in server.get("/metrics").text
    finally:
        programs.close()
    assert all(answer.status_code == 200 for answer in answers)
    for answer in answers:  # lines of one request may be in batches before and after the change
        assert all(text in pair for text, *pair in zip(answer.json()["translatedText"], *before, strict=True))


def test_the_parameters_of_an_earlier_checkpoint_are_let_go(run):
    """Also by lanes that have no requests."""
    current = [other_checkpoint(run, 4)]
    first = weakref.ref(jax.tree.leaves(current[0].params)[0])
    with serving({"tiny": lambda: current[0]}, watch=lambda: current[0].steps) as server:
        assert server.post("/translate", BODY | {"alternatives": 1}).status_code == 200
        current[0] = run
        wait_for(lambda: server.get("/api/models").json()[0]["steps"] == [2], "new checkpoint")
        wait_for(lambda: gc.collect() >= 0 and first() is None, "end of the first parameters")


@pytest.mark.parametrize("what", ["the same steps", "numbers that are not finite"])
def test_what_is_not_taken_is_let_go(run, what):
    """Between two looks there is one set of parameters in memory."""
    kept = []

    def load():
        made = other_checkpoint(run, 2 if what == "the same steps" else 4)
        made = made if made.steps == run.steps else made.with_params(jax.tree.map(lambda x: x * jnp.nan, made.params))
        kept.append(weakref.ref(jax.tree.leaves(made.params)[0]))
        return made

    def stopped():
        gc.collect()
        return bool(kept) and not [ref for ref in kept if ref()] or len(kept) > 2

    changes = iter(range(9))
    assert not list(other_checkpoints("tiny", run, load, lambda: next(changes), None, stopped))
    assert len(kept) == 1


def test_checkpoints_are_seen_when_they_are_finished(workdir, tmp_path):
    folder = tmp_path / "run"
    assert checkpoints_of(str(folder), False) is None
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "checkpoints" / "2").symlink_to(workdir / "checkpoints" / "2")
    assert checkpoints_of(str(folder), False) == [2] and list(checkpoints_of(str(folder), True)) == [2]
    os.symlink(workdir / "checkpoints" / "2", folder / "checkpoints" / "4")
    assert checkpoints_of(str(folder), False) == [2, 4]
