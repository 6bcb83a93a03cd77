"""The local copy of a run's files, uploaded to an object store while trackers write to it."""

import sqlite3

import pytest

from t2t_flax.extensions.storage.mirror import Mirror


@pytest.mark.smoke
def test_only_whole_files_are_uploaded(tmp_path):
    """Trackers replace files, and SQLite logs beside its file, while another thread uploads."""
    mirror = Mirror(tmp_path / "remote")
    for name in ("metrics.jsonl", "wandb.json.partial-0123", "mlflow.db-journal", "mlflow.db-wal"):
        (mirror.local / name).write_text("{}\n")
    connection = sqlite3.connect(mirror.local / "mlflow.db")
    connection.execute("create table t (x)")
    connection.execute("insert into t values (1)")
    connection.commit()
    mirror.close()
    assert sorted(path.name for path in (tmp_path / "remote").iterdir()) == [
        "metrics.jsonl",
        "mlflow.db",
    ]
    assert sqlite3.connect(tmp_path / "remote" / "mlflow.db").execute(
        "select x from t"
    ).fetchall() == [(1,)]
    connection.close()


def test_a_file_that_disappears_meanwhile_stops_nothing(tmp_path, monkeypatch):
    mirror = Mirror(tmp_path / "remote")
    for name in ("a", "b"):
        (mirror.local / name).write_text(name)
    real = mirror._send_file

    def replaced(path):
        if path.name == "a":
            path.unlink()
            path.stat()
        real(path)

    monkeypatch.setattr(mirror, "_send_file", replaced)
    mirror.close()
    assert [path.name for path in (tmp_path / "remote").iterdir()] == ["b"]
