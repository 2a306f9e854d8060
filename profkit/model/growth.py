"""Memory that grows, measured over the steps."""

from collections.abc import Iterable
from typing import Final

from profkit.dataclass import dataclass

MAX_POINTS: Final = 60
"""A growth with more points is thinned out."""


@dataclass(frozen=True)
class Growth:
    """The size of growing memory at some steps, ascending.

    Attributes:
        steps: The steps, from 1.
        bytes: Bytes at the end of each.
        n: Number of objects (tensors, blocks, nodes of a graph) at the end of each; empty where
            only bytes are measured.
    """

    steps: tuple[int, ...]
    bytes: tuple[int, ...]
    n: tuple[int, ...] = ()


def growth(
    steps: Iterable[float], n_bytes: Iterable[float], n: Iterable[float] = ()
) -> Growth | None:
    """Return measured values, thinned out evenly; None if there is only one.

    Args:
        steps: The steps, ascending. The first and the last are kept.
        n_bytes: The bytes at the end of each.
        n: The number of objects at the end of each, or empty.
    """
    columns = [tuple(map(round, values)) for values in (steps, n_bytes, n)]
    last = len(columns[0]) - 1
    if last < 1:
        return None

    rows = range(last + 1)
    if last >= MAX_POINTS:
        rows = sorted({round(i * last / (MAX_POINTS - 1)) for i in range(MAX_POINTS)})  # type: ignore[assignment]
    return Growth(*(tuple(column[i] for i in rows) if column else () for column in columns))


def together(growths: Iterable[Growth | None]) -> Growth | None:
    """Sum the growths that were measured at the same steps as the first; None if none was."""
    measured = [growth for growth in growths if growth is not None]
    if not measured:
        return None

    steps = measured[0].steps
    addends = [growth for growth in measured if growth.steps == steps]
    n_bytes = tuple(map(sum, zip(*(growth.bytes for growth in addends), strict=True)))
    if not all(growth.n for growth in addends):
        return Growth(steps, n_bytes)
    return Growth(steps, n_bytes, tuple(map(sum, zip(*(g.n for g in addends), strict=True))))
