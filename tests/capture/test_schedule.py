"""Which step is recorded and which lends its lines."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profkit.capture.schedule import Phase, Schedule
from profkit.errors import UsageError

LETTERS = {Phase.OFF: ".", Phase.LEND: "L", Phase.READY: "r", Phase.RECORD: "#"}


def drawn(schedule: Schedule, n: int, *, lend: bool = True) -> str:
    """The first steps of a schedule, a letter each."""
    return "".join(LETTERS[schedule.place(step, lend=lend)[1]] for step in range(n))


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
def test_one_step_beside_the_recorded_ones_lends_its_lines(
    schedule: Schedule, expected: str
) -> None:
    assert drawn(schedule, 8) == expected


def test_only_the_first_cycle_lends_its_lines() -> None:
    assert drawn(Schedule(1, 2, 2, repeat=2), 12) == ".Lr##..r##.."


def test_without_stacks_no_step_lends_its_lines() -> None:
    assert drawn(Schedule(1, 2, 2), 7, lend=False) == "..r##.."


def test_repeat_zero_goes_on_for_ever() -> None:
    schedule = Schedule(wait=1, warmup=0, active=1, repeat=0)
    assert drawn(schedule, 101, lend=False).count("#") == 50


@pytest.mark.parametrize("words", [{"wait": -1}, {"warmup": -1}, {"active": 0}, {"repeat": -2}])
def test_numbers_that_make_no_sense_are_refused(words: dict[str, int]) -> None:
    with pytest.raises(UsageError, match="or more"):
        Schedule(**words)


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
def test_every_cycle_records_as_many_steps_as_asked_and_one_lends_at_most(
    schedule: Schedule,
    lend: bool,  # noqa: FBT001  (drawn by name, not passed by hand)
) -> None:
    places = [schedule.place(step, lend=lend) for step in range(60)]
    assert schedule.active is not None
    phases = [phase for _, phase in places]
    assert phases.count(Phase.RECORD) == schedule.active * schedule.repeat
    assert phases.count(Phase.LEND) == int(lend)
    assert [cycle for cycle, _ in places] == sorted(cycle for cycle, _ in places)
    assert schedule.is_over(places[-1][0])
