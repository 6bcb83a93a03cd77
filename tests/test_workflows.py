"""The GitHub workflows: pinned actions, least permissions, and a release only of the version in version.py."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from t2t_flax.version import __version__

ROOT = Path(__file__).parents[1]
FILES = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
WRITES = {("release", "github"): {"contents"}, ("release", "pypi"): {"id-token"}, ("release", "image"): {"packages"}}
"""What a job may write: a release, PyPI, the registry of images."""


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_actions_are_pinned_to_a_commit(path):
    """A tag can be moved to other code. The comment says which release the commit is; PyPI's is an exact release."""
    for action in re.findall(r"uses: (.+)", path.read_text()):
        if not action.startswith("./"):
            version = r"v\d+\.\d+\.\d+"
            commit = version if action.startswith("pypa/") else rf"[0-9a-f]{{40}}  # {version}"
            assert re.fullmatch(rf"[\w-]+/[\w-]+@{commit}", action), action


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_jobs_may_write_only_what_they_publish(path):
    workflow = yaml.safe_load(path.read_text())
    assert workflow["permissions"] == {"contents": "read"}
    for name, job in workflow["jobs"].items():
        written = {scope for scope, access in job.get("permissions", {}).items() if access == "write"}
        assert written == WRITES.get((path.stem, name), set()), name
        assert "uses" in job or job["timeout-minutes"] <= 90


def release_step(tag: str, folder: Path) -> subprocess.CompletedProcess:
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())["jobs"]
    (script,) = (step["run"] for step in jobs["build"]["steps"] if step.get("name") == "The tag is the version")
    (folder / "t2t_flax").mkdir()
    shutil.copy(ROOT / "t2t_flax" / "version.py", folder / "t2t_flax")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = {"GITHUB_REF_NAME": tag, "PATH": path}
    return subprocess.run(["bash", "-e", "-c", script], cwd=folder, env=env, capture_output=True, text=True)


def test_the_tag_must_be_the_version(tmp_path):
    assert release_step(f"v{__version__}", tmp_path).returncode == 0


@pytest.mark.parametrize("tag", ["v9.9.9", __version__, f"v{__version__}rc1"])
def test_another_tag_ends_the_release(tag, tmp_path):
    done = release_step(tag, tmp_path)
    assert done.returncode == 1 and f"the tag is {tag}" in done.stdout


def test_everything_is_published_after_the_check_and_the_tests():
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())["jobs"]
    assert all(job["needs"] == "build" for name, job in jobs.items() if name not in ("test", "build"))
    assert jobs["build"]["needs"] == "test" and jobs["test"] == {"uses": "./.github/workflows/ci.yml"}
    triggers = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())[True]  # YAML 1.1 reads "on" so
    assert "workflow_call" in triggers and triggers["push"] == {"branches": ["**"]}, "a tag is tested once"
