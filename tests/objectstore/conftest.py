"""A bucket for the tests of this folder."""

import importlib.util

import pytest
from objectstore.fake_gcs import FakeGcs

needs_gcsfs = pytest.mark.skipif(importlib.util.find_spec("gcsfs") is None, reason="gcsfs is not installed (extra gcs)")


def pytest_collection_modifyitems(items):
    for item in items:
        if "objectstore" in str(item.path) and item.path.name != "test_s3.py":
            item.add_marker(needs_gcsfs)


@pytest.fixture
def gcs(monkeypatch, tmp_path):
    """The server, which gcsfs in this process uses; local copies are under tmp_path/home."""
    import fsspec
    from etils.epath import backend

    with FakeGcs() as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("HOME", str(tmp_path / "home"))
        monkeypatch.setitem(fsspec.config.conf, "gcs", {"token": "anon", "use_listings_cache": False})
        kind = fsspec.get_filesystem_class("gcs")
        kind.clear_instance_cache()
        backend.fsspec_backend._get_filesystem.cache_clear()
        yield server
        backend.fsspec_backend._get_filesystem.cache_clear()
        kind.clear_instance_cache()
