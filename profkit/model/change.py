"""A change of the recorded program: what a fix removes, shortens or stops waiting for."""

from collections.abc import Iterable
from dataclasses import field
from typing import TYPE_CHECKING, Any

from profkit.dataclass import dataclass

if TYPE_CHECKING:
    from profkit.model.events import Rows
else:
    # Reports are read and written without NumPy, which takes long to load.
    Rows = Any


def no_rows() -> "Rows":
    """Rows of nothing."""
    import numpy as np

    return np.zeros(0, dtype=np.intp)


@dataclass(frozen=True)
class ProgramChange:
    """A change of the recorded program.

    Attributes:
        calls: Blocking calls that no longer happen: the host neither spends their time nor waits
            for the device. Rows.
        scaled: Rows, and the factor by which their time changes: 0 removes it. Rows on the host
            count with all that happens during them.
        host_time: Time that no host thread spends any more, as (start, end) in nanoseconds.
        captured: Device work that a graph launches together with other work: it starts with the
            usual lag after its launch and after the work before it on its stream. Rows.
    """

    calls: Rows = field(default_factory=no_rows)
    scaled: tuple[tuple[Rows, float], ...] = ()
    host_time: tuple[tuple[int, int], ...] = ()
    captured: Rows = field(default_factory=no_rows)


def together(changes: Iterable[ProgramChange]) -> ProgramChange:
    """Return one change with the effects of all."""
    changes = tuple(changes)
    return ProgramChange(
        calls=_unite(change.calls for change in changes),
        scaled=tuple(pair for change in changes for pair in change.scaled),
        host_time=tuple(pair for change in changes for pair in change.host_time),
        captured=_unite(change.captured for change in changes),
    )


def _unite(rows: Iterable[Rows]) -> Rows:
    import numpy as np

    ordered = np.sort(np.concatenate((no_rows(), *rows)))
    is_first = np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)]
    return np.asarray(ordered[is_first])
