"""The steps of a recording, and the waits for data."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from profkit.index.runtime_calls import names_matching
from profkit.model.events import Category, EventTable, Int32s, Int64s, Rows
from profkit.model.torch_names import DATA_WAITS, STEP

NO_STEP: Final = -1


@dataclass(frozen=True)
class Steps:
    """The steps in time order.

    Attributes:
        rows: Shape ``(s,)``.
        names: Their names.
        starts_ns: Shape ``(s,)``.
        ends_ns: Shape ``(s,)``.
    """

    rows: Rows
    names: tuple[str, ...]
    starts_ns: Int64s
    ends_ns: Int64s

    def __len__(self) -> int:
        return len(self.rows)

    def of(self, at_ns: Int64s) -> Int32s:
        """The step of each moment, or :data:`NO_STEP`. Shape of ``at_ns``."""
        if not len(self.rows):
            return np.full(len(at_ns), NO_STEP, dtype=np.int32)
        place = np.searchsorted(self.starts_ns, at_ns, side="right") - 1
        within = (place >= 0) & (at_ns < self.ends_ns[np.maximum(place, 0)])
        return np.where(within, place, NO_STEP).astype(np.int32)


def find_steps(events: EventTable, *, entry_name: str | None = None, open_step: str = "") -> Steps:
    """Find the steps: ``ProfilerStep#N`` on the host.

    Args:
        entry_name: Annotation that marks a step where there is no ``ProfilerStep``: profkit names
            each entry of a block after its capture.
        open_step: Name of the step that was incomplete when the window ended; it is excluded.
    """
    host = np.isin(events.category, (Category.ANNOTATION, Category.OP))
    named = names_matching(events.names, STEP)
    unfinished = np.array([name == open_step for name in events.names], dtype=np.bool_)
    rows = np.flatnonzero(host & (named & ~unfinished)[events.name])
    if not len(rows) and entry_name is not None:
        named = np.array([name == entry_name for name in events.names], dtype=np.bool_)
        rows = np.flatnonzero((events.category == Category.ANNOTATION) & named[events.name])
        if len(rows):
            # A nested annotation of the same name is a region of the step.
            rows = rows[np.argsort(events.ts_ns[rows], kind="stable")]
            latest_end = np.maximum.accumulate(events.end_ns[rows])
            rows = rows[np.concatenate(([True], events.ts_ns[rows][1:] >= latest_end[:-1]))]
    rows = rows[np.argsort(events.ts_ns[rows], kind="stable")]
    return Steps(
        rows=rows,
        names=tuple(events.name_of(row) for row in rows.tolist()),
        starts_ns=events.ts_ns[rows],
        ends_ns=events.end_ns[rows],
    )


def data_waits(events: EventTable) -> Rows:
    """Data-loader waits: rows in which the program waits for its next batch, ascending."""
    named = names_matching(events.names, DATA_WAITS)
    host = np.isin(events.category, (Category.ANNOTATION, Category.OP))
    return np.flatnonzero(host & named[events.name])
