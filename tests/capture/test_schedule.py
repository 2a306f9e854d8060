"""Which steps are recorded, and which one is recorded for source lines."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profkit.capture.recording.schedule import Phase, Schedule
from profkit.errors import UsageError

LETTERS = {Phase.OFF: ".", Phase.LINES: "L", Phase.READY: "r", Phase.RECORD: "#"}


def phases(schedule: Schedule, n: int, *, lines: bool = True) -> str:
    """Return the first steps of a schedule, one letter each."""
    return "".join(LETTERS[schedule.find_phase(step, lines=lines)[1]] for step in range(n))


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (Schedule(wait=1, warmup=1, active=3), ".L###..."),
        (Schedule(wait=1, warmup=2, active=2), ".Lr##..."),
        (Schedule(wait=0, warmup=4, active=1), "..Lr#..."),
        (Schedule(wait=2, warmup=0, active=2), "..##L..."),
        (Schedule(wait=0, warmup=1, active=None), "L#######"),
        (Schedule(wait=2, warmup=0, active=None), "..######"),
    ],
)
def test_source_lines_come_from_one_step_beside_the_active_ones(
    schedule: Schedule, expected: str
) -> None:
    assert phases(schedule, 8) == expected


def test_source_lines_come_from_the_first_cycle_only() -> None:
    assert phases(Schedule(1, 2, 2, repeat=2), 12) == ".Lr##..r##.."


def test_without_stacks_no_step_is_recorded_for_source_lines() -> None:
    assert phases(Schedule(1, 2, 2), 7, lines=False) == "..r##.."


def test_repeat_zero_repeats_without_limit() -> None:
    schedule = Schedule(wait=1, warmup=0, active=1, repeat=0)
    assert phases(schedule, 101, lines=False).count("#") == 50


@pytest.mark.parametrize("numbers", [{"wait": -1}, {"warmup": -1}, {"active": 0}, {"repeat": -2}])
def test_invalid_numbers_are_rejected(numbers: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="or more"):
        Schedule(**numbers)


@given(
    st.builds(
        Schedule,
        wait=st.integers(0, 4),
        warmup=st.integers(0, 4),
        active=st.integers(1, 5),
        repeat=st.integers(1, 4),
    ),
    st.booleans(),
)
def test_every_cycle_records_its_active_steps_and_one_step_is_recorded_for_lines(
    schedule: Schedule,
    lines: bool,  # noqa: FBT001  (drawn by name)
) -> None:
    places = [schedule.find_phase(step, lines=lines) for step in range(60)]
    assert schedule.active is not None
    phases = [phase for _, phase in places]
    assert phases.count(Phase.RECORD) == schedule.active * schedule.repeat
    assert phases.count(Phase.LINES) == int(lines)
    assert [cycle for cycle, _ in places] == sorted(cycle for cycle, _ in places)
    assert schedule.is_over(places[-1][0])
