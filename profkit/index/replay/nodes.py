"""The nodes of the dependency graph of a recording, before they are connected."""

import numpy as np

from profkit.dataclass import dataclass
from profkit.index.replay.graph import NEVER, NodeColumns, NodeKind
from profkit.index.replay.moments import Moments
from profkit.index.replay.waits import Waits
from profkit.index.replay.work import DeviceWork
from profkit.model.events import NO_ROW, EventTable, Int32s, Int64s, Mask


@dataclass(frozen=True)
class Nodes(NodeColumns):
    """The origin, joins of streams that a call waits for, host moments, ends of device work.

    ``key_ns``, ``is_late`` and then their number order all nodes so that each follows its
    predecessors.

    Attributes:
        joins: The nodes of waits for several streams. Shape ``(j,)``.
        hosts: The moments on host threads, by thread, then time. Shape ``(h,)``.
        works: The ends of device work. Shape ``(w,)``.
        of_moment: The node of each moment, and last :data:`NO_ROW`. Shape ``(h + 1,)``.
    """

    key_ns: Int64s
    is_late: Mask
    joins: Int32s
    hosts: Int32s
    works: Int32s
    of_moment: Int32s

    @classmethod
    def of(
        cls,
        events: EventTable,
        host: Moments,
        work: DeviceWork,
        waits: Waits,
        returned: Int32s,
        paused: Int32s,
    ) -> "Nodes":
        """Build the nodes in the order origin, joins, host moments, device work.

        Args:
            returned: The moment at which each blocking call returns.
            paused: The moments at which a thread goes on after it waited for another.
        """
        time_ns, lane = np.concatenate(host.time_ns), np.concatenate(host.lane)
        order = host.sort()
        time_ns, lane = time_ns[order], lane[order]

        joined_waits = waits.of_streams
        sizes = (1, len(joined_waits), len(time_ns), len(work))
        node_numbers = np.arange(sum(sizes), dtype=np.int32)
        _, joins, hosts, works = np.split(node_numbers, np.cumsum(sizes)[:-1])
        of_moment = np.full(len(order) + 1, NO_ROW, dtype=np.int32)
        of_moment[order] = hosts

        kinds = (NodeKind.HOST, NodeKind.JOIN, NodeKind.HOST, NodeKind.DEVICE)
        kind = np.repeat(np.array(kinds, dtype=np.uint8), sizes)
        kind[works[work.rows == NO_ROW]] = NodeKind.UNRECORDED

        begun = work.latest_so_far(np.maximum(work.start_ns, work.launched_ns))
        first = min(0, int(time_ns.min(initial=0)), int(begun.min(initial=0)))
        released = waits.released_ns(work)[joined_waits]

        row, no_lane = np.concatenate(host.row)[order], np.full_like(joined_waits, NO_ROW)
        # Nodes at one time: a thread that goes on, and work that ends, come after the other
        # moments.
        is_late = np.zeros(len(node_numbers), dtype=np.bool_)
        is_late[hosts] = _coincides_with_any(of_moment[paused] - hosts[:1], time_ns, lane)
        is_late[works] = True
        is_late[joins] = is_late[of_moment[returned[joined_waits]]]

        issued = np.where(work.launch == NO_ROW, work.launched_ns, events.ts_ns[work.launch])
        no_ns = np.zeros(len(node_numbers) - len(work), dtype=np.int64)
        return cls(
            time_ns=np.concatenate(([0], released, time_ns, work.end_ns)),
            dur_ns=np.concatenate((no_ns, work.end_ns - work.start_ns)),
            issued_ns=np.concatenate(([0], released, time_ns, issued)),
            may_be_lag=np.concatenate((no_ns > 0, work.may_be_lag)),
            kind=kind,
            row=np.concatenate(
                ([NO_ROW], waits.rows[joined_waits], row, work.rows), dtype=np.int32
            ),
            lane=np.concatenate(([NO_ROW], no_lane, lane, np.full_like(works, NO_ROW))).astype(
                np.int32
            ),
            key_ns=np.concatenate(([first], waits.end_ns[joined_waits], time_ns, begun)),
            is_late=is_late,
            joins=joins,
            hosts=hosts,
            works=works,
            of_moment=of_moment,
        )

    def of_work(self, positions: Int32s) -> Int32s:
        """Return the nodes of some device work, :data:`NO_ROW` for no work."""
        return np.append(self.works, np.int32(NO_ROW))[positions]

    def precedes(self, before: Int32s, after: Int32s) -> Mask:
        """Return whether each node comes before its partner. Shape of both."""
        before_ns, after_ns = self.key_ns[before], self.key_ns[after]
        is_before = before_ns < after_ns
        tied = np.flatnonzero(before_ns == after_ns)

        before, after = before[tied], after[tied]
        late = self.is_late[before].astype(np.int8) - self.is_late[after]
        is_before[tied] = (late < 0) | ((late == 0) & (before < after))
        return is_before

    def sort(self, nodes: Int32s) -> Int32s:
        """Sort nodes so that each follows its predecessors."""
        return nodes[np.lexsort((self.is_late[nodes], self.key_ns[nodes]))]


def _coincides_with_any(places: Int32s, time_ns: Int64s, lane: Int32s) -> Mask:
    """Return which host moments share time and thread with the moment at one of some places."""
    if not len(places):
        return np.zeros(len(time_ns), dtype=np.bool_)

    begins = (np.diff(time_ns, prepend=NEVER) != 0) | (np.diff(lane, prepend=NO_ROW) != 0)
    group = np.cumsum(begins)
    has_place = np.zeros(len(time_ns) + 1, dtype=np.bool_)
    has_place[group[places]] = True
    return np.asarray(has_place[group])
