"""Eight simulated CPU devices for all tests, and the real data where the environment names it."""

import os
from pathlib import Path

import pytest

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["JAX_NUM_CPU_DEVICES"] = "8"


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder with multi30k/ and newstest/; tests that need it skip where T2T_FLAX_DATA does not name it."""
    folder = os.environ.get("T2T_FLAX_DATA", "")
    if not folder or not Path(folder).is_dir():
        pytest.skip("T2T_FLAX_DATA names no data folder")
    return Path(folder)


@pytest.fixture(scope="session")
def cache(tmp_path_factory) -> Path:
    """A folder of token stores that tests share."""
    return tmp_path_factory.mktemp("cache")
