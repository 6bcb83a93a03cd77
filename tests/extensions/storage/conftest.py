"""Buckets for the tests of this folder."""

import importlib.util
import urllib.request

import pytest
from helpers.fake_gcs import FakeGcs

needs_gcsfs = pytest.mark.skipif(
    importlib.util.find_spec("gcsfs") is None, reason="gcsfs is not installed (extra gcs)"
)


def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.name.endswith("_gcs.py"):
            item.add_marker(needs_gcsfs)


@pytest.fixture
def gcs(monkeypatch, tmp_path):
    """The server, which gcsfs in this process uses; local copies are under tmp_path/home."""
    if importlib.util.find_spec("gcsfs") is None:  # not imported here: it reads its settings then
        pytest.skip("gcsfs is not installed (extra gcs)")
    import fsspec
    from etils.epath import backend

    with FakeGcs() as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("HOME", str(tmp_path / "home"))
        monkeypatch.setitem(
            fsspec.config.conf, "gcs", {"token": "anon", "use_listings_cache": False}
        )
        kind = fsspec.get_filesystem_class("gcs")
        kind.clear_instance_cache()
        backend.fsspec_backend._get_filesystem.cache_clear()
        yield server
        backend.fsspec_backend._get_filesystem.cache_clear()
        kind.clear_instance_cache()


@pytest.fixture
def s3(monkeypatch, tmp_path):
    """A bucket in moto's server; local copies of stores are under tmp_path/home."""
    pytest.importorskip("s3fs", reason="s3fs is not installed (extra s3)")
    server = pytest.importorskip(
        "moto.server", reason="moto[server] is not installed"
    ).ThreadedMotoServer(port=0)
    server.start()
    host, port = server.get_host_and_port()
    url = f"http://127.0.0.1:{port}"
    urllib.request.urlopen(urllib.request.Request(f"{url}/moto-api/reset", method="POST"))
    monkeypatch.setenv("AWS_ENDPOINT_URL", url)
    for name, value in (
        ("ACCESS_KEY_ID", "any"),
        ("SECRET_ACCESS_KEY", "any"),
        ("DEFAULT_REGION", "us-east-1"),
    ):
        monkeypatch.setenv(f"AWS_{name}", value)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    import s3fs
    from etils.epath import backend

    def forget():
        s3fs.S3FileSystem.clear_instance_cache()
        backend.fsspec_backend._get_filesystem.cache_clear()

    forget()
    yield s3fs.S3FileSystem().mkdir("bucket")
    forget()
    server.stop()
