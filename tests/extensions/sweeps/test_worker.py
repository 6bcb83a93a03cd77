"""Workers: which trial trains next, retries, kills, and several workers on one folder."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from fake_sweep import SWEEP, TOY, FakeSweep

from t2t_flax.errors import UserError
from t2t_flax.extensions.sweeps import attempts
from t2t_flax.extensions.sweeps import worker as worker_lib
from t2t_flax.extensions.sweeps.folder import open_or_create
from t2t_flax.extensions.sweeps.resources import Resources, divide_machine
from t2t_flax.extensions.sweeps.space import concat, over
from t2t_flax.extensions.sweeps.trials import expand
from t2t_flax.extensions.sweeps.worker import count_states


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_for(condition, seconds=200.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_every_trial_trains_once(fake_sweep):
    sweep = fake_sweep({"one": "ok", "two": "ok", "three": "ok"}, seeds=2)
    sweep.work(resources=[Resources(), Resources()])
    sweep.work()
    assert count_states(sweep.folder, sweep.names) == {"complete": 6}
    assert [sweep.starts(name) for name in sweep.names] == [1] * 6


def test_failing_trials_are_retried_and_then_marked_failed(fake_sweep):
    sweep = fake_sweep({"bad": "fail", "wrong": "mistake", "silent": "silent", "flaky": "once", "good": "ok"})
    sweep.work(retries=2)
    assert sweep.states() == ["failed", "failed", "failed", "complete", "complete"]
    assert [sweep.starts(name) for name in sweep.names] == [3, 1, 3, 2, 1]
    messages = "\n".join(sweep.messages)
    assert "out of something" in messages and "there is no file x" in messages, "the end of their logs"
    assert sweep.folder.status("bad,seed=0").reason == "3 attempts failed, the last with exit code 1"
    assert sweep.folder.status("wrong,seed=0").reason == "user error"


def test_retry_reopens_user_errors_or_all_failures(fake_sweep):
    sweep = fake_sweep({"wrong": "mistake", "bad": "fail"})
    sweep.work(retries=0)
    sweep.behaviours["wrong"] = "ok"
    for all_failures, starts in ((False, [2, 1]), (True, [2, 2])):
        for name in sweep.names:
            sweep.folder.retry(name, all_failures=all_failures)
        sweep.work(retries=0)
        assert sweep.states() == ["complete", "failed"] and [sweep.starts(n) for n in sweep.names] == starts


def test_a_trial_that_is_retried_may_train_with_others_again(fake_sweep):
    sweep = fake_sweep({"wrong": "mistake"})
    sweep.work(retries=0)
    (name,) = sweep.names
    sweep.folder.update_status(name, failed_in_stack=True)
    sweep.folder.retry(name, all_failures=False)
    assert not sweep.folder.status(name).failed_in_stack


def test_diverged_trial_fails_without_retry(fake_sweep):
    sweep = fake_sweep({"wild": "diverge", "good": "ok"})
    sweep.work(retries=5)
    for name in sweep.names:
        sweep.folder.retry(name, all_failures=False)
    sweep.work(retries=5)
    assert sweep.states() == ["failed", "complete"] and sweep.starts("wild,seed=0") == 1
    assert sweep.folder.status("wild,seed=0").reason == "update 7: loss nan, gradient norm nan."
    sweep.behaviours["wild"] = "fail"
    sweep.folder.retry("wild,seed=0", all_failures=True)
    sweep.work(retries=0)
    assert "exit code 1" in sweep.folder.status("wild,seed=0").reason, "the marker of the earlier attempt is gone"


def test_cause_of_a_failure_is_stored_if_the_config_has_it(fake_sweep):
    sweep = fake_sweep({"wild": "diverge", "large": "memory", "bad": "fail"})
    sweep.work(retries=1)
    causes = {name: sweep.folder.cause(name) for name in sweep.names}
    assert causes == {"wild,seed=0": "diverged", "large,seed=0": "out of memory", "bad,seed=0": ""}
    assert [sweep.folder.displayed_state(name) for name in sweep.names] == ["diverged", "out of memory", "failed"]
    assert "exit code 1: out of memory" in sweep.folder.status("large,seed=0").reason
    sweep.behaviours["large"] = "fail"
    sweep.folder.retry("large,seed=0", all_failures=True)
    sweep.work(retries=0)
    assert sweep.folder.cause("large,seed=0") == "", "the output of an earlier attempt does not count"


def test_only_the_diverged_trial_of_a_stack_fails(fake_sweep, monkeypatch):
    sweep = fake_sweep({"wild": "diverge", "good": "ok"})
    script = (
        "import sys; from pathlib import Path; wild, good = map(Path, sys.argv[1:]); wild.mkdir(parents=True);"
        'good.mkdir(parents=True); (wild / \'diverged.json\').write_text(\'{"step": 2, "reason": "nan"}\');'
        "(good / 'complete.json').write_text('{}'); sys.exit(3)"
    )

    def training_command(folder, names, resources):
        return [sys.executable, "-S", "-c", script, *(str(folder.workdir(name)) for name in names)]

    monkeypatch.setattr(attempts, "training_command", training_command)
    claims = {name: sweep.folder.claim(name) for name in sweep.names}
    outcomes = sweep.worker().attempt(claims, Resources())
    assert list(outcomes.values()) == ["failed", "complete"]
    assert sweep.folder.status("wild,seed=0").reason == "nan"


def test_failed_stack_counts_no_failure_and_its_trials_train_alone(fake_sweep, monkeypatch):
    sweep = fake_sweep({"one": "ok", "two": "ok"})
    crash = lambda folder, names, resources: [sys.executable, "-S", "-c", "raise SystemExit(1)"]  # noqa: E731
    monkeypatch.setattr(attempts, "training_command", crash)
    claims = {name: sweep.folder.claim(name) for name in sweep.names}
    sweep.worker(retries=0).attempt(claims, Resources())
    assert sweep.states() == ["waiting", "waiting"] and not sweep.folder.can_stack(*sweep.names)
    for claim in claims.values():
        claim.release()


def test_trial_that_keeps_dying_is_marked_failed(fake_sweep, monkeypatch):
    """Exits with 75 although the worker did not stop it: something else does, each time."""
    monkeypatch.setattr(worker_lib, "MAX_UNRESOLVED", 3)
    sweep = fake_sweep({"dying": "75", "good": "ok", "other": "ok"})
    sweep.update_status("dying,seed=0", attempts=1, unresolved=1)  # its worker died with it
    sweep.work()
    assert sweep.folder.state("dying,seed=0") == "failed" and sweep.starts("dying,seed=0") == 2
    started = [text.split(":")[0] for text in sweep.messages if "starts" in text]
    assert started == ["good,seed=0", "other,seed=0", "dying,seed=0", "dying,seed=0"], "it goes last"
    assert "died 3 times in a row" in sweep.folder.log("dying,seed=0").read_text()
    sweep.folder.retry("dying,seed=0", all_failures=True)
    assert sweep.folder.unresolved_attempts("dying,seed=0") == 0


def test_new_checkpoint_resets_the_count_of_unresolved_attempts(fake_sweep):
    sweep = fake_sweep({"one": "ok"})
    sweep.update_status("one,seed=0", attempts=9, unresolved=9, start_step=100)
    (sweep.folder.workdir("one,seed=0") / "checkpoints" / "100").mkdir(parents=True)
    assert sweep.folder.unresolved_attempts("one,seed=0") == 9
    (sweep.folder.workdir("one,seed=0") / "checkpoints" / "200").mkdir()
    assert sweep.folder.unresolved_attempts("one,seed=0") == 0


def test_training_that_gets_the_stop_signal_before_its_worker_has_not_failed(fake_sweep, monkeypatch):
    """SLURM signals all processes of a job; this training has no handler yet."""
    sweep, stop = fake_sweep({"one": "ok"}), threading.Event()
    (name,) = sweep.names

    class Signalled:
        def poll(self):
            stop.set()
            return -signal.SIGTERM

        def terminate(self):
            raise AssertionError("it has ended")

    worker = sweep.worker(retries=0, stop=stop)
    worker.start = lambda *_: Signalled()
    claim = sweep.folder.claim(name)
    assert worker.attempt({name: claim}, Resources()) == {name: "stopped"}
    claim.release()
    status = sweep.folder.status(name)
    assert (status.failures, status.unresolved, status.outcome) == (0, 0, "")


def test_stop_saves_running_trials_and_they_resume_first(fake_sweep):
    sweep = fake_sweep({"first": "ok", "slow": "long", "last": "ok"})
    stop = threading.Event()
    thread = threading.Thread(target=sweep.work, kwargs=dict(stop=stop))
    thread.start()
    wait_for(lambda: (sweep.folder.workdir("slow,seed=0") / "starts").exists())
    stop.set()
    thread.join(200)
    assert sweep.states() == ["complete", "stopped", "waiting"]
    sweep.messages.clear()
    sweep.work()
    assert sweep.messages[0].startswith("slow,seed=0: resumes")
    assert sweep.states() == ["complete"] * 3 and sweep.folder.status("slow,seed=0").failures == 0


def test_training_keeps_the_claim_after_its_worker_dies(fake_sweep):
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


def test_killed_worker_ends_its_trainings_and_another_continues(fake_sweep):
    sweep = fake_sweep({"slow": "long", "other": "ok"})
    script = (
        "import sys; from pathlib import Path; import fake_sweep\n"
        "s = fake_sweep.FakeSweep(Path(sys.argv[1]), {'slow': 'long', 'other': 'ok'})\n"
        "fake_sweep.attempts.training_command = s.training_command\n"
        "s.work()\n"
    )
    tests_folder = Path(__file__).parent
    env = os.environ | {"PYTHONPATH": f"{tests_folder.parents[1]}{os.pathsep}{tests_folder}"}
    worker = subprocess.Popen([sys.executable, "-c", script, str(sweep.folder.path)], env=env)
    starts = sweep.folder.workdir("slow,seed=0") / "starts"
    wait_for(lambda: starts.exists() and starts.read_text().endswith("\n"))
    worker.kill()
    worker.wait()
    training = int(starts.read_text().split()[0])
    wait_for(lambda: not is_running(training))
    assert sweep.folder.status("slow,seed=0").unresolved == 1
    sweep.work()
    assert sweep.states() == ["complete", "complete"] and sweep.starts("slow,seed=0") == 2


def test_two_workers_share_a_folder(fake_sweep):
    behaviours = {f"row{i}": "ok" for i in range(8)}
    sweep = fake_sweep(behaviours)
    other = FakeSweep(sweep.folder.path, behaviours)
    threads = [threading.Thread(target=s.work) for s in (sweep, other)]
    [t.start() for t in threads]
    [t.join(250) for t in threads]
    assert [sweep.starts(name) for name in sweep.names] == [1] * 8
    assert sweep.messages and other.messages


def test_trainings_ignore_the_cluster_and_use_their_cores(fake_sweep):
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        pytest.skip("needs two cores")
    sweep = fake_sweep({"one": "ok", "two": "ok"})
    sweep.work(resources=divide_machine(2))
    logs = [sweep.folder.log(name).read_text() for name in sweep.names]
    assert all("alone 1" in log for log in logs)
    halves = {str(cores[: len(cores) // 2]), str(cores[len(cores) // 2 :])}
    assert {log.split("cores ")[-1].strip() for log in logs} <= halves


def test_stackable_trials_are_claimed_together(tmp_path):
    """At most `stack` trials that differ only in scalars, are at the same update and have not failed."""
    rows = concat(
        over("model.dropout", [0.1, 0.2, 0.3, 0.4, 0.5]), over("model.d_ff", [256]), over("optimizer.peak_lr", [1e-3])
    )
    sweep = FakeSweep(tmp_path / "s", {})
    trials = expand(TOY, {}, rows, 1)
    sweep.folder, _ = open_or_create(tmp_path / "s", SWEEP, trials, extend=True)
    sweep.names = [trial.name for trial in trials]
    sweep.update_status("dropout=0.2,seed=0", attempts=1, failures=1)
    (sweep.folder.workdir("dropout=0.3,seed=0") / "checkpoints" / "250").mkdir(parents=True)
    worker, groups, claimed = sweep.worker(stack=3), [], []
    while claims := worker._claim_next():
        claimed.append(claims)  # held until the end
        groups.append([name.removesuffix(",seed=0") for name in claims])
    assert groups == [
        ["dropout=0.1", "dropout=0.4", "dropout=0.5"], ["dropout=0.2"], ["dropout=0.3"], ["d_ff=256"], ["peak_lr=0.001"],
    ]  # fmt: skip


def test_exception_in_a_worker_ends_it(fake_sweep, monkeypatch):
    sweep = fake_sweep({"one": "ok"})
    monkeypatch.setattr(worker_lib.Worker, "attempt", lambda *a, **k: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        sweep.work()


def test_worker_without_file_locks_is_refused(fake_sweep, monkeypatch):
    import errno
    import fcntl

    sweep = fake_sweep({"a": "ok"})

    def flock(file, operation):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(UserError, match="has no locks .No locks available.*NFS 4"):
        sweep.work()
    with pytest.raises(UserError, match="has no locks"):
        FakeSweep(sweep.folder.path, {"a": "ok"})
    assert sweep.folder.status("a,seed=0").attempts == 0
