"""What the looks of a run have seen, step by step, in a size that does not grow with the run."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from profkit.capture.memory.census import Amount, Kind
from profkit.index.trend import Floats, Trend, is_rising, lasting_growth
from profkit.model.events import Int64s
from profkit.model.live import Look

MOST_LOOKS: Final = 400
"""Beyond this many, every other one is dropped."""
LEAST_PER_STEP: Final = 1024.0
"""Bytes a step below which tensors are not said to grow: a gigabyte takes a million steps."""
LEAST_NODES_PER_STEP: Final = 0.5
"""Graph nodes a step, likewise: less than one in two steps is no graph that is kept each step."""
_NOTHING: Final = Amount(0, 0, 0, 0)


@dataclass(frozen=True)
class Seen:
    """One look.

    Attributes:
        figures: Its figures, as they are reported.
        amounts: How much there is of each kind of tensors.
        n_nodes: Nodes of all graphs, or None where they were not walked.
    """

    figures: Look
    amounts: dict[Kind, Amount]
    n_nodes: int | None = None


@dataclass
class Series:
    """All looks that are kept.

    Attributes:
        seen: The looks, in their order.
    """

    seen: list[Seen] = field(default_factory=list)

    def add(self, seen: Seen) -> None:
        """Keep one more look; of too many, every other one of the older half."""
        self.seen.append(seen)
        if len(self.seen) > MOST_LOOKS:
            half = MOST_LOOKS // 2
            self.seen = self.seen[:half:2] + self.seen[half:]

    def kinds(self) -> set[Kind]:
        """The kinds that were there at the last look."""
        return set(self.seen[-1].amounts) if self.seen else set()

    def of(self, kind: Kind, what: Callable[[Amount], int]) -> tuple[Int64s, Floats]:
        """Steps, and one figure of a kind at each.

        Args:
            kind: The kind.
            what: Picks the figure.
        """
        values = [what(one.amounts.get(kind, _NOTHING)) for one in self.seen]
        return self._steps(), np.array(values, dtype=np.float64)

    def nodes(self) -> tuple[Int64s, Floats]:
        """Steps at which graphs were walked, and their nodes."""
        known = [(one.figures.step, one.n_nodes) for one in self.seen if one.n_nodes is not None]
        return _columns(known)

    def figures(self, name: str) -> tuple[Int64s, Floats]:
        """Steps at which a figure was taken, and the figure.

        Args:
            name: An attribute of :class:`~profkit.model.live.Look`.
        """
        known = [
            (one.figures.step, int(value))
            for one in self.seen
            if (value := getattr(one.figures, name)) is not None
        ]
        return _columns(known)

    def _steps(self) -> Int64s:
        return np.array([one.figures.step for one in self.seen], dtype=np.int64)


def _columns(known: list[tuple[int, int]]) -> tuple[Int64s, Floats]:
    table = np.array(known, dtype=np.float64).reshape(-1, 2)
    return table[:, 0].astype(np.int64), table[:, 1]


def growth_of(series: tuple[Int64s, Floats], least: float) -> Trend | None:
    """The lasting growth of a figure, if it is at least so much a step.

    Args:
        series: Steps and values.
        least: The least that counts.
    """
    steps, values = series
    # Most series end where they began; those need no closer judgement.
    if len(steps) < 2 or values[-1] - values.min() < least:  # noqa: PLR2004
        return None
    trend = lasting_growth(steps, values)
    return trend if trend is not None and trend.per_step >= least else None


def suspects(series: Series) -> set[Kind]:
    """Kinds of which there was more and more at the last looks."""
    return {kind for kind in series.kinds() if _is_suspect(series, kind)}


def _is_suspect(series: Series, kind: Kind) -> bool:
    _, n_bytes = series.of(kind, lambda amount: amount.aged_bytes)
    if is_rising(n_bytes) and n_bytes[-1] - n_bytes[-4] >= LEAST_PER_STEP:
        return True
    return kind.has_graph and is_rising(series.of(kind, lambda amount: amount.aged_n)[1])
