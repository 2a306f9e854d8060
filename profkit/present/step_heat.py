"""The step time of each rank of a job in each step, as a grid of bounded size."""

from collections.abc import Iterator, Sequence
from statistics import median_low
from typing import Final, TypeVar

from profkit.dataclass import dataclass
from profkit.engine.wording import rank_list
from profkit.model.report import Report

T = TypeVar("T")

MAX_ROWS: Final = 40
MAX_COLUMNS: Final = 60
BOUNDS: Final = (0.9, 0.97, 1.03, 1.1, 1.25, 1.5)
"""Times divided by the median at which the colour of cells changes."""


@dataclass(frozen=True)
class HeatCell:
    """The longest time of some ranks in some steps.

    Attributes:
        rank: The rank with this time.
        step: The step with this time.
        time_ns: Its step time.
        wait_ns: The part of the time in collectives until the last rank had started.
        level: How many of :data:`BOUNDS` it reaches.
    """

    rank: int
    step: str
    time_ns: int
    wait_ns: int
    level: int


@dataclass(frozen=True)
class HeatMap:
    """A grid of ranks and steps; neighbors share a row or column where there are many.

    Attributes:
        rows: The ranks of each row.
        columns: The steps of each column.
        median_ns: The median of all times.
        cells: Row by row; None where no step was recorded.
    """

    rows: tuple[tuple[int, ...], ...]
    columns: tuple[tuple[str, ...], ...]
    median_ns: int
    cells: tuple[tuple[HeatCell | None, ...], ...]

    @property
    def row_labels(self) -> tuple[str, ...]:
        """Return the ranks of each row, such as ``3``, or ``0 to 15``."""
        return tuple(rank_list(ranks) for ranks in self.rows)

    @property
    def column_labels(self) -> tuple[str, ...]:
        """Return the numbers of steps, or their names where they have none."""
        return tuple(
            _number(steps[0]) if len(steps) == 1 else f"{_number(steps[0])} to {_number(steps[-1])}"
            for steps in self.columns
        )


def build_step_heat(report: Report, *, own: bool = False) -> HeatMap | None:
    """Build the grid of a job; None without steps.

    Args:
        own: Leave out the time that ranks waited for others. This shows which rank computes longest
            although all take equally long.
    """
    times = {
        rank.rank: dict(_times(rank.step_names, rank.steps_ns, rank.steps_wait_ns))
        for rank in report.ranks
    }
    shown_times = [
        ns - wait if own else ns for of_rank in times.values() for ns, wait in of_rank.values()
    ]
    if not shown_times:
        return None
    median_ns = median_low(shown_times)

    # Rows have a power of two of ranks, as hosts have.
    size = 1
    while size * MAX_ROWS < len(times):
        size *= 2
    rows = _split(list(times), size)
    steps = _sort_steps([list(of_rank) for of_rank in times.values()])
    columns = _split(steps, -(-len(steps) // MAX_COLUMNS))

    def cell(ranks: Sequence[int], names: Sequence[str]) -> HeatCell | None:
        recorded = (
            (ns - wait if own else ns, rank, name, ns, wait)
            for rank in ranks
            for name in names
            if name in times[rank]
            for ns, wait in (times[rank][name],)
        )
        longest = max(recorded, key=lambda time: time[0], default=None)
        if longest is None:
            return None
        shown_ns, rank, name, ns, wait = longest
        level = sum(shown_ns >= bound * median_ns for bound in BOUNDS) if median_ns else 0
        return HeatCell(rank, name, ns, wait, level)

    cells = tuple(tuple(cell(ranks, names) for names in columns) for ranks in rows)
    return HeatMap(rows, columns, median_ns, cells)


def _times(
    names: Sequence[str], times_ns: Sequence[int], waits_ns: Sequence[int]
) -> Iterator[tuple[str, tuple[int, int]]]:
    for name, time_ns, wait_ns in zip(distinct_names(names), times_ns, waits_ns, strict=True):
        yield name, (time_ns, wait_ns)


def distinct_names(names: Sequence[str]) -> list[str]:
    """Return the names of steps, or their places where several have the same name."""
    return list(names) if len(set(names)) == len(names) else [*map(str, range(len(names)))]


def _sort_steps(of_ranks: Sequence[Sequence[str]]) -> list[str]:
    """Sort the steps of all ranks: by their number if all have one, else in order of appearance."""
    steps = list(dict.fromkeys(name for names in of_ranks for name in names))
    numbers = {name: _number(name) for name in steps}
    # Ranks that record different steps would interleave them in order of appearance.
    if all(number.isascii() and number.isdigit() for number in numbers.values()):
        steps.sort(key=lambda name: int(numbers[name]))
    return steps


def _number(name: str) -> str:
    return name.rpartition("#")[2]


def _split(items: Sequence[T], n: int) -> tuple[tuple[T, ...], ...]:
    """Split items into groups of ``n`` neighbors."""
    return tuple(tuple(items[at : at + n]) for at in range(0, len(items), n))
