"""The section "On a CPU" of ``docs/truth.md``: its arithmetic, and where its figures come from."""

import json
from dataclasses import asdict

import pytest

from examples.gpu import record
from examples.gpu.recording.rows import ROOT
from examples.truth.measure import PROGRAMS, cost_of
from examples.truth.section import MEASURED, Pair, Round, quartiles, recorded, write_section
from examples.truth.sized import find_program


def pair(low_ms: float, high_ms: float, basis: str = "replay", fixed_ms: float = 6.0) -> Pair:
    rounds = [
        Round([10.0, 12.0], [fixed_ms, 9.0], 20.0, low_ms, high_ms, 0.9),
        Round([11.0], [5.0], 22.0, low_ms + 2, high_ms + 2, 1.0),
        Round([14.0, 10.0], [8.0, 5.0], 33.0, low_ms - 3, high_ms - 3, 0.8),
    ]
    return Pair("loader", "starved-by-loader", basis, rounds, "2026-11-21")


def test_saved_is_the_median_over_pairs_of_runs() -> None:
    fix = pair(4.0, 5.0)
    assert fix.saved_ms == 5.0
    assert fix.each("saved_ms") == [4.0, 3.0, 6.0, 6.0, 5.0]
    assert quartiles(fix.each("saved_ms")) == (4.0, 6.0)
    assert quartiles([2.0]) == (2.0, 2.0)
    assert fix.ratios == (0.8, 1.0)
    assert not fix.is_sure
    steady = Pair("a", "b", "replay", [Round([10.0], [5.0], 9.0, 5.0, 5.0, 1.0)] * 3)
    assert steady.is_sure


@pytest.mark.parametrize(
    ("low_ms", "high_ms", "basis", "is_within"),
    [
        (4.3, 4.3, "replay", True),
        (4.2, 4.2, "replay", False),
        (5.7, 5.7, "replay", True),
        (5.8, 5.8, "replay", False),
        (3.0, 4.6, "replay", True),
        (5.8, 9.0, "replay", False),
        (9.0, 9.0, "upper-bound", True),
        (4.2, 4.2, "upper-bound", False),
    ],
)
def test_15_percent_are_within(
    low_ms: float, high_ms: float, basis: str, is_within: object
) -> None:
    fix = pair(low_ms, high_ms, basis)
    assert fix.is_within(fix.ratios) is is_within


def test_a_fix_that_saves_nothing_makes_each_prediction_wrong() -> None:
    slower = Pair("a", "b", "replay", [Round([1.0], [2.0], 3.0, 0.5, 0.5, 1.0)] * 2)
    assert slower.ratios is None
    assert slower.share_ratios is None
    assert not slower.is_within(slower.ratios)
    assert not slower.is_sure


MACHINE = {"cpu": "Any", "cores": 2, "system": "Linux x86_64", "torch": "2", "python": "3.11"}
FACTS = {"machine": MACHINE, "date": "2026-11-22", "load": [0.5, 1.25]}


def test_a_row_has_medians_quartiles_and_the_machine() -> None:
    text = write_section({**FACTS, "pairs": [asdict(pair(4.0, 5.0))]})
    assert (
        "| 5, 3 | 11.00 (10.00 to 12.00) | 6.00 (5.00 to 8.00) | 5.00 (4.00 to 6.00) | "
        "22.00 (21.00 to 27.50) | 4.00-5.00 (2.50 to 6.00) | 0.80-1.00 | 0.40-0.50 | replay | "
        "90% | 2026-11-21 |" in text
    )
    assert "2026-11-22: Any, 2 cores" in text
    assert "from its median: `loader`." in text
    assert "The machine was busy" not in text

    right = asdict(pair(4.0, 5.0))
    busy = right | {"rounds": [round_facts | {"cpu_share": 0.4} for round_facts in right["rounds"]]}
    text = write_section({**FACTS, "pairs": [busy], "missing": ["recompiles"]})
    assert "The machine was busy" in text
    assert "0 of 1 predictions are right, 0 rough and 0 wrong; 1 are unknown." in text
    assert "| unknown, machine busy |" in text
    assert "Not measured yet: `recompiles`." in text


def test_the_page_begins_with_what_was_predicted_and_its_misses() -> None:
    cases = {"right": (10.0, "replay"), "rough": (4.0, "estimate"), "wrong": (4.0, "replay")}
    pairs = [asdict(pair(ms, ms, basis)) | {"program": name} for name, (ms, basis) in cases.items()]
    text = write_section({**FACTS, "pairs": pairs})
    assert "1 of 3 predictions are right, 1 rough and 1 wrong." in text
    assert "| `right` | starved-by-loader | 45% | 45% | 5.00 | right |" in text
    assert "| `rough` | starved-by-loader | 18% | 45% | 5.00 | rough, said to be an " in text
    assert "| `wrong` | starved-by-loader | 18% | 45% | 5.00 | **wrong** |" in text
    assert "- `wrong` is predicted too low: 0.40 of what is saved." in text
    assert "- `right`" not in text


def test_the_cost_comes_from_the_rule() -> None:
    costs = [{"ns": 1}, {"ns": 2}]
    findings = [{"name": name, "cost": cost} for name, cost in zip("ab", costs, strict=True)]
    assert cost_of({"findings": findings}, "b") == {"ns": 2}
    assert cost_of({"findings": findings}, "c")["ns"] is None


def test_the_page_has_what_was_measured_of_every_pair() -> None:
    assert f"\n{recorded()}\n## On a GPU\n" in record.TABLE.read_text()
    measured = json.loads(MEASURED.read_text())
    names = [pair_facts["program"] for pair_facts in measured["pairs"]]
    assert sorted(names + measured["missing"]) == sorted(PROGRAMS)
    assert all(pair_facts["rounds"] for pair_facts in measured["pairs"])


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_programs_of_a_pair_exist(name: str) -> None:
    for program in (PROGRAMS[name].problem, PROGRAMS[name].fixed):
        assert (ROOT / "examples" / program[0]).is_file()
        if "sized.py" in program[0]:
            assert find_program(program[1]).is_file()
