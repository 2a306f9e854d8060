"""The section "On a CPU" of ``docs/truth.md``: its arithmetic, and where its figures come from."""

import json

import pytest

from examples.gpu import record
from examples.gpu.recording.rows import ROOT
from examples.truth.measure import PROGRAMS, cost_of
from examples.truth.section import MEASURED, Pair, recorded, section


def pair(low_ms: float, high_ms: float, basis: str = "replay", fixed_ms: float = 6.0) -> Pair:
    return Pair(
        "loader", "starved-by-loader", [10.0, 12.0, 11.0], [fixed_ms, 9.0, 5.0],
        [low_ms, low_ms + 2, low_ms - 3], [high_ms, high_ms + 2, high_ms - 3], [20.0] * 3, basis,
    )  # fmt: skip


def test_saved_is_the_difference_of_medians_of_runs() -> None:
    one = pair(4.0, 5.0)
    assert one.saved_ms == 11.0 - 6.0
    assert one.each_saved_ms == [4.0, 3.0, 6.0]
    assert one.ratios == (0.8, 1.0)
    assert one.varies
    steady = Pair("a", "b", [10.0, 10.4], [5.0, 5.0], [5.0] * 2, [5.0] * 2, [9.0] * 2, "replay")
    assert not steady.varies


@pytest.mark.parametrize(
    ("low_ms", "high_ms", "basis", "is_within"),
    [
        (4.6, 4.6, "replay", True),
        (4.4, 4.4, "replay", False),
        (5.4, 5.4, "replay", True),
        (5.6, 5.6, "replay", False),
        (3.0, 4.6, "replay", True),
        (5.6, 9.0, "replay", False),
        (9.0, 9.0, "upper-bound", True),
        (4.4, 4.4, "upper-bound", False),
    ],
)
def test_a_tenth_is_within(low_ms: float, high_ms: float, basis: str, is_within: object) -> None:
    assert pair(low_ms, high_ms, basis).is_within is is_within


def test_a_fix_that_saves_nothing_makes_each_prediction_wrong() -> None:
    slower = Pair("a", "b", [1.0], [2.0], [0.5], [0.5], [3.0], "replay")
    assert slower.ratios is None
    assert not slower.is_within


def test_a_row_has_medians_ranges_and_the_machine() -> None:
    right = vars(pair(4.0, 5.0))
    wrong = vars(pair(1.0, 1.0)) | {"program": "recompiles"}
    machine = {"cpu": "Any", "cores": 2, "system": "Linux x86_64", "torch": "2", "python": "3.11"}
    text = section(
        {"machine": machine, "date": "2026-11-22", "load": [0.5, 1.25], "pairs": [right, wrong]}
    )
    assert (
        "| 3 | 11.00 | 6.00 | 5.00 (3.00 to 6.00) | 20.00 | 4.00-5.00 (1.00 to 7.00) | 0.80-1.00 |"
        in text
    )
    assert "2026-11-22: Any, 2 cores" in text
    assert "The savings of `loader`, `recompiles` vary" in text
    assert "1 of 2 predictions are within 10%." in text
    assert "- `recompiles`: the recorded steps" in text
    assert "- `loader`" not in text


def test_the_cost_is_that_of_the_rule() -> None:
    costs = [{"per_step_ns": 1}, {"per_step_ns": 2}]
    findings = [{"name": name, "cost": cost} for name, cost in zip("ab", costs, strict=True)]
    assert cost_of({"findings": findings}, "b") == {"per_step_ns": 2}
    assert cost_of({"findings": findings}, "c")["per_step_ns"] is None


def test_the_page_has_what_was_measured_of_every_pair() -> None:
    assert record.TABLE.read_text().endswith(recorded())
    measured = json.loads(MEASURED.read_text())
    assert [one["program"] for one in measured["pairs"]] == list(PROGRAMS)
    for one in measured["pairs"]:
        figures = (one["problem_ms"], one["fixed_ms"], one["predicted_ms"])
        assert len({len(each) for each in figures}) == 1
        assert len(one["problem_ms"]) >= 3


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_programs_of_a_pair_exist(name: str) -> None:
    for program in (PROGRAMS[name].problem, PROGRAMS[name].fixed):
        assert (ROOT / "examples" / program[0]).is_file()
