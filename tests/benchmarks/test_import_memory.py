"""The model of the import's benchmark."""

import jax

import t2t_flax
from benchmarks import import_memory
from t2t_flax.__main__ import main


def test_import_of_the_model_keeps_all_weights(monkeypatch, tmp_path):
    monkeypatch.setattr(import_memory, "ROWS", 256)  # a multiple of 128 is not padded
    folder = tmp_path / "model"
    folder.mkdir()
    size = import_memory.write_model(folder, d_model=64, d_ff=96, layers=2)
    assert main(["import", f"--from={folder}", f"--workdir={tmp_path / 'run'}"]) == 0
    params = t2t_flax.load(tmp_path / "run").params
    assert sum(x.nbytes for x in jax.tree.leaves(params)) == size
