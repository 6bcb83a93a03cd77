"""Workers: who trains what, retries, kills, and several workers on one folder."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from fake_sweep import FakeSweep

from t2t_flax.errors import UserError
from t2t_flax.sweeps import attempt as attempt_lib
from t2t_flax.sweeps.shares import Share, shares
from t2t_flax.sweeps.worker import Listed, counts, work


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_for(condition, seconds=20.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_all_are_trained_and_nothing_is_trained_twice(fake_sweep):
    sweep = fake_sweep({"one": "ok", "two": "ok", "three": "ok"}, seeds=2)
    sweep.work(shares=[Share(), Share()])
    sweep.work()
    assert counts(sweep.folder, sweep.names)["complete"] == 6
    assert [sweep.starts(name) for name in sweep.names] == [1] * 6


def test_a_failing_trial_is_tried_again_and_then_given_up_with_its_log(fake_sweep):
    sweep = fake_sweep({"bad": "fail", "wrong": "mistake", "flaky": "once", "good": "ok"})
    sweep.work(retries=2)
    states = {name.split(",")[0]: sweep.folder.state(name) for name in sweep.names}
    assert states == {"bad": "failed", "wrong": "failed", "flaky": "complete", "good": "complete"}
    starts = {name.split(",")[0]: sweep.starts(name) for name in sweep.names}
    assert starts == {"bad": 3, "wrong": 1, "flaky": 2, "good": 1}  # a mistake waits for somebody to see to it
    told = "\n".join(sweep.said)
    assert "out of something" in told and "there is no file x" in told
    sweep.folder.note("bad,seed=0", event="try again")
    sweep.work(retries=0)
    assert sweep.starts("bad,seed=0") == 4 and sweep.folder.state("bad,seed=0") == "failed"


def test_a_trial_that_diverges_is_not_tried_again_and_its_reason_is_noted(fake_sweep):
    sweep = fake_sweep({"wild": "diverge", "good": "ok"})
    sweep.work(retries=5)
    for name in sweep.names:  # as the next worker does with mistakes: somebody may have seen to them
        sweep.folder.try_again(name, given_up=False)
    sweep.work(retries=5)
    assert [sweep.folder.state(name) for name in sweep.names] == ["failed", "complete"]
    assert sweep.starts("wild,seed=0") == 1
    end = sweep.folder.attempts("wild,seed=0")[-1]
    assert end["event"] == "diverged" and end["reason"] == "update 7: loss nan, gradient norm nan."
    sweep.behaviours["wild"] = "fail"  # the mark of the attempt before is not taken for this one's
    sweep.folder.try_again("wild,seed=0", given_up=True)
    sweep.work(retries=0)
    assert sweep.folder.attempts("wild,seed=0")[-1]["event"] == "given up"


def test_of_trials_that_train_together_the_diverged_one_alone_has_failed(fake_sweep, monkeypatch):
    sweep = fake_sweep({"wild": "diverge", "good": "ok"})
    folder, names = sweep.folder, sweep.names

    def command(folder, names, share):
        workdirs = [str(folder.workdir(name)) for name in names]
        text = "import sys; from pathlib import Path; wild, good = map(Path, sys.argv[1:]); wild.mkdir(parents=True);"
        text += 'good.mkdir(parents=True); (wild / \'diverged.json\').write_text(\'{"step": 2, "reason": "nan"}\');'
        text += "(good / 'complete.json').write_text('{}'); sys.exit(3)"
        return [sys.executable, "-S", "-c", text, *workdirs]

    monkeypatch.setattr(attempt_lib, "command", command)
    claims = [folder.claim(name) for name in names]
    outcomes = attempt_lib.attempt(folder, names, claims, Share(), retries=5, stopping=lambda: False)
    assert list(outcomes.values()) == ["failed", "complete"]
    assert folder.attempts(names[0])[-1]["event"] == "diverged" and folder.ended(names[0])


def test_what_a_mistake_ended_on_one_host_is_tried_on_another(fake_sweep, monkeypatch):
    """A node without the data fails all that it takes, in seconds; the others make it good. Three hosts are believed."""
    sweep = fake_sweep({"here": "mistake", "nowhere": "mistake", "good": "ok"})
    for host in ("bad", "bad", "fine", "third", "fourth"):
        monkeypatch.setattr("socket.gethostname", lambda host=host: host)
        sweep.behaviours["here"] = "ok" if host == "fine" else "mistake"
        sweep.work(retries=0)
    states = {name.split(",")[0]: sweep.folder.state(name) for name in sweep.names}
    assert states == {"here": "complete", "nowhere": "failed", "good": "complete"}
    assert [sweep.starts(name) for name in sweep.names] == [2, 3, 1]
    hosts = [line["host"] for line in sweep.folder.attempts("nowhere,seed=0") if line["event"] == "begin"]
    assert hosts == ["bad", "fine", "third"]


def test_what_a_mistake_ended_is_tried_again_by_the_next_worker(fake_sweep):
    """A full disk, a missing file: exit code 2. Room is made, the same command given again."""
    sweep = fake_sweep({"disk": "mistake", "bad": "fail"})
    sweep.work(retries=0)
    sweep.behaviours["disk"] = "ok"
    for name in sweep.names:
        sweep.folder.try_again(name, given_up=False)
    sweep.work(retries=0)
    assert [sweep.folder.state(name) for name in sweep.names] == ["complete", "failed"] and sweep.starts(
        "bad,seed=0"
    ) == 1
    for name in sweep.names:
        sweep.folder.try_again(name, given_up=True)
    sweep.work(retries=0)
    assert sweep.starts("disk,seed=0") == 2 and sweep.starts("bad,seed=0") == 2


def test_only_failures_in_a_row_by_itself_count(fake_sweep):
    folder, name = fake_sweep({"one": "ok"}).folder, "one,seed=0"
    folder.note(name, event="failed")
    folder.note(name, event="failed", together=["one", "two"])
    assert folder.failures(name) == 1
    folder.note(name, event="stopped")
    assert folder.failures(name) == 0
    folder.note(name, event="pruning")
    assert folder.state(name) == "pruned"  # decided before the training was told


def test_a_worker_stops_when_its_code_changes_under_it(fake_sweep, monkeypatch):
    sweep = fake_sweep({"one": "ok", "two": "ok"})
    digests = iter(["a", "b"])
    monkeypatch.setattr("t2t_flax.sweeps.worker.code_of", lambda: {"digest": next(digests)})
    with pytest.raises(UserError, match="changed while the sweep ran"):
        work(
            sweep.folder,
            Listed(sweep.names),
            [Share()],
            retries=0,
            stop=threading.Event(),
            say=lambda _: None,
            code="a",
        )
    assert sweep.folder.state("one,seed=0") == "complete" and sweep.folder.state("two,seed=0") == "waiting"


def test_an_end_without_a_result_is_a_failure(fake_sweep):
    sweep = fake_sweep({"silent": "silent", "good": "ok"})
    sweep.work(retries=1)
    assert counts(sweep.folder, sweep.names)["failed"] == 1 and sweep.starts("silent,seed=0") == 2


def test_what_ends_without_a_word_goes_last_and_not_for_ever(fake_sweep, monkeypatch):
    """Somebody else stops it, or it takes its worker along."""
    from t2t_flax.sweeps import worker

    monkeypatch.setattr(worker, "LOST", 3)
    sweep = fake_sweep({"lost": "75", "good": "ok", "other": "ok"})
    sweep.folder.note("lost,seed=0", event="begin", at=0)
    sweep.work()
    assert sweep.folder.state("lost,seed=0") == "failed" and sweep.starts("lost,seed=0") == 2
    begun = [text.split(":")[0] for text in sweep.said if "begins" in text or "goes on" in text]
    assert begun == ["good,seed=0", "other,seed=0", "lost,seed=0", "lost,seed=0"]
    assert "3 attempts in a row" in sweep.folder.log("lost,seed=0").read_text()
    sweep.folder.try_again("lost,seed=0", given_up=True)
    assert sweep.folder.lost("lost,seed=0") == 0


def test_the_live_table(fake_sweep):
    import io

    import rich.console

    from t2t_flax.sweeps.live import table

    sweep = fake_sweep({f"row{i}": "ok" for i in range(40)} | {"bad": "fail"})
    claim = sweep.folder.claim("row1,seed=0")
    (sweep.folder.workdir("row1,seed=0")).mkdir(parents=True)
    (sweep.folder.workdir("row1,seed=0") / "metrics.jsonl").write_text('{"step": 50, "loss": 2.5}\n')
    out = io.StringIO()
    console = rich.console.Console(file=out, width=150)
    console.print(table(sweep.folder, sweep.names, lambda name: 1000))
    claim.release()
    lines = out.getvalue().splitlines()
    assert "0 of 41 trials have ended" in lines[0] and "and 11 more" in lines[-1]
    (running,) = [line for line in lines if "running" in line]
    assert "row1,seed=0" in running and "50 / 1,000" in running and "2.500" in running and "process" in running


def test_a_slurm_worker_saves_within_the_handler_of_a_signal(tmp_path):
    """submitit calls `checkpoint` on top of the call that it interrupts."""
    pytest.importorskip("submitit")
    script = (
        "import signal, sys, threading, os\n"
        "from t2t_flax.sweeps.submit import SlurmWorker\n"
        "child = 'import signal, sys, time; signal.signal(signal.SIGTERM, lambda *a: sys.exit(75)); print(1, flush=True); time.sleep(60)'\n"
        "worker = SlurmWorker([sys.executable, '-c', child])\n"
        "def save(*_):\n"
        "    again = worker.checkpoint()\n"
        "    print('again', again.function.command == worker.command, flush=True)\n"
        "    os._exit(0)\n"
        "signal.signal(signal.SIGUSR2, save)\n"
        "threading.Timer(2.0, os.kill, [os.getpid(), signal.SIGUSR2]).start()\n"
        "worker()\n"
    )
    env = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, timeout=30)
    assert "again True" in done.stdout, done.stdout + done.stderr


def test_a_stop_lets_the_running_ones_save_and_they_go_first_afterwards(fake_sweep):
    sweep = fake_sweep({"first": "ok", "slow": "long", "last": "ok"})
    stop = threading.Event()
    thread = threading.Thread(target=sweep.work, kwargs=dict(stop=stop))
    thread.start()
    wait_for(lambda: (sweep.folder.workdir("slow,seed=0") / "starts").exists())
    time.sleep(0.3)
    stop.set()
    thread.join(20)
    assert [sweep.folder.state(n) for n in sweep.names] == ["complete", "stopped", "waiting"]
    sweep.said.clear()
    sweep.work()
    assert sweep.said[0].startswith("slow,seed=0: goes on")
    assert counts(sweep.folder, sweep.names)["complete"] == 3 and sweep.folder.failures("slow,seed=0") == 0


def test_a_claim_is_held_by_the_training_even_when_its_worker_is_gone(fake_sweep):
    sweep = fake_sweep({"one": "ok"})
    name = sweep.names[0]
    claim = sweep.folder.claim(name)
    assert sweep.folder.claim(name) is None and "process" in sweep.folder.holder(name)
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=[claim.descriptor])
    claim.release()
    assert sweep.folder.claim(name) is None
    child.kill()
    child.wait()
    assert sweep.folder.holder(name) is None
    sweep.folder.claim(name).release()


def test_a_killed_worker_takes_its_trainings_with_it_and_another_goes_on(fake_sweep, tmp_path):
    sweep = fake_sweep({"slow": "long", "other": "ok"})
    script = (
        "import sys; sys.path.insert(0, sys.argv[1]); from pathlib import Path\n"
        "import fake_sweep\n"
        "s = fake_sweep.FakeSweep(Path(sys.argv[2]), {'slow': 'long', 'other': 'ok'})\n"
        "fake_sweep.attempt_lib.command = s.command\n"
        "s.work()\n"
    )
    here = Path(__file__).parent
    env = os.environ | {"PYTHONPATH": f"{here.parents[1]}{os.pathsep}{here}"}
    worker = subprocess.Popen([sys.executable, "-c", script, str(here), str(sweep.folder.path)], env=env)
    starts = sweep.folder.workdir("slow,seed=0") / "starts"
    wait_for(starts.exists)
    time.sleep(0.3)
    worker.send_signal(signal.SIGKILL)
    worker.wait()
    training = int(starts.read_text().split()[0])
    wait_for(lambda: not running(training))
    sweep.work()
    assert counts(sweep.folder, sweep.names)["complete"] == 2 and sweep.starts("slow,seed=0") == 2


def test_two_workers_share_a_folder(fake_sweep):
    behaviours = {f"row{i}": "ok" for i in range(12)}
    sweep = fake_sweep(behaviours)
    other = FakeSweep(sweep.folder.path, behaviours)
    threads = [threading.Thread(target=s.work) for s in (sweep, other)]
    [t.start() for t in threads]
    [t.join(60) for t in threads]
    assert [sweep.starts(name) for name in sweep.names] == [1] * 12
    assert sweep.said and other.said


def test_a_trial_is_no_part_of_the_pod_around_its_worker(fake_sweep):
    sweep = fake_sweep({"one": "ok"})
    sweep.work()
    assert "alone 1" in sweep.folder.log("one,seed=0").read_text()


def test_cores_are_shared_out(fake_sweep):
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        pytest.skip("needs two cores")
    sweep = fake_sweep({"one": "ok", "two": "ok"})
    sweep.work(shares=shares(2))
    told = {sweep.folder.log(name).read_text().split("cores ")[-1].strip() for name in sweep.names}
    halves = {str(cores[: len(cores) // 2]), str(cores[len(cores) // 2 :])}
    assert told <= halves
    with pytest.raises(UserError, match="needs a core for each"):
        shares(len(cores) + 1)


def test_trials_that_share_a_program_are_taken_together(tmp_path):
    """Those that differ in rates, at the same update, that have not failed, up to the number asked for."""
    from t2t_flax.sweeps.opening import open_folder
    from t2t_flax.sweeps.space import chain, over
    from t2t_flax.sweeps.trials import expand
    from t2t_flax.sweeps.worker import _take

    toy = str(Path(__file__).parents[2] / "configs" / "toy.py")
    rows = chain(
        over("model.dropout", [0.1, 0.2, 0.3, 0.4, 0.5]), over("model.d_ff", [256]), over("optimizer.peak_lr", [1e-3])
    )
    trials = expand(toy, {}, rows, 1)
    described = dict(version=1, config=toy, fixed={}, search=None, seeds=1, score="sacrebleu", baseline="")
    folder, _ = open_folder(tmp_path / "s", described, trials)
    queue = Listed([trial.name for trial in trials])
    folder.note("dropout=0.2,seed=0", event="failed")
    (folder.workdir("dropout=0.3,seed=0") / "checkpoints" / "250").mkdir(parents=True)
    groups = []
    while taken := _take(folder, queue, 3):
        groups.append([name.removesuffix(",seed=0") for name in taken])
    assert groups == [
        ["dropout=0.1", "dropout=0.4", "dropout=0.5"], ["dropout=0.2"], ["dropout=0.3"], ["d_ff=256"], ["peak_lr=0.001"],
    ]  # fmt: skip


def test_an_error_of_the_worker_itself_ends_it(fake_sweep, monkeypatch):
    sweep = fake_sweep({"one": "ok"})
    monkeypatch.setattr("t2t_flax.sweeps.worker.attempt", lambda *a, **k: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        sweep.work()
