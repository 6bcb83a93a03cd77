"""`serve` on the command line: mistakes, clients, and the end by a signal."""

import asyncio
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request

import pytest
from helpers.processes import environment, wait_for
from helpers.refusals import refused, refused_command

for package in ("fastapi", "python_multipart", "prometheus_client", "uvicorn", "httpx"):
    pytest.importorskip(package, reason="needs the extra serve and httpx")

from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware  # noqa: E402

from benchmarks.serving import entry_of, run_clients  # noqa: E402
from t2t_flax.extensions.serving import command  # noqa: E402
from t2t_flax.extensions.serving.command import read_keys  # noqa: E402
from t2t_flax.extensions.serving.model import model_names  # noqa: E402
from t2t_flax.extensions.serving.server import hosts_of, listen, trusted_proxies  # noqa: E402


def test_wrong_use_is_refused(workdir, tmp_path):
    run = f"--workdir={workdir}"
    refused_command(["serve", f"--workdir={tmp_path}"], str(tmp_path))
    refused_command(["serve", run, "--port=70000"], "--port", "65535")
    refused_command(["serve", run, "--host=203.0.113.1", "--port=0"], "--host", "203.0.113.1")
    refused_command(["serve", run, "--best", "--step=1"], "--best", "--step")
    refused_command(["serve", run, f"--api-keys={tmp_path / 'none'}"], "--api-keys", "none")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused_command(["serve", run, f"--port={port}"], "--port", str(port))


def test_missing_package_is_named_with_its_installation(workdir, monkeypatch):
    monkeypatch.setattr(
        command.importlib.util, "find_spec", lambda name: None if name == "uvicorn" else object()
    )
    refused_command(["serve", f"--workdir={workdir}"], "uvicorn", "[serve]")


def test_damaged_run_ends_the_server(workdir, tmp_path):
    """The config is there, so that the server starts; the parameters are not."""
    (tmp_path / "config.json").write_bytes((workdir / "config.json").read_bytes())
    (tmp_path / "tokenizer").symlink_to(workdir / "tokenizer")
    refused_command(
        ["serve", f"--workdir={tmp_path}", "--port=0", "--config.mesh.data=-1"], "checkpoint"
    )


def test_keys_are_the_lines_of_a_file(tmp_path):
    file = tmp_path / "keys"
    file.write_text("# keys\nfirst\n\nsecond \n")
    assert read_keys(str(file)) == ["first", "second"]
    for text, name in (("\n", "--api-keys"), ("first\nmy hidden", "line 2"), ("hiddén", "line 1")):
        file.write_text(text)
        with refused("--api-keys", name) as caught:
            read_keys(str(file))
        assert "hidd" not in str(caught.value), "a key must not come into a log"


def test_names_of_models_are_unique(tmp_path, monkeypatch):
    assert model_names(["runs/toy", "other/toy/", "pretrained:toy", "big"]) == [
        "toy",
        "toy-2",
        "toy-3",
        "big",
    ]
    (tmp_path / "here" / "below").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here")
    assert model_names([".", "below/..", "./below/", "gs://bucket/runs/far/", "/"]) == [
        "here", "here-2", "below", "far", "run",
    ]  # fmt: skip


def test_hosts_by_which_a_server_may_be_called():
    with listen("127.0.0.1", 0) as here:
        assert {"localhost", "127.0.0.1"} <= set(hosts_of(here))
    with listen("0.0.0.0", 0) as anywhere:
        assert hosts_of(anywhere) == ["*"]


@pytest.mark.parametrize(
    "names, proxy, trusted",
    [
        ("127.0.0.1", "127.0.0.1", True),
        ("127.0.0.1", "::ffff:127.0.0.1", True),
        ("10.0.0.0/8, 2001:db8::1", "::ffff:10.1.2.3", True),
        ("10.0.0.0/8, 2001:db8::1", "2001:db8::1", True),
        ("10.0.0.0/8", "::ffff:11.1.2.3", False),
        ("*", "::ffff:11.1.2.3", True),
    ],
)
def test_proxies_are_known_by_their_address_on_any_socket(names, proxy, trusted):
    seen = []

    async def app(scope, receive, send):
        seen.append(scope["client"][0])

    headers = [(b"x-forwarded-for", b"198.51.100.1")]
    known = ProxyHeadersMiddleware(app, trusted_hosts=trusted_proxies(names))
    asyncio.run(known({"type": "http", "client": (proxy, 1), "headers": headers}, None, None))
    assert seen == ["198.51.100.1" if trusted else proxy]


def is_ready(url: str) -> bool:
    try:
        return urllib.request.urlopen(f"{url}/ready", timeout=150).status == 200
    except urllib.error.HTTPError as error:
        assert error.code == 503
        return False


def test_a_server_answers_libretranslates_client_until_a_signal(workdir, tmp_path):
    words = [f"--workdir={workdir}", "--port=0", "--max-batch=1"]
    log = (tmp_path / "log").open("w")
    with subprocess.Popen(
        [sys.executable, "-m", "t2t_flax", "serve", *words], env=environment(), stdout=subprocess.PIPE, stderr=log, text=True
    ) as server:  # fmt: skip
        try:
            url = re.fullmatch(r"listening on (http://127.0.0.1:\d+)\n", server.stdout.readline())[
                1
            ]
            wait_for(lambda: is_ready(url), "ready server", 400)
            client_of = pytest.importorskip("libretranslatepy").LibreTranslateAPI
            client = client_of(url, "any key")
            assert [(each["code"], each["name"]) for each in client.languages()] == [
                ("de", "German"),
                ("en", "English"),
            ]
            assert isinstance(client.translate("It is late.", "en", "de"), str)
            times = dict(clients=2, seconds=2.0, before=0.0)
            load = asyncio.run(run_clients(url, ["It is late."], ("en", "de"), **times))
            entry = entry_of(load)
            assert (
                entry["requests"] > 0
                and not entry["errors"]
                and 0 < entry["p50_ms"] <= entry["p99_ms"]
            )
            server.send_signal(signal.SIGHUP)
            assert server.wait(250) == 0
        finally:
            server.kill()
    assert "Traceback" not in (tmp_path / "log").read_text()
