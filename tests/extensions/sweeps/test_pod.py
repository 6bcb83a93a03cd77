"""Workers that are pods, with threads as hosts and `fake_train.py` as training."""

import signal
import socket
import threading
import time
from types import SimpleNamespace

import pytest
from fake_sweep import TOY, FakeSweep
from helpers.thread_groups import run_processes, run_threads, thread_groups, wait_until

from t2t_flax.cli import arguments
from t2t_flax.errors import DIVERGED, OK, STOPPED, USER_ERROR, UserError
from t2t_flax.extensions.sweeps import command
from t2t_flax.extensions.sweeps import pod as pod_lib
from t2t_flax.extensions.sweeps.pod import PORTS, Pod, free_port, pod_exit_code
from t2t_flax.extensions.sweeps.resources import Resources
from t2t_flax.extensions.sweeps.worker import TrialQueue


class FakePod(FakeSweep):
    """A sweep whose worker has `count` hosts; `stops[i]` is set where host i gets a signal."""

    def __init__(self, path, behaviours, count=2):
        super().__init__(path, behaviours)
        _, self.groups = thread_groups(count)
        self.stops = [threading.Event() for _ in range(count)]

    def run(self, **options) -> list[int]:
        """Runs the worker; returns the exit codes of its hosts."""

        def work(group):
            threading.current_thread().name = f"host {group.index}"
            pod, stop = Pod(group, "127.0.0.1:12345"), self.stops[group.index]
            if not group.is_lead:
                return pod.follow(self.folder, None, stop)
            worker = self.worker(stop=stop, **options)
            worker.start = pod.start
            worker.run()
            code = STOPPED if stop.is_set() else OK
            pod.end(code)
            return code

        return run_threads(work, [(group,) for group in self.groups])


@pytest.fixture
def fake_pod(tmp_path, monkeypatch):
    monkeypatch.setattr(pod_lib, "REPORT_INTERVAL", 0.05)

    def make(behaviours, count=2):
        pod = FakePod(tmp_path / "sweep", behaviours, count)
        monkeypatch.setattr("t2t_flax.extensions.sweeps.attempts.training_command", pod.training_command)
        return pod

    return make


@pytest.mark.parametrize("count", [2, 3])
def test_every_trial_trains_once_on_every_host(fake_pod, count):
    pod = fake_pod({"one": "ok", "two": "ok"}, count)
    assert pod.run() == [OK] * count
    assert pod.states() == ["complete", "complete"]
    for name in pod.names:
        assert pod.starts(name) == count and pod.folder.status(name).attempts == 1
        logs = [pod.folder.log(name, i).read_text() for i in range(count)]
        assert all("alone  training ok" in log for log in logs)
        assert [log.split("process ")[1].split()[0] for log in logs] == [f"{i}/{count}" for i in range(count)]
        assert len({log.split("coordinator ")[1].split()[0] for log in logs}) == 1


def test_failing_trial_is_retried_on_all_hosts_and_the_next_ones_train(fake_pod):
    pod = fake_pod({"bad": "fail", "wrong": "mistake", "wild": "diverge", "good": "ok"})
    assert pod.run(retries=1) == [OK, OK]
    assert pod.states() == ["failed", "failed", "failed", "complete"]
    assert [pod.starts(name) for name in pod.names] == [4, 2, 2, 2]
    assert pod.folder.status("wrong,seed=0").reason == "user error"


@pytest.mark.parametrize("host", [0, 1])
def test_signal_to_one_host_stops_its_training_and_the_claim_is_released(fake_pod, host):
    """`RunSupervisor` tells all processes of a signal, after up to a second; the trainings may have ended by then."""
    pod = fake_pod({"slow": "long", "other": "ok"})

    def stop():
        wait_until(lambda: (pod.folder.workdir("slow,seed=0") / "starts").exists() and pod.starts("slow,seed=0") == 2)
        pod.stops[host].set()
        time.sleep(1.0)
        pod.stops[1 - host].set()

    thread = threading.Thread(target=stop)
    thread.start()
    assert pod.run() == [STOPPED, STOPPED]
    thread.join()
    assert pod.states() == ["stopped", "waiting"] and pod.folder.holder("slow,seed=0") is None
    status = pod.folder.status("slow,seed=0")
    assert (status.attempts, status.unresolved, status.failures) == (1, 0, 0)


class PruneAtOnce(TrialQueue):
    def __init__(self, names, ready):
        super().__init__(names)
        self._ready = ready

    def should_prune(self, name):
        return self._ready()


def test_pruned_trial_ends_on_all_hosts(fake_pod):
    """Process 0 stops its training, and that tells the others."""
    pod = fake_pod({"slow": "long"})
    starts = pod.folder.workdir("slow,seed=0") / "starts"
    queue = PruneAtOnce(pod.names, lambda: starts.exists() and pod.starts("slow,seed=0") == 2)
    assert pod.run(queue=queue) == [OK, OK]
    status = pod.folder.status("slow,seed=0")
    assert status.outcome == "pruned" and status.attempts == 1


@pytest.mark.parametrize("end, state", [("fail", "failed"), ("ok", "complete"), ("75", "failed")])
def test_training_that_hangs_on_one_host_is_killed_after_its_end_on_another(fake_pod, monkeypatch, end, state):
    monkeypatch.setattr(pod_lib, "GRACE", 1.0)
    pod = fake_pod({"half": "ok"})
    command = pod.training_command

    def ends_on_host_1(folder, names, resources):
        *words, _ = command(folder, names, resources)
        return [*words, end if threading.current_thread().name == "host 1" else "hang"]

    monkeypatch.setattr("t2t_flax.extensions.sweeps.attempts.training_command", ends_on_host_1)
    assert pod.run(retries=0) == [OK, OK]
    assert pod.states() == [state]
    if end == "fail":
        assert "exit code 1" in pod.folder.status("half,seed=0").reason
        cause = pod.folder.log("half,seed=0", 1)
        assert "Traceback: out of something" in cause.read_text() and any(str(cause) in line for line in pod.messages)


def worker_errors(tmp_path, folders, *flags) -> list[str]:
    """The error of each process of a worker whose process i has the --workdir `folders[i]`."""

    def work(group):
        words = [f"--config={TOY}", f"--workdir={tmp_path / folders[group.index]}", *flags]
        args, fixed = arguments.parse(command._parser(), words)
        supervisor = SimpleNamespace(group=group, stop_requested=threading.Event())
        try:  # raised here, it would end the others first
            return command._work(args, fixed, [Resources()], supervisor)
        except UserError as error:
            return error

    errors = run_processes(2, work)
    assert all(isinstance(error, UserError) for error in errors), errors
    return [str(error) for error in errors]


def test_flags_of_one_host_and_other_folders_are_refused(tmp_path, monkeypatch):
    first, second = worker_errors(tmp_path, ["s", "s"], "--parallel=2")
    assert "--parallel and --stack divide one host" in first == second and not (tmp_path / "s").exists()
    monkeypatch.setattr("t2t_flax.distributed.coordination.appears", lambda path: path.exists())
    for error in worker_errors(tmp_path, ["a", "b"]):
        assert "process 1 on" in error and "is not shared" in error


@pytest.mark.parametrize("codes, expected", [
    ([0, 0], OK), ([75, 75], STOPPED), ([0, 75], STOPPED), ([75, 1], 1), ([-9, 75], -9), ([1, 2], USER_ERROR),
    ([1, 3], DIVERGED), ([75, -signal.SIGTERM], -signal.SIGTERM),
])  # fmt: skip
def test_exit_code_of_a_training_on_several_hosts(codes, expected):
    assert pod_exit_code(codes) == expected


def test_ports_of_trainings_are_near_the_coordinator():
    with socket.socket() as used:
        used.bind(("", 0))
        used.listen()
        near = used.getsockname()[1] - 1
        if near + PORTS < 2**16:
            ports = {free_port(f"host:{near}") for _ in range(300)}
            assert used.getsockname()[1] not in ports and ports <= set(range(near + 1, near + PORTS + 1))
    assert 2**16 - PORTS <= free_port("host:65500") < 2**16


def test_bind_address_gets_the_port_of_the_training(fake_pod, monkeypatch):
    monkeypatch.setenv("JAX_COORDINATOR_BIND_ADDRESS", "0.0.0.0:12345")
    seen = []
    start = pod_lib.start_training
    monkeypatch.setattr(
        pod_lib, "start_training", lambda f, n, own, *a: seen.append(own.environment) or start(f, n, own, *a)
    )
    fake_pod({"one": "ok"}).run()
    port = seen[0]["JAX_COORDINATOR_ADDRESS"].rpartition(":")[2]
    assert seen[0]["JAX_COORDINATOR_BIND_ADDRESS"] == f"0.0.0.0:{port}" and port != "12345"
