"""Different evaluations never overwrite each other's records; repeated ones reuse theirs."""

import dataclasses
import json
import shutil

import jax
import pytest
from etils import epath
from helpers.records import without_search
from helpers.refusals import assert_names, refused, refused_command
from helpers.runs import start, tiny_run

from t2t_flax.__main__ import main
from t2t_flax.data.sources import toy
from t2t_flax.data.splits import sets_of, split_source
from t2t_flax.evaluation.evaluate import evaluate, path_of, summary
from t2t_flax.evaluation.restore import load, read_config, stored_config
from t2t_flax.tasks import task_of
from t2t_flax.training import loop

HERE = {"mesh.data": "-1"}  # all simulated devices
QUICK = dict(
    eval=dict(every_steps=2, bootstrap_samples=0),
    decode=dict(beam_size=1, max_length_offset=2, max_length_ratio=0.2),
)


@pytest.fixture(scope="module")
def run(tmp_path_factory, cache):
    workdir = tmp_path_factory.mktemp("records") / "run"
    checkpoint, data = dict(every_steps=2, keep_last=2), dict(test="toy:test:6")
    config = tiny_run(workdir, steps=4, checkpoint=checkpoint, data=data, **QUICK)
    loop.train(start(config, workdir, cache), score=None)
    return workdir


@pytest.fixture
def copy(run, tmp_path, monkeypatch):
    without_search(monkeypatch)
    return shutil.copytree(run, tmp_path / "copy", ignore=shutil.ignore_patterns("eval"))


@pytest.fixture
def text(tmp_path):
    """Return a function that writes the first n pairs to files and returns their spec."""

    def write(name: str, n: int, split: str = "test") -> str:
        pairs = list(toy.pairs(split, n))
        for side, end in enumerate(("en", "de")):
            (tmp_path / f"{name}.{end}").write_text("".join(pair[side] + "\n" for pair in pairs))
        return f"{tmp_path / name}.en,{tmp_path / name}.de"

    return write


def names(workdir) -> list[str]:
    return sorted(path.stem for path in (workdir / "eval").glob("*.json"))


def evaluated(workdir, split="test", overrides=None, **choice) -> str:
    loaded = load(workdir, overrides=HERE | (overrides or {}), **choice)
    record, _ = evaluate(loaded, split)
    path = path_of(loaded, record)
    assert path.exists() and record["references"] == f"{path.stem}.ref.txt"
    return path.stem


@pytest.mark.slow
def test_different_evaluations_never_share_a_record(copy, text):
    """Another text, search or choice of checkpoints has its own record and texts."""
    default = evaluated(copy)
    files = {path: path.read_bytes() for path in (copy / "eval").iterdir()}
    other_text, few = {"data.test": text("o", 2)}, {"decode.beam_size": "2"}
    variants = [
        ("test", {}, dict(average=2)),
        ("test", {}, dict(best=True)),
        ("test", {}, dict(step=2)),
        ("test", other_text, {}),
        ("test", few, {}),
        ("test", other_text | few, {}),
        ("valid", few, {}),
        ("test", {"train.precision": "bfloat16"}, {}),
    ]
    records = [default] + [
        evaluated(copy, split, overrides, **choice) for split, overrides, choice in variants
    ]
    assert len(set(records)) == len(records) and sorted(records) == names(copy)
    assert records[:4] == ["test-4", "test-4-mean2", "test-4-best", "test-2"]
    assert all(name.startswith(("test-4-", "valid-4-")) for name in records[4:])
    assert all(path.read_bytes() == content for path, content in files.items())
    assert len(list((copy / "eval").iterdir())) == 3 * len(records)


def test_repeated_evaluation_reuses_its_record(copy, text):
    other_text = {"data.test": text("o", 2)}
    first = [
        evaluated(copy),
        evaluated(copy, overrides=other_text),
        evaluated(copy, overrides={"decode.alpha": "1.0"}),
    ]
    text("elsewhere", 2)  # the same text at another path
    moved = {"data.test": other_text["data.test"].replace("/o.", "/elsewhere.")}
    again = [
        evaluated(copy),
        evaluated(copy, overrides=moved),
        evaluated(copy, overrides={"decode.alpha": "1.0"}),
    ]
    assert again == first and names(copy) == sorted(first)
    # Keys that cannot change a score.
    assert (
        evaluated(copy, overrides={"decode.batch_size": "5", "data.cache": str(copy / "else")})
        == "test-4"
    )
    # Files and the built-in corpus have different digests.
    assert evaluated(copy, overrides={"data.test": text("same", 6)}) != "test-4"


def test_a_name_that_another_evaluation_uses_is_not_reused(copy):
    record, _ = evaluate(load(copy, overrides=HERE), "test")
    path = copy / "eval" / "test-4.json"
    path.write_text(json.dumps(record | {"identity": "0" * 64}))
    name = evaluated(copy)
    assert name.startswith("test-4-") and json.loads(path.read_text())["identity"] == "0" * 64
    assert evaluated(copy) == name
    path.write_text("{")  # not a record
    (copy / "eval" / f"{name}.json").unlink()
    assert evaluated(copy) == "test-4"


def test_records_of_several_runs_in_one_folder(copy, tmp_path):
    """Of the same config and update: they differ in the parameters alone."""
    first = dataclasses.replace(
        load(copy, overrides=HERE), workdir=epath.Path(tmp_path / "records"), elsewhere=True
    )
    second = first.with_params(jax.tree.map(lambda x: 1.5 * x, first.params))
    paths = [path_of(run, evaluate(run, "test")[0]) for run in (first, second, first)]
    assert paths[0] == paths[2] != paths[1] and len(names(tmp_path / "records")) == 2
    assert paths[0].name == "test-4.json", "the first has the plain name"


def test_best_of_another_metric_than_the_runs_is_refused(copy):
    with refused("--best", "config.eval.metric", "nll", "bleu"):
        load(
            copy,
            best=True,
            overrides=HERE | {"eval.metric": "bleu", "eval.decode_every_steps": "2"},
        )


def test_evaluation_when_the_runs_own_text_is_missing(copy, text, tmp_path):
    config = json.loads((copy / "config.json").read_text())
    config["data"] |= {"test": "here.en,here.de", "root": "/nowhere"}
    (copy / "config.json").write_text(json.dumps(config))
    text("here", 2), text("there", 2, "valid")
    assert evaluated(copy, overrides={"data.root": str(tmp_path)}) == "test-4"
    overrides = {"data.root": str(tmp_path), "data.test": "there.en,there.de"}
    assert evaluated(copy, overrides=overrides).startswith("test-4-")


def test_each_test_set_has_its_own_record(copy, text, capsys):
    sets = f"t16={text('a', 3)}; t17={text('b', 2, 'valid')}"
    command = [
        "evaluate",
        f"--workdir={copy}",
        "--config.mesh.data=-1",
        f"--config.data.test={sets}",
    ]
    assert main(command) == 0
    out = capsys.readouterr().out
    first, second = sorted((copy / "eval").glob("*.json"))
    # Not test sets of the run's own config.
    assert first.stem.startswith("t16-4-") and second.stem.startswith("t17-4-")
    assert out.index(f"record: {first}") < out.index(f"record: {second}")
    assert_names(out, "t16", "3 sentences", "t17", "2 sentences")
    assert json.loads(second.read_text())["split"] == "t17"
    refused_command([*command, "--split=t18"], "'t18'", "config.data.test", "t16", "t17")
    assert names(copy) == [first.stem, second.stem]


def test_missing_test_set_files_explain_the_syntax(copy):
    for spec, split, names in (
        ("lang=en/a,x", "lang", ["config.data.test (lang)", "'en/a,x'"]),
        ("a.en,a.de; b.en,b.de", "test", ["config.data.test", "need names"]),
        ("a=n.en,n.de; b=toy:test:2", "a", ["config.data.test (a)", "'n.en,n.de'"]),
    ):
        config = stored_config(copy, {"data.test": spec})
        assert sets_of(config, "test")[0] == split
        with refused(*names):
            split_source(task_of(config), split)
    with refused("config.data.test", "a, b"):
        split_source(task_of(config), "test")
    with refused("config.data.test"):
        sets_of(stored_config(copy, {"data.test": ""}), "test")


def test_best_is_recorded_and_excludes_other_choices(copy, capsys):
    record, _ = evaluate(load(copy, best=True, overrides=HERE), "test", why="somebody asked")
    checkpoint = record["checkpoint"]
    value = min(
        line["valid_nll"]
        for line in map(json.loads, (copy / "metrics.jsonl").open())
        if "valid_nll" in line
    )
    assert checkpoint["best"]["metric"] == "nll" and checkpoint["best"]["value"] == pytest.approx(
        value, abs=1e-6
    )
    assert checkpoint["why"] == "somebody asked" and "the best by nll" in summary(
        record, task_of(read_config(copy))
    )
    for command in (
        "evaluate",
        "translate",
        "score --source=a --target=b",
        "attend --source=a --output=b",
    ):
        words = [*command.split(), f"--workdir={copy}", "--best"]
        for flag in ("--step=2", "--average=2"):
            refused_command([*words, flag], "--best", flag.split("=")[0])


def test_local_paths_are_never_read_from_a_run(copy, tmp_path):
    """Not data.cache."""
    config = json.loads((copy / "config.json").read_text())
    planted = tmp_path / "planted"
    config["data"] |= {"cache": str(planted), "root": str(planted), "test": "toy:test:4"}
    (copy / "config.json").write_text(json.dumps(config))
    assert stored_config(copy).data.cache == ""
    assert read_config(copy).data.cache == ""
    assert stored_config(copy, {"data.cache": "mine"}).data.cache == "mine"
    evaluated(copy)
    assert not planted.exists() and list((copy / "data").glob("test-*"))
