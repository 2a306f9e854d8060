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
    """All of some changes at once."""
    changes = tuple(changes)
    return ProgramChange(
        calls=_united(each.calls for each in changes),
        scaled=tuple(pair for each in changes for pair in each.scaled),
        host_time=tuple(pair for each in changes for pair in each.host_time),
        captured=_united(each.captured for each in changes),
    )


def _united(rows: Iterable[Rows]) -> Rows:
    import numpy as np

    ordered = np.sort(np.concatenate((no_rows(), *rows)))
    return np.asarray(ordered[np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)]])
