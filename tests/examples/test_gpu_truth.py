"""``docs/truth.md``: what is predicted and measured, found and not, as the page defines it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from examples.gpu import record
from examples.gpu.recording.page import page
from examples.gpu.recording.rows import EXPECTED, Rows, Run
from examples.gpu.recording.truth import Said, Truth
from profkit.model.finding import Basis, Cost, Finding
from profkit.model.location import Location

NAME = "growing_list"
MACHINE: dict[str, Any] = {
    "gpu": "NVIDIA H200", "driver": "570.1", "cuda": "12.8", "torch": "2.13.0",
    "python": "3.11.7", "system": "Linux x86_64", "cores": 16, "profkit": "0.1.0",
}  # fmt: skip


def finding(rule: str, line: int, per_step_ns: int, basis: Basis = "measured") -> Finding:
    place = Location(f"/home/user/profkit/examples/gpu/{NAME}.py", line)
    cost = Cost(3 * per_step_ns, per_step_ns=per_step_ns, basis=basis)
    return Finding("X", rule, "warning", "high", "", "", "", (place,), cost=cost)


def truth(*findings: Finding, cured: Sequence[Finding] = (), ms: float = 3.0) -> Truth:
    facts = {**EXPECTED[NAME], "rule": "item-sync", "saves": True, "same_rules": ["launch-bound"]}
    faulty, cure = (
        Run("", "2026-11-22", MACHINE, [], [duration_ms, duration_ms + 1])
        for duration_ms in (ms, 1.0)
    )
    said = Said(tuple(findings), ("no-warm-up",), 2.5, 6.0)
    return Truth(NAME, facts, 40, faulty, cure, said, Said(tuple(cured), (), 0.0, 2.0))


@pytest.mark.parametrize(
    ("per_step_ns", "is_within"), [(2_290_000, True), (1_710_000, True), (2_310_000, False),
                                   (1_690_000, False)]
)  # fmt: skip
def test_a_prediction_is_held_against_what_the_cure_saved(
    per_step_ns: int,
    is_within: bool,  # noqa: FBT001
) -> None:
    seen = truth(finding("item-sync", 40, per_step_ns))
    assert seen.saved_ms == 2.0
    assert seen.ratio == pytest.approx(per_step_ns / 2_000_000)
    assert seen.is_within is is_within


def test_an_upper_bound_is_not_asked_to_be_within() -> None:
    assert truth(finding("item-sync", 40, 9_000_000, "upper-bound")).is_within is None


def test_a_cure_that_saves_nothing_where_a_cost_was_measured_is_a_wrong_prediction() -> None:
    seen = truth(finding("item-sync", 40, 1_000_000), ms=0.9)
    assert seen.ratio is None
    assert seen.is_within is False


def test_the_page_tells_what_was_found_where_and_who_else_spoke(tmp_path: Path) -> None:
    other_findings = [finding("launch-bound", 41, 1), finding("allocator-churn", 41, 1)]
    alarm = finding("item-sync", 40, 1)
    wrong = truth(finding("item-sync", 41, 1_000_000), *other_findings, cured=[alarm])
    recorded_rows = Rows(tmp_path)
    recorded_rows.put(
        NAME, Run("", "2026-11-22", MACHINE, [], [3.0], failure="exit code 1: `a | b`")
    )

    text = page([wrong], recorded_rows)
    assert (
        f"| item-sync | **at {NAME}.py:41** | allocator-churn | **item-sync** | no-warm-up |"
        in text
    )
    assert "| 3.000 | 1.000 | 2.000 | 1.000 | 0.50 | measured | **no** | 2.500 |" in text
    assert "0 of 1 measured predictions are within 15%." in text
    assert "| 3.000 | - | - | 6.000 | 2.00 |" in text
    assert "NVIDIA H200, driver 570.1, CUDA 12.8" in text
    assert f"- `{NAME}`: `exit code 1: 'a | b'`" in text

    right = truth(finding("item-sync", 41, 1), finding("item-sync", 40, 2_000_000))
    assert "| item-sync | at its line | none | no findings | no-warm-up |" in page(
        [right], recorded_rows
    )
    assert "| item-sync | **not found** | none | no findings | no-warm-up |" in page(
        [truth()], recorded_rows
    )


def test_the_page_in_the_docs_is_what_is_recorded(tmp_path: Path) -> None:
    record.write_table(Rows(record.OUT), {}, tmp_path / "truth.md", expects=False)
    assert (tmp_path / "truth.md").read_text() == record.TABLE.read_text()
