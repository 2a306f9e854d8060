"""Memory that grows, as it was measured over the steps."""

from collections.abc import Iterable
from typing import Final

from profkit.dataclass import dataclass

MAX_POINTS: Final = 60
"""More steps are thinned out."""


@dataclass(frozen=True)
class Growth:
    """What grows, at some steps, ascending.

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
    """Measured values, thinned out evenly with the first and the last; None if there is only one.

    Args:
        n: As many values, or none.
    """
    columns = [tuple(map(round, each)) for each in (steps, n_bytes, n)]
    last = len(columns[0]) - 1
    if last < 1:
        return None
    rows = range(last + 1)
    if last >= MAX_POINTS:
        rows = sorted({round(i * last / (MAX_POINTS - 1)) for i in range(MAX_POINTS)})  # type: ignore[assignment]
    return Growth(*(tuple(each[i] for i in rows) if each else () for each in columns))


def together(every: Iterable[Growth | None]) -> Growth | None:
    """The sum of what was measured at the same steps as the first; None if nothing was."""
    known = [each for each in every if each is not None]
    if not known:
        return None
    same = [each for each in known if each.steps == known[0].steps]
    counted = all(each.n for each in same)
    return Growth(
        known[0].steps,
        tuple(map(sum, zip(*(each.bytes for each in same), strict=True))),
        tuple(map(sum, zip(*(each.n for each in same), strict=True))) if counted else (),
    )
