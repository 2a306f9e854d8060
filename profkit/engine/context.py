"""Everything that a rule may ask about a recording, worked out when it is first asked."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from profkit.index.compiled.compilations import (
    Compilations,
    CompiledRuns,
    compilations,
    compiled_runs,
)
from profkit.index.device.idle import IdleByCause, host_activity, idle_by_cause
from profkit.index.device.streams import DeviceActivity, device_activity
from profkit.index.device.syncs import Syncs, find_syncs
from profkit.index.host.nesting import CallTree, call_tree
from profkit.index.host.source import NO_FRAME, SourceMap, map_source
from profkit.index.host.steps import NO_STEP, Steps, data_waits, find_steps
from profkit.index.intervals import Intervals, union
from profkit.index.launches import Launches, join_launches
from profkit.index.ranks.collectives import communication_kernels
from profkit.index.snapshot.device_memory import DeviceMemory, device_memories
from profkit.index.snapshot.replay import replay_history
from profkit.index.trace_memory.live_bytes import Allocations, pair_allocations
from profkit.model.events import NO_ROW, Category, EventTable, Int32s, Mask, Rows
from profkit.model.finding import Basis, Cost
from profkit.model.live_memory import LiveMemory
from profkit.model.location import Location
from profkit.model.snapshot import MemorySnapshot
from profkit.model.trace import NO_TRACE, Trace
from profkit.readers.process_memory import release_free_memory


@dataclass(frozen=True)
class Context:
    """What was recorded and the relations in it. Every property is worked out once.

    Attributes:
        trace: The trace; one without events where there is none.
        snapshot: The allocator's memory snapshot, or None.
        live: What was watched of the running program's memory, or None.
    """

    trace: Trace = NO_TRACE
    snapshot: MemorySnapshot | None = None
    live: LiveMemory | None = None

    @property
    def path(self) -> str:
        """What was analyzed; empty for a program that was only watched."""
        if self.has_trace:
            return self.trace.path
        return self.snapshot.path if self.snapshot is not None else ""

    @property
    def has_trace(self) -> bool:
        """Whether there is a trace."""
        return self.trace is not NO_TRACE

    @property
    def events(self) -> EventTable:
        """The trace's complete events."""
        return self.trace.events

    @cached_property
    def tree(self) -> CallTree:
        """The call trees of the host threads."""
        return call_tree(self.events)

    @cached_property
    def steps(self) -> Steps:
        """The steps."""
        capture = self.trace.capture
        if capture is None:
            return find_steps(self.events)
        return find_steps(self.events, entry_name=capture.name, open_step=capture.open_step)

    @cached_property
    def innermost_op(self) -> Int32s:
        """For every row the innermost operator around it, itself included. Shape ``(n,)``."""
        return self.tree.nearest(self.events.category == Category.OP)

    @cached_property
    def launches(self) -> Launches:
        """Device work and the calls that launched it."""
        return join_launches(self.events, self.innermost_op)

    @cached_property
    def source(self) -> SourceMap:
        """Where every host event comes from in the user's code."""
        return map_source(self.events, self.tree, self.steps, self.trace.capture)

    @cached_property
    def is_communication(self) -> Mask:
        """Rows of communication kernels. Shape ``(n,)``."""
        return communication_kernels(self.events)

    @cached_property
    def devices(self) -> tuple[DeviceActivity, ...]:
        """What each device did, by ordinal."""
        return device_activity(self.events, self.launches, self.is_communication)

    @cached_property
    def busy(self) -> Intervals:
        """Time in which any device worked."""
        work = self.launches.work
        return union(self.events.ts_ns[work], self.events.end_ns[work])

    @cached_property
    def host_activity(self) -> dict[str, Intervals]:
        """Time on the host by what may make a device idle, such as ``sync`` and ``data``."""
        return host_activity(self.events, self.launches)

    @cached_property
    def idle_causes(self) -> tuple[IdleByCause, ...]:
        """Why each device was idle, by ordinal."""
        return tuple(
            idle_by_cause(self.events, self.launches, device, self.host_activity)
            for device in self.devices
        )

    @cached_property
    def syncs(self) -> Syncs:
        """Calls in which the host waits for a device."""
        return find_syncs(self.events, self.tree, self.launches)

    @cached_property
    def data_waits(self) -> Rows:
        """Rows in which the program waits for its next batch."""
        return data_waits(self.events)

    @cached_property
    def compilations(self) -> Compilations:
        """When ``torch.compile`` compiled something."""
        return compilations(self.events, self.tree)

    @cached_property
    def compiled_runs(self) -> CompiledRuns:
        """Where what ``torch.compile`` had compiled ran."""
        return compiled_runs(self.events, self.tree)

    @cached_property
    def allocations(self) -> Allocations:
        """Allocations of the window, paired with their frees."""
        return pair_allocations(self.trace.memory)

    @cached_property
    def device_memories(self) -> tuple[DeviceMemory, ...]:
        """What the snapshot tells of every device; empty without one."""
        return (
            ()
            if self.snapshot is None
            else device_memories(self.snapshot, replay_history(self.snapshot))
        )

    def relate(self) -> None:
        """Work out what every report needs, so that no rule is charged for it.

        What one relation needed on the way is given back to the system before the next.
        """
        for relation in (
            "launches",
            "source",
            "idle_causes",
            "syncs",
            "allocations",
            "device_memories",
        ):
            getattr(self, relation)
            release_free_memory()

    @property
    def has_device_work(self) -> bool:
        """Whether any device worked in the window."""
        return len(self.launches.work) > 0

    @property
    def has_lines(self) -> bool:
        """Whether lines of the user's code are known."""
        return self.source.origin is not None

    @cached_property
    def window_ns(self) -> int:
        """From the start of the first event to the end of the last."""
        if not len(self.events):
            return 0
        return int(self.events.end_ns.max() - self.events.ts_ns.min())

    def step_of(self, rows: Rows | Int32s) -> Int32s:
        """The step in which each row begins, or -1. Shape of ``rows``."""
        return self.steps.of(self.events.ts_ns[rows])

    def location(self, row: int) -> Location:
        """Where a row is: the user's line, the operator and the module around it.

        Args:
            row: A row on the host; for device work give the row of its launch or operator.
        """
        if row == NO_ROW:
            return Location()
        source = self.source
        frame = source.frames[source.frame[row]] if source.frame[row] != NO_FRAME else None
        module = source.module[row]
        op = self.innermost_op[row]
        return Location(
            file=frame.file if frame else None,
            line=frame.line if frame else None,
            function=frame.function if frame else None,
            op=self.events.name_of(op) if op != NO_ROW else None,
            module=source.modules[module] if module != NO_FRAME else None,
            precision=frame.precision if frame else "line",
        )

    def by_line(self, rows: Rows | Int32s) -> Iterator[tuple[Location, Rows]]:
        """Group rows by the user's line; rows without a line by their operator.

        Args:
            rows: Rows on the host.

        Yields:
            The location of the first of each group, and its rows in their order. A step's name is
            in the location where all rows of the group begin in that step, of several.
        """
        if not len(rows):
            return
        rows = np.asarray(rows, dtype=np.intp)
        frame = self.source.frame[rows].astype(np.int64)
        op = self.innermost_op[rows]
        named = np.where(op == NO_ROW, self.events.name[rows], self.events.name[op])
        key = np.where(frame != NO_FRAME, frame, -2 - named.astype(np.int64))
        _, first, group = np.unique(key, return_index=True, return_inverse=True)
        for number in np.argsort(first, kind="stable").tolist():
            here = rows[group == number]
            location = self.location(int(here[0]))
            yield self._with_step(location, here), here

    def _with_step(self, location: Location, rows: Rows) -> Location:
        steps = np.unique(self.step_of(rows))
        if len(self.steps) < 2 or len(steps) != 1 or steps[0] == NO_STEP:  # noqa: PLR2004
            return location
        return Location(
            file=location.file,
            line=location.line,
            function=location.function,
            op=location.op,
            module=location.module,
            step=self.steps.names[steps[0]],
            precision=location.precision,
        )

    def cost(
        self, ns: int | None = None, n_bytes: int | None = None, basis: Basis = "measured"
    ) -> Cost:
        """A cost over the window, and per step where there are steps."""
        n_steps = len(self.steps)
        return Cost(
            ns=ns,
            bytes=n_bytes,
            per_step_ns=round(ns / n_steps) if ns is not None and n_steps else None,
            per_step_bytes=round(n_bytes / n_steps) if n_bytes is not None and n_steps else None,
            basis=basis,
        )
