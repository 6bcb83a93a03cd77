"""`serve` on the command line: addresses, mistakes, and the end by a signal."""

import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest
from helpers.processes import environment

from t2t_flax.__main__ import main
from t2t_flax.extensions.serving import command
from t2t_flax.extensions.serving.command import model_names

for package in ("fastapi", "uvicorn", "prometheus_client", "httpx"):
    pytest.importorskip(package, reason="needs the extra serve and httpx")
from helpers.http_server import wait_for  # noqa: E402


def error_of(capsys, *words) -> str:
    assert main(["serve", *words]) == 2
    return capsys.readouterr().err


def test_port_in_use_is_one_line(workdir, capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        text = error_of(capsys, f"--workdir={workdir}", f"--port={port}")
    assert text == (
        f"t2t_flax serve: port {port} of 127.0.0.1 is in use: stop the program that has it, or give --port=N.\n"
    )


def test_wrong_use_is_refused(workdir, tmp_path, capsys):
    assert "holds no run" in error_of(capsys, f"--workdir={tmp_path}")
    assert "must be at most 65535" in error_of(capsys, f"--workdir={workdir}", "--port=70000")
    assert "Give another --host or --port" in error_of(capsys, f"--workdir={workdir}", "--host=203.0.113.1", "--port=0")
    assert "--best and --step" in error_of(capsys, f"--workdir={workdir}", "--best", "--step=1")
    assert "than the one of --step" in error_of(capsys, f"--workdir={workdir}", "--reload", "--step=2")
    assert "No such file" in error_of(capsys, f"--workdir={workdir}", f"--api-keys={tmp_path / 'none'}")
    assert "Is a directory" in error_of(capsys, f"--workdir={workdir}", f"--access-log={tmp_path}")


@pytest.mark.parametrize(
    "flag, right, wrong",
    [
        ("--allowed-host", ["*", "*.example.org", "Example.org", "[::1]"], ["*example.org", "a.*", "a.org:80"]),
        (
            "--cors-origin",
            ["*", "null", "https://example.org", "http://[::1]:8000"],
            ["example.org", "https://example.org/", "https://Example.org", "https://*.example.org"],
        ),
        ("--trusted-proxy", ["10.0.0.1", "10.0.0.0/8", "::1", "fd00::/8"], ["proxy", "10.0.0.1/8", "10.0.0.1:80", "*"]),
    ],
)
def test_a_value_that_nothing_would_match_is_refused(flag, right, wrong, workdir, capsys):
    """The last two words end the command before it starts."""
    for value in right:
        text = error_of(capsys, f"--workdir={workdir}", f"{flag}={value}", "--reload", "--step=2")
        assert "than the one of --step" in text
    for value in wrong:
        assert f"{flag}={value}: expected" in error_of(capsys, f"--workdir={workdir}", f"{flag}={value}")


def test_missing_package_is_named_with_its_installation(workdir, capsys, monkeypatch):
    monkeypatch.setattr(command.importlib.util, "find_spec", lambda name: None if name == "uvicorn" else object())
    text = error_of(capsys, f"--workdir={workdir}")
    assert "serve needs the package uvicorn: pip install -e '.[serve]'" in text


def test_names_of_models_are_unique():
    assert model_names(["runs/toy", "other/toy/", "pretrained:toy", "big"]) == ["toy", "toy-2", "toy-3", "big"]


def test_name_of_a_relative_folder_is_its_own(tmp_path, monkeypatch):
    (tmp_path / "here" / "below").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here")
    assert model_names([".", "below/..", "./below/", "gs://bucket/runs/far/", "/"]) == [
        "here",
        "here-2",
        "below",
        "far",
        "run",
    ]


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=150) as answer:
        return answer.read().decode()


def is_ready(url: str) -> bool:
    try:
        return "ready" in get(f"{url}/ready")
    except urllib.error.HTTPError as error:
        assert error.code == 503
        return False


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_signal_ends_the_server_with_exit_code_0(workdir, number, tmp_path):
    words = [f"--workdir={workdir}", "--port=0", "--max-batch=1", "--config.decode.beam_size=1"]
    log = (tmp_path / "log").open("w")
    with subprocess.Popen(
        [sys.executable, "-m", "t2t_flax", "serve", *words], env=environment(), stdout=subprocess.PIPE, stderr=log, text=True
    ) as server:  # fmt: skip
        try:
            url = re.fullmatch(r"listening on (http://127.0.0.1:\d+)\n", server.stdout.readline())[1]
            wait_for(lambda: is_ready(url), "ready server", 400)
            headers = {"Content-Type": "application/json"}
            asked = urllib.request.Request(f"{url}/api/translate", b'{"text": "Yes."}', headers)
            assert '"model":"tiny"' in urllib.request.urlopen(asked).read().decode()
            server.send_signal(number)
            assert server.wait(250) == 0
        finally:
            server.kill()
    text = (tmp_path / "log").read_text()
    assert "tiny: ready (step 2; jax " in text and "Traceback" not in text, text


@pytest.mark.slow
def test_two_signals_while_the_model_is_loaded_end_the_server_with_exit_code_0(workdir, tmp_path):
    words = [f"--workdir={workdir}", "--port=0", "--max-batch=1"]
    kept_nowhere = environment() | {"JAX_COMPILATION_CACHE_DIR": str(tmp_path / "programs")}
    log = (tmp_path / "log").open("w")
    with subprocess.Popen(
        [sys.executable, "-m", "t2t_flax", "serve", *words], env=kept_nowhere, stdout=subprocess.PIPE, stderr=log, text=True
    ) as server:  # fmt: skip
        try:
            url = re.fullmatch(r"listening on (http://127.0.0.1:\d+)\n", server.stdout.readline())[1]
            wait_for(lambda: answers(url), "server", 400)
            for _ in range(2):
                server.send_signal(signal.SIGTERM)
                time.sleep(0.2)
            assert server.wait(250) == 0
        finally:
            server.kill()
    assert "Traceback" not in (tmp_path / "log").read_text()


def answers(url: str) -> bool:
    try:
        return "ok" in get(f"{url}/health")
    except OSError:
        return False


def test_damaged_run_ends_the_server_with_exit_code_2(workdir, tmp_path, capsys):
    """The config is there, so that the server starts; the parameters are not."""
    (tmp_path / "config.json").write_bytes((workdir / "config.json").read_bytes())
    (tmp_path / "tokenizer").symlink_to(workdir / "tokenizer")
    assert "checkpoint" in error_of(capsys, f"--workdir={tmp_path}", "--port=0", "--config.mesh.data=-1")
