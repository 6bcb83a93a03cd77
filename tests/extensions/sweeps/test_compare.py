"""Paired comparison of two records: results and refused inputs."""

import csv
import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import hypothesis
import numpy as np
import pytest
from helpers.records import noisy, record
from helpers.refusals import refused, refused_command
from helpers.scores import score_translations, translation_config
from hypothesis import strategies as st
from sacrebleu.significance import PairedTest

from t2t_flax.__main__ import main
from t2t_flax.extensions.sweeps.compare import (
    compare,
    compare_all,
    interval,
    paired_bootstrap,
    two_sided_p,
)
from t2t_flax.tasks import Predictions, task_of
from t2t_flax.tasks.translation import METRICS, recipe

REFERENCES = [
    f"Der {a} Mann sieht {n} Hunde und die Frau sieht ihn."
    for a in ("alte", "junge", "große")
    for n in range(2, 42)
]
BAD = [r if i % 2 else r.replace("die Frau", "das Kind") for i, r in enumerate(REFERENCES)]
GOOD = [r if i % 10 else r.replace("ihn", "sie") for i, r in enumerate(REFERENCES)]


def write(folder, name, hypotheses, references=REFERENCES, **described):
    return record(folder, name, hypotheses, references, **described)


def test_clearly_better_system_is_significant(tmp_path):
    a, b = write(tmp_path, "a", GOOD), write(tmp_path, "b", BAD)
    result, reverse = compare(a, b), compare(b, a)
    assert result["p_value"] < 0.05
    assert 0 < result["interval"]["low"] < result["difference"] < result["interval"]["high"]
    for key, hypotheses in (("a", GOOD), ("b", BAD)):
        expected = score_translations(hypotheses, [REFERENCES], names=["sacrebleu"])["sacrebleu"][
            "score"
        ]
        assert result[key]["score"] == expected
    assert (
        reverse["difference"] == -result["difference"] and reverse["p_value"] == result["p_value"]
    )


def test_metrics_of_sources_which_records_do_not_have_are_not_compared(tmp_path):
    a, b = write(tmp_path, "a", GOOD), write(tmp_path, "b", BAD)
    for path in (a, b):
        content = json.loads(path.read_text())
        content["config"]["constraints"] = {"counted_terms": "terms.tsv"}
        path.write_text(json.dumps(content))
    with refused("term_use"):
        compare(a, b, score="term_use")


@pytest.mark.parametrize("score", [metric.name for metric in METRICS if metric.statistics])
def test_scores_and_signature_are_those_of_sacrebleus_paired_test(tmp_path, monkeypatch, score):
    slightly = [r.replace("und", "oder") if i % 4 == 0 else r for i, r in enumerate(GOOD)]
    a, b = write(tmp_path, "a", GOOD), write(tmp_path, "b", slightly)
    result = compare(a, b, score=score, resamples=200, seed=5)
    chosen = recipe(score, translation_config())
    monkeypatch.setenv("SACREBLEU_SEED", "5")
    systems = [("b", chosen.prepare(slightly)), ("a", chosen.prepare(GOOD))]
    signatures, results = PairedTest(
        systems, {"it": chosen.metric()}, [chosen.prepare(REFERENCES)], "bs", 200
    )()
    (expected,) = (result for name, result in results.items() if name != "System")
    (signature,) = signatures.values()
    assert (result["b"]["score"], result["a"]["score"]) == pytest.approx(
        [r.score for r in expected], abs=1e-4
    )
    assert result["signature"] == str(signature) and "bs:200|seed:5" in result["signature"]
    assert result["method"] == chosen.method


def test_bootstrap_depends_only_on_its_seed(tmp_path, monkeypatch):
    a, b = write(tmp_path, "a", GOOD), write(tmp_path, "b", BAD)
    result = compare(a, b, resamples=50)
    monkeypatch.setenv("SACREBLEU_SEED", "77")
    assert compare(a, b, resamples=50) == result
    assert compare(a, b, resamples=50, seed=1)["interval"] != result["interval"]


def test_tokenized_systems_are_compared_detokenized(tmp_path):
    data = {"pretokenized": True}
    tokens = [[line.replace(".", " .") for line in lines] for lines in (GOOD, BAD, REFERENCES)]
    a, b = (
        write(tmp_path, name, t, references=tokens[2], data=data)
        for name, t in (("a", tokens[0]), ("b", tokens[1]))
    )
    plain = compare(write(tmp_path, "c", GOOD), write(tmp_path, "d", BAD), resamples=50)
    result = compare(a, b, resamples=50)
    for key in ("difference", "interval", "p_value", "signature"):
        assert result[key] == plain[key]
    assert "detokenized" in result["method"]


def test_records_that_cannot_be_compared_are_refused(tmp_path):
    a = write(tmp_path, "a", GOOD)
    b = write(tmp_path, "b", BAD[:60], references=REFERENCES[:60], spec="flickr.en,flickr.de")
    with refused("a.json", "b.json", "flickr.en,flickr.de"):
        compare(a, b)
    with refused("config.data.pretokenized", "c.json"):
        compare(a, write(tmp_path, "c", GOOD, data={"pretokenized": True}))
    (tmp_path / "text.json").write_text("Das ist ein Satz.\n")
    (tmp_path / "other.json").write_text('{"step": 3}')
    for name in ("none.json", "text.json", "other.json"):
        with refused(name):
            compare(a, tmp_path / name)
    with refused(str(tmp_path)):
        compare(a, tmp_path)


def test_missing_or_changed_texts_are_refused(tmp_path):
    a, b = write(tmp_path, "a", GOOD), write(tmp_path, "b", BAD)
    with (tmp_path / "b.hyp.txt").open("a") as file:
        file.write("noch eine Zeile\n")
    with refused("b.hyp.txt", "b.json"):
        compare(a, b)
    (tmp_path / "b.hyp.txt").unlink()
    with refused("b.hyp.txt", "b.json"):
        compare(a, b)
    (tmp_path / "a.ref.txt").unlink()
    with refused("a.ref.txt", "a.json"):
        compare(a, b)


def test_records_are_compared_without_importing_jax(tmp_path):
    a, b = write(tmp_path, "a", GOOD), write(tmp_path, "b", BAD)
    program = "import sys; sys.modules['jax'] = None; from t2t_flax.__main__ import main; sys.exit(main(sys.argv[1:]))"
    process = subprocess.run(
        [sys.executable, "-c", program, "compare", str(a), str(b), "--score=paper_bleu"],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert process.returncode == 0, process.stderr
    assert (
        "paper BLEU" in process.stdout
        and f"{compare(b, a, score='paper_bleu')['difference']:+.2f}" in process.stdout
    )


def finished_run(folder: Path, **records: Path) -> Path:
    """A folder as `train` leaves it, with final records that are those of other folders."""
    for path in records.values():
        (folder / "eval").mkdir(parents=True, exist_ok=True)
        for file in path.parent.glob(f"{path.stem}.*"):
            (folder / "eval" / file.name).write_bytes(file.read_bytes())
    (folder / "complete.json").write_text(
        json.dumps({"records": {name: path.name for name, path in records.items()}})
    )
    return folder


@pytest.mark.smoke
def test_runs_and_records_are_compared_in_a_table(tmp_path, capsys):
    good, bad = write(tmp_path, "good", GOOD), write(tmp_path, "bad", BAD)
    run = finished_run(tmp_path / "run", test=good)
    assert main(["compare", str(run), str(bad), f"--table={tmp_path / 't.csv'}"]) == 0
    result, out = compare(bad, good), capsys.readouterr().out
    assert f"{result['difference']:+.2f} [" in out and "sacreBLEU" in out
    assert ".." not in out.replace(str(tmp_path), "")
    with (tmp_path / "t.csv").open() as file:
        table = list(csv.DictReader(file))
    assert [line["system"] for line in table] == [str(run), str(bad)] and table[0][
        "difference"
    ] == ""
    assert [float(line["score"]) for line in table] == pytest.approx(
        [result[x]["score"] for x in "ba"], abs=0.006
    )


def test_invalid_commands_are_refused(tmp_path):
    a = write(tmp_path, "a", GOOD)
    two_sets = finished_run(tmp_path / "two", first=a, second=a)
    for words, name in (
        ([a], "two systems"),
        ([a, tmp_path], str(tmp_path)),
        ([a, two_sets], "--split=SET"),
        ([a, two_sets, "--split=third"], "third"),
        ([a, a, "--config.decode.beam_size=2"], "--config"),
        ([a, a, "--score=f1"], "f1"),
        ([a, "none.json"], "none.json"),
    ):
        refused_command(["compare", *words], name)
    assert main(["compare", str(a), str(two_sets), "--split=second"]) == 0


def test_records_of_different_tokenizers_cannot_compare_sacrebleu(tmp_path):
    hypotheses, references = (
        ["我们今天去公园散步，天气很好。", "他不喜欢喝咖啡。"],
        ["我们今天去公园走走，天气很好。", "他不爱喝咖啡。"],
    )
    records = {
        name: write(
            tmp_path, name, hypotheses, references, data={"target_language": "zh"}, eval=keys
        )
        for name, keys in (
            ("old", {}),
            ("new", {"sacrebleu_tokenizer": "auto"}),
            ("same", {"sacrebleu_tokenizer": "zh"}),
        )
    }
    with refused("new.json", "old.json", "config.eval.sacrebleu_tokenizer"):
        compare(records["new"], records["old"])
    assert compare(records["new"], records["old"], score="chrf", resamples=50)["p_value"] == 1
    assert "tok:zh" in compare(records["new"], records["same"], resamples=50)["signature"]
    with refused("paper_bleu"):
        compare(records["new"], records["same"], score="paper_bleu")


def test_records_must_have_the_same_set_of_references(tmp_path):
    hypotheses, first = (
        ["Das ist ein Haus.", "Er kommt nicht."] * 10,
        ["Das ist ein Hof.", "Er kommt."] * 10,
    )
    second = ["Das ist ein Haus.", "Er kommt heute nicht."] * 10
    a = write(tmp_path, "a", hypotheses, first, more=[second])
    b = write(
        tmp_path, "b", [line.replace("Haus", "Dach") for line in hypotheses], first, more=[second]
    )
    result = compare(a, b, resamples=100)
    assert result["signature"].startswith("nrefs:2|") and result["difference"] > 0
    assert (
        result["a"]["score"]
        == score_translations(hypotheses, [first, second])["sacrebleu"]["score"]
    )
    (tmp_path / "a.ref2.txt").unlink()
    with refused("a.ref2.txt"):
        compare(a, b)
    c = write(tmp_path, "c", hypotheses, first, more=[second[::-1]])
    with refused("c.json"):
        compare(c, b)


@hypothesis.given(
    st.lists(st.integers(-30, 30), min_size=1, max_size=400), st.floats(-20, 20), st.integers(1, 20)
)
def test_p_below_5_percent_exactly_where_the_interval_excludes_zero(drawn, shift, tests):
    differences = np.array(drawn, float) + shift
    low, high = interval(differences, tests)
    assert low <= high and (two_sided_p(differences, tests) < 0.05) == (not low <= 0 <= high)


def test_interval_is_the_central_95_percent_of_resamples():
    differences = np.random.default_rng(0).normal(size=20_000)
    assert interval(differences) == pytest.approx(
        tuple(np.percentile(differences, (2.5, 97.5))), abs=2e-3
    )
    assert interval(differences, 5) == pytest.approx(
        tuple(np.percentile(differences, (0.5, 99.5))), abs=2e-2
    )
    assert two_sided_p(differences + 1.959964) == pytest.approx(0.05, abs=5e-3)


def null_differences(name, trials, resamples):
    """Resampled differences of equal systems.

    Two noisy versions with each sentence's pair randomly swapped.
    """
    config = translation_config("en")
    metric = task_of(config).metric(name)
    a, b = (
        metric.statistics(Predictions(noisy(REFERENCES, 0.2, n), [REFERENCES]), config)
        for n in (0, 1)
    )
    for i in range(trials):
        swap = np.random.default_rng(i).random((len(REFERENCES), 1)) < 0.5
        first, second = (
            dataclasses.replace(a, values=np.where(swap, *values))
            for values in ((b.values, a.values), (a.values, b.values))
        )
        yield paired_bootstrap(first, second, resamples, seed=i)


@pytest.mark.parametrize(
    "name", ["sacrebleu", *(pytest.param(name, marks=pytest.mark.slow) for name in ("chrf", "ter"))]
)
def test_true_null_is_rejected_in_five_percent_of_trials(name):
    """In 200 trials at rate 0.05, more than 20 rejections occur with probability 0.001."""
    assert (
        1
        <= sum(two_sided_p(differences) < 0.05 for differences in null_differences(name, 200, 200))
        <= 20
    )


def test_several_systems_are_corrected_for_their_number(tmp_path):
    shares = (0.20, 0.20, 0.22, 0.24, 0.30)
    paths = [
        write(tmp_path, f"r{n}", noisy(REFERENCES, share, n)) for n, share in enumerate(shares)
    ]
    lines, _ = compare_all(paths, list(map(str, paths)))
    alone = [compare(path, paths[0])["p_value"] for path in paths[1:]]
    assert lines[0][3:5] == ["", ""]
    assert [float(line[4]) for line in lines[1:]] == pytest.approx(
        [min(1, 4 * p) for p in alone], rel=1e-2
    )
    for line in lines[1:]:
        low, high = (float(end) for end in line[3].split("[")[1].rstrip("]").split(","))
        assert (float(line[4]) < 0.05) == (not low <= 0 <= high)
