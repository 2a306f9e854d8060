"""Jobs of several ranks with planted clocks, delays and losses, and what is true of them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from profkit.index.host.steps import NO_STEP
from profkit.index.ranks.calls import CollectiveCalls
from profkit.index.ranks.job_calls import RankCalls
from profkit.model.events import MISSING
from profkit.model.process_group import ProcessGroup

BASE_NS = 1_735_689_600_000_000_000
WORLD = ProcessGroup("0", (0, 1, 2, 3), 4, "default_pg")


@dataclass(frozen=True)
class Call:
    """A call of a collective on one rank, in nanoseconds of the true time.

    Attributes:
        collective: The number of the collective that it is part of.
    """

    collective: int
    rank: int
    start_ns: int
    end_ns: int
    kind: str = "all-reduce"
    group: ProcessGroup = WORLD
    seq: int = MISSING
    comms_id: str = ""
    element_type: str = "Float"
    n_elements: int = 1000
    source: int = MISSING
    target: int = MISSING
    step: int = NO_STEP
    launched_ns: int = MISSING
    idle_ns: int = MISSING
    data_wait_ns: int = 0


def collective(
    number: int, starts_ns: Sequence[int], transfer_ns: int, **given: object
) -> list[Call]:
    """Return a collective of ranks 0, 1, … that ends on all at once."""
    end = max(starts_ns) + transfer_ns
    return [
        replace(Call(number, rank, start, end), **given)  # type: ignore[arg-type]
        for rank, start in enumerate(starts_ns)
    ]


@dataclass(frozen=True)
class Clock:
    """A clock that shows too much, and gains so much per nanosecond."""

    offset_ns: int = 0
    drift: float = 0.0

    def shows(self, true_ns: int) -> int:
        """Return the time that the clock shows at some moment."""
        return BASE_NS + true_ns + self.offset_ns + round(self.drift * true_ns)


def ranks_of(
    calls: Iterable[Call],
    clocks: Sequence[Clock] = (),
    hosts: Sequence[str | None] = (),
) -> list[RankCalls]:
    """Return the collectives of each rank as they would be recorded.

    Args:
        clocks: By rank; correct where there is none.
        hosts: By rank; not recorded where there is none.
    """
    calls = list(calls)
    found_ranks = []
    for rank in sorted({call.rank for call in calls}):
        clock = clocks[rank] if rank < len(clocks) else Clock()
        host = hosts[rank] if rank < len(hosts) else None
        rank_calls = sorted(
            (call for call in calls if call.rank == rank), key=lambda call: call.start_ns
        )
        found_ranks.append(RankCalls(rank, host, _build_columns(rank_calls, clock)))
    return found_ranks


def _build_columns(calls: list[Call], clock: Clock) -> CollectiveCalls:
    groups = list(dict.fromkeys(call.group for call in calls))

    def column(values: Iterable[int]) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
        return np.array(list(values), dtype=np.int64)

    launched = [
        MISSING if call.launched_ns == MISSING else clock.shows(call.launched_ns) for call in calls
    ]
    return CollectiveCalls(
        rows=np.arange(len(calls)),
        kind=tuple(call.kind for call in calls),
        group=np.array([groups.index(call.group) for call in calls], dtype=np.int32),
        element_type=tuple(call.element_type for call in calls),
        comms_id=tuple(call.comms_id for call in calls),
        n_in=column(call.n_elements for call in calls),
        n_out=column(call.n_elements for call in calls),
        seq=column(call.seq for call in calls),
        source=column(call.source for call in calls),
        target=column(call.target for call in calls),
        issued_ns=column(launched),
        returned_ns=column(launched),
        launched_ns=column(launched),
        start_ns=column(clock.shows(call.start_ns) for call in calls),
        end_ns=column(clock.shows(call.end_ns) for call in calls),
        idle_ns=column(call.idle_ns for call in calls),
        data_wait_ns=column(call.data_wait_ns for call in calls),
        step=column(call.step for call in calls),
        on_device=np.ones(len(calls), dtype=np.bool_),
        groups=tuple(groups),
    )
