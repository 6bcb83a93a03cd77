"""The benchmark of preparing a corpus."""

from benchmarks.prepare import Phases


def test_phases_are_those_of_known_stages_and_the_names_of_others():
    phases = Phases()
    for stage in (
        "sample sentences",
        "look for duplicates",
        "look for duplicates",
        "tokenise train",
    ):
        phases(stage, 0, None, "pairs")
    phases.close()
    assert [*phases.seconds] == ["open", "sample", "look for duplicates", "encode"]
