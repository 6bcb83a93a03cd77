"""Models pushed to and pulled from the Hugging Face Hub.

Its own client, against a stand-in of its HTTP API.
"""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import fake_hub
from helpers.refusals import assert_names, refused

from t2t_flax.extensions.interop import hub as hub_lib

FILES = {
    "README.md": b"---\nlicense: mit\n---\n",
    "model.bin": bytes(range(256)) * 40,
    "tokenizer/source.json": b"{}",
}
READ = {name: data for name, data in FILES.items() if name != "README.md"}
MARIAN = {
    "config.json": b'{"model_type": "marian"}',
    "pytorch_model.bin": b"weights",
    "source.spm": b"s",
}
PROGRAM = """
import sys
from t2t_flax.errors import UserError
from t2t_flax.extensions.interop import hub
try:
    print("OUT", {"push": hub.push, "pull": hub.pull}[sys.argv[1]](*sys.argv[2:]))
except UserError as error:
    print("USER ERROR", error)
"""


@pytest.fixture(scope="module")
def server():
    pytest.importorskip("huggingface_hub", reason="needs the extra hf")
    with fake_hub.serve() as (hub, address):
        yield hub, address


@pytest.fixture
def client(server, tmp_path):
    """Run `push` or `pull` in a new process: the client reads its variables at import."""

    def run(*words, **variables):
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "HUGGING"))}
        environment |= {
            "HF_ENDPOINT": server[1],
            "HF_TOKEN": fake_hub.TOKEN,
            "HF_HOME": str(tmp_path / "hf"),
        }
        environment |= {
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_DISABLE_XET": "1",
        }
        environment = {k: v for k, v in (environment | variables).items() if v is not None}
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, *map(str, words)],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip().splitlines()[-1]

    return run


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "model"
    write(path, FILES)
    return path


def write(path, files):
    for name, data in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(data)


def read(path):
    return {str(f.relative_to(path)): f.read_bytes() for f in Path(path).rglob("*") if f.is_file()}


def test_pushed_folder_is_pulled_again_also_by_revision_and_from_the_cache(server, client, folder):
    hub, address = server
    assert client("push", folder, "hub:writer/toy").endswith("/writer/toy")
    repo = hub.repos["writer/toy"]
    assert repo["private"] and hub.find("writer/toy", "main")[1] == {".gitattributes": b""} | FILES
    (first,) = [sha for sha, files in repo["commits"].items() if "model.bin" in files]

    write(
        folder,
        {
            "model.bin": b"second",
            "weights.h5": b"of another framework",
            "notes/data.parquet": b"more",
        },
    )
    assert client("push", folder, "hub:writer/toy").startswith("OUT ")  # the repository exists
    pulled = client("pull", "hub:writer/toy").removeprefix("OUT ")
    assert read(pulled) == READ | {"model.bin": b"second"}
    old = client("pull", f"hub:writer/toy@{first}").removeprefix("OUT ")
    assert read(old) == READ
    assert client("pull", "hub:writer/toy", HF_HUB_OFFLINE="1") == f"OUT {pulled}"
    assert_names(
        client("pull", "hub:writer/other", HF_HUB_OFFLINE="1"), "USER ERROR", "hub:writer/other"
    )


def test_of_the_weights_in_a_repository_one_file_is_downloaded(server, client):
    hub, _ = server
    hub.repos |= {name: {"private": False, "commits": {}} for name in ("opus/old", "opus/both")}
    hub.commit(
        "opus/old", MARIAN | {"README.md": b"card", "onnx/model.onnx": b"o", "tf_model.h5": b"h"}
    )
    hub.commit("opus/both", MARIAN | {"model.safetensors": b"weights"})
    assert read(client("pull", "hub:opus/old").removeprefix("OUT ")) == MARIAN
    first = client("pull", "hub:opus/both")
    names = set(read(first.removeprefix("OUT ")))
    assert names == {"config.json", "model.safetensors", "source.spm"}
    assert client("pull", "hub:opus/both", HF_HUB_OFFLINE="1") == first
    hub.repos["opus/none"] = {"private": False, "commits": {}}
    hub.commit("opus/none", {"README.md": b"card", "tf_model.h5": b"h"})
    assert_names(client("pull", "hub:opus/none"), "USER ERROR", "hub:opus/none", "config.json")


def test_errors_of_a_pull_are_one_line(client):
    for name in ("hub:writer/none", "hub:writer/toy@nothing"):
        assert_names(client("pull", name), "USER ERROR", f"--from={name}")


def test_errors_of_a_push_keep_the_folder(server, client, folder):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        nobody = f"http://127.0.0.1:{unused.getsockname()[1]}"
    cases = [
        ("hub:other/toy", {}, "permission"),
        ("hub:writer/toy", {"HF_TOKEN": "hf_wrong"}, "token"),
        ("hub:writer/toy", {"HF_ENDPOINT": nobody}, "reached"),
        ("hub:writer/to--y", {}, "hub:writer/to--y"),
    ]
    for name, variables, cause in cases:
        line = client("push", folder, name, **variables)
        assert_names(
            line, "USER ERROR", f"--push={name}", cause, "`hf upload", f"{folder} --private`"
        )
    assert_names(
        client("push", folder, "hub:writer/toy", HF_TOKEN=None), "USER ERROR", "auth login`"
    )
    assert read(folder) == FILES


@pytest.mark.parametrize(
    "name", ["hub:", "hub:toy", "hub:a/b/c", "hub:a b/c", "hub:../x", "hub:a/b@", "toy"]
)
def test_wrong_names_are_refused_before_anything_is_done(name):
    for call in (hub_lib.check_push, hub_lib.pull):
        with refused("hub:USER/NAME"):
            call(name)


def test_a_push_names_no_revision():
    with refused("@v1"):
        hub_lib.check_push("hub:a/b@v1")


def test_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with refused("huggingface_hub", ".[hf]"):
        hub_lib.pull("hub:a/b")
