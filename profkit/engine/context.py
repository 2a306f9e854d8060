"""Everything that a rule can read of a recording, computed on first use."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property
from typing import Final

import numpy as np

from profkit.dataclass import dataclass
from profkit.engine.relation_cache import RelationCache, cached_relation
from profkit.index.compiled.compilations import (
    Compilations,
    CompiledRuns,
    find_compilations,
    find_compiled_runs,
)
from profkit.index.compute.categories import are_categories, classify_work
from profkit.index.compute.op_work import OpWork, measure_op_work
from profkit.index.compute.peaks import CPU, Peak, peak_of
from profkit.index.device.cold_calls import find_cold_calls
from profkit.index.device.idle import IdleByCause, host_activity, split_idle
from profkit.index.device.streams import DeviceActivity, find_device_activity
from profkit.index.device.syncs import Syncs, find_calls_by_profiler, find_syncs
from profkit.index.distinct import distinct, marked
from profkit.index.host.modules import ModuleTree, build_module_tree
from profkit.index.host.nesting import (
    CallTree,
    build_call_tree,
    compute_own_ns,
    compute_self_ns,
    find_rows_open_at,
)
from profkit.index.host.source import NO_FRAME, SourceMap, find_forward_of_backward, map_source
from profkit.index.host.step_marks import find_steps
from profkit.index.host.steps import NO_STEP, Steps, data_waits, divide_by_steps, leave_out_steps
from profkit.index.intervals import EMPTY, Intervals, subtract, union, unite
from profkit.index.launches import Launches, join_launches
from profkit.index.ranks.collectives import (
    communication_kernels,
    find_exposed_waits,
    host_collectives,
    host_work_time,
)
from profkit.index.replay.build import build_graph
from profkit.index.replay.critical_path import find_critical_path
from profkit.index.replay.graph import DependencyGraph
from profkit.index.replay.path import CriticalPath
from profkit.index.replay.path_activity import HostActivity
from profkit.index.replay.replay import MAX_UNEXPLAINED_SHARE, Replay
from profkit.index.runtime_calls import LAUNCH
from profkit.index.snapshot.device_memory import DeviceMemory, device_memories
from profkit.index.snapshot.replay import replay_history
from profkit.index.trace_memory.live_bytes import Allocations, pair_allocations
from profkit.model.change import ProgramChange
from profkit.model.events import (
    DEVICE_WORK,
    NO_ROW,
    RECORD_FUNCTIONS,
    Category,
    EventTable,
    Int32s,
    Int64s,
    Mask,
    Rows,
)
from profkit.model.finding import Basis, Cost
from profkit.model.flight_record import FlightRecord
from profkit.model.live_memory import LiveMemory
from profkit.model.location import Location
from profkit.model.snapshot import MemorySnapshot
from profkit.model.trace import NO_TRACE, Trace
from profkit.readers.kineto.categories import DEVICE_TYPES
from profkit.readers.process_memory import release_free_memory

MIN_UNRECORDED_SHARE: Final = 0.01
_ASCEND: Final = "Ascend Hardware"
"""The process under which torch_npu writes the tasks of its devices."""

_OF_PROGRAM: Final = (*RECORD_FUNCTIONS, Category.PYTHON, *DEVICE_WORK, Category.OTHER)
"""Categories of which a single event shows that the program was recorded; events of unknown
categories may be its own."""


@dataclass(frozen=True)
class Context:
    """A recording and the relations in it. Every property is computed once.

    Attributes:
        trace: The trace; :data:`~profkit.model.trace.NO_TRACE` without one.
        snapshot: The allocator's memory snapshot, or None.
        live: The monitored memory of the running program, or None.
        flights: What torch's FlightRecorder kept of the calls of collectives of this process.
        peaks: By device name, the peaks that the user states; ``cpu`` for a run without devices.
        tokens_per_step: Tokens that one step processes, or None if the user does not state it.
        parameters: Parameters of the model that each token uses, or None.
        kept: Costly relations that an earlier process has computed from these files; None without
            a cache.
    """

    trace: Trace = NO_TRACE
    snapshot: MemorySnapshot | None = None
    live: LiveMemory | None = None
    flights: tuple[FlightRecord, ...] = ()
    peaks: Mapping[str, Peak] = field(default_factory=dict)
    tokens_per_step: int | None = None
    parameters: int | None = None
    kept: RelationCache | None = None

    @property
    def path(self) -> str:
        """Path of the analyzed file; empty for a program that was only monitored."""
        if self.has_trace:
            return self.trace.path
        if self.snapshot is not None:
            return self.snapshot.path
        return self.flights[0].path if self.flights else ""

    @property
    def has_trace(self) -> bool:
        """Return whether the recording has a trace."""
        return self.trace is not NO_TRACE

    @property
    def events(self) -> EventTable:
        """Complete events of the trace."""
        return self.trace.events

    @cached_relation(lambda tree, ctx: tree.fits(ctx.events))
    def tree(self) -> CallTree:
        """Call trees of the host threads."""
        return build_call_tree(self.events)

    @cached_property
    def all_steps(self) -> Steps:
        """Steps of the recording, those that other programs disturbed too.

        Such a step takes longer than it does without them, and allocates what it always does.
        """
        capture = self.trace.capture
        if capture is None or capture.steps == "whole":
            return find_steps(self.events)
        return find_steps(self.events, entry_name=capture.name, open_step=capture.open_step)

    @cached_property
    def steps(self) -> Steps:
        """Steps of the recording that figures are of."""
        capture = self.trace.capture
        return leave_out_steps(self.all_steps, () if capture is None else capture.left_out_steps)

    @property
    def innermost_op(self) -> Int32s:
        """Innermost operator around each row, itself included. Shape ``(n,)``."""
        return self.tree.innermost_op

    @cached_property
    def launches(self) -> Launches:
        """Device work and the calls that launched it."""
        return join_launches(self.events, self.innermost_op)

    @cached_relation(lambda work, ctx: work.fits(ctx.events))
    def op_work(self) -> OpWork:
        """FLOPs and bytes of the operators whose inputs were recorded."""
        return measure_op_work(self.events, self.tree)

    @cached_property
    def op_self_ns(self) -> Int64s:
        """Host time of each operator without the operators within it; else 0. Shape ``(n,)``."""
        return compute_self_ns(self.events, self.tree, self.events.category == Category.OP)

    @cached_property
    def own_ns(self) -> Int64s:
        """Duration of each host row without its children; else 0. Shape ``(n,)``."""
        return compute_own_ns(self.events, self.tree)

    @cached_property
    def rows_of_memory(self) -> Int32s:
        """Innermost host row that runs at each ``[memory]`` event, on its thread.

        :data:`~profkit.model.events.NO_ROW` for none. Shape of ``trace.memory.lane``.
        """
        table = self.trace.memory
        return find_rows_open_at(self.events, self.tree, table.lane, table.ts_ns)

    @cached_relation(lambda categories, ctx: are_categories(categories, ctx.events))
    def work_categories(self) -> Int64s:
        """Index of the category of each operator and device row. Shape ``(n,)``."""
        return classify_work(self.events, self.tree, self.launches, self.is_communication)

    @cached_relation(lambda source, ctx: source.fits(ctx.events))
    def source(self) -> SourceMap:
        """Source line of every host event."""
        capture = self.trace.capture
        return map_source(self.events, self.tree, self.steps, capture, self.forward_ops)

    @cached_property
    def forward_ops(self) -> Int32s:
        """Forward operator of each row of a backward pass, else NO_ROW. Shape ``(n,)``."""
        return find_forward_of_backward(self.events, self.tree)

    @cached_relation(lambda modules, ctx: modules is None or modules.fits(ctx.events))
    def modules(self) -> ModuleTree | None:
        """Tree of modules, or None if no calls of modules were recorded."""
        return build_module_tree(self.events, self.tree, self.forward_ops)

    @cached_property
    def is_communication(self) -> Mask:
        """Rows of communication kernels. Shape ``(n,)``."""
        return communication_kernels(self.events)

    @cached_property
    def devices(self) -> tuple[DeviceActivity, ...]:
        """Activity of each device, by ordinal."""
        return find_device_activity(self.events, self.launches, self.is_communication)

    @cached_property
    def busy(self) -> Intervals:
        """Time in which any device was busy."""
        work = self.launches.work
        return union(self.events.ts_ns[work], self.events.end_ns[work])

    @cached_property
    def own_time(self) -> Intervals:
        """Time in which the thread of the steps ran profkit and no device was busy.

        No figure counts it. Without steps it is the thread with most operators.
        """
        events = self.events
        profkit_rows, op_rows = events.rows_of(Category.PROFKIT), events.rows_of(Category.OP)
        if not len(profkit_rows):
            return EMPTY

        # Only the thread of the steps delays them: other threads of profkit do not count.
        lanes = distinct(events.lane[self.steps.rows]).tolist()
        if not lanes and len(op_rows):
            lanes = [int(np.bincount(events.lane[op_rows]).argmax())]

        rows = profkit_rows[np.isin(events.lane[profkit_rows], lanes)]
        return subtract(union(events.ts_ns[rows], events.end_ns[rows]), self.busy)

    @cached_property
    def host_activity(self) -> dict[str, Intervals]:
        """Host time by what can leave a device idle, such as ``sync`` and ``data``."""
        return host_activity(self.events, self.launches)

    @cached_property
    def unrecorded(self) -> Intervals:
        """Time in which a device worked on something that is not in the recording.

        Empty below :data:`MIN_UNRECORDED_SHARE`, where it may be an error of the latencies.
        """
        if not self.has_device_work:
            return EMPTY

        unrecorded = self.graph.unrecorded
        is_certain = unrecorded.total_ns >= MIN_UNRECORDED_SHARE * self.window_ns
        return unrecorded if is_certain else EMPTY

    @cached_property
    def idle_causes(self) -> tuple[IdleByCause, ...]:
        """Idle time of each device by cause, by ordinal; without the time of unrecorded work."""
        return tuple(
            split_idle(self.events, self.launches, device, self.host_activity, self.unrecorded)
            for device in self.devices
        )

    @cached_relation(lambda syncs, ctx: syncs.fits(ctx.events))
    def syncs(self) -> Syncs:
        """Calls that block the host until a device has finished."""
        return find_syncs(self.events, self.tree, self.launches)

    @cached_property
    def cold_calls(self) -> Rows:
        """Calls of the runtime that first load code or a library, or create a context."""
        return find_cold_calls(self.events, self.tree, self.syncs.rows, self.busy)

    @cached_relation(lambda graph, ctx: graph.fits(ctx.events))
    def graph(self) -> DependencyGraph:
        """Dependency graph of the recording."""
        ignored = find_calls_by_profiler(self.events, self.tree, self.launches, self.syncs.rows)
        return build_graph(self.events, self.tree, self.launches, self.syncs, self.steps, ignored)

    @cached_property
    def replay(self) -> Replay:
        """Dependency graph, to be replayed with changes."""
        return Replay(self.events, self.steps, self.graph)

    @cached_property
    def path_activity(self) -> HostActivity:
        """Activity of the host threads, as critical paths need it."""
        # Collectives on the host block their thread only while nothing else of the rank works.
        events, collectives = self.events, host_collectives(self.events)
        waits = EMPTY
        if len(collectives):
            working = unite(host_work_time(events, self.tree), self.busy)
            waits = find_exposed_waits(events, collectives, working, 0, self.window_ns)

        data_wait = self.nearest(self.data_waits)
        return HostActivity(self.tree, self.syncs, data_wait, self.is_communication, waits)

    @cached_relation(lambda path, ctx: path.fits(ctx.events, len(ctx.steps)))
    def critical_path(self) -> CriticalPath:
        """Critical path of all steps, without profkit's own calls."""
        path = find_critical_path(self.replay, self.path_activity)
        return path.without(self.events.category == Category.PROFKIT)

    @cached_property
    def data_waits(self) -> Rows:
        """Rows in which the program waits for the next batch."""
        return data_waits(self.events)

    @cached_property
    def compilations(self) -> Compilations:
        """Compilations by ``torch.compile``."""
        return find_compilations(self.events, self.tree)

    @cached_property
    def compiled_runs(self) -> CompiledRuns:
        """Calls of compiled code."""
        return find_compiled_runs(self.events, self.tree)

    @cached_property
    def allocations(self) -> Allocations:
        """Allocations in the window, paired with their frees."""
        return pair_allocations(self.trace.memory)

    @cached_property
    def device_memories(self) -> tuple[DeviceMemory, ...]:
        """Memory of each device in the snapshot; empty without a snapshot."""
        if self.snapshot is None:
            return ()
        return device_memories(self.snapshot, replay_history(self.snapshot))

    def relate(self) -> None:
        """Compute what every report needs, so that no rule's run time includes it.

        Temporary memory is returned to the system after each relation.
        """
        for relation in (
            "launches",
            "source",
            "idle_causes",
            "syncs",
            "critical_path",
            "op_work",
            "allocations",
            "device_memories",
        ):
            getattr(self, relation)
            release_free_memory()

    @property
    def has_device_work(self) -> bool:
        """Return whether any device was busy in the window."""
        return len(self.launches.work) > 0

    @property
    def has_lines(self) -> bool:
        """Return whether source lines are known."""
        return self.source.origin is not None

    @cached_property
    def window_ns(self) -> int:
        """Time from the start of the first event to the end of the last."""
        if not len(self.events):
            return 0
        return int(self.events.end_ns.max() - self.events.ts_ns.min())

    def device_label(self, device: int) -> str:
        """Return PyTorch's name of a device: ``cuda:0`` also with ROCm, ``xpu:0`` for Intel.

        Args:
            device: The device's ordinal.
        """
        return f"{self.device_type}:{device}"

    @cached_property
    def device_type(self) -> str:
        """Return PyTorch's name of the kind of devices: ``cuda`` also with ROCm, or ``xpu``."""
        if any(lane.process == _ASCEND for lane in self.events.lanes):
            return "npu"
        vendors = {category.partition("_")[0] for category in self.trace.notes.categories}
        return next((kind for vendor, kind in DEVICE_TYPES.items() if vendor in vendors), "cuda")

    def peak_of(self, device: int | None) -> Peak | None:
        """Return the peaks of a device by its ordinal, or of the CPU; None if they are not known.

        A device without a description counts as like the others, if all of them are of one kind.
        """
        if device is None:
            return self.peaks.get(CPU)

        described = self.trace.devices
        candidates = [described[device]] if device in described else described.values()
        kinds = {(candidate.name, candidate.n_sms) for candidate in candidates}
        if len(kinds) != 1:
            return None

        name, n_sms = kinds.pop()
        return self.peaks.get(name) or peak_of(name, n_sms)

    def nearest(self, rows: Rows | Int32s) -> Int32s:
        """Return the innermost of ``rows`` around each row, itself included. Shape ``(n,)``."""
        is_row = marked(rows, len(self.events))[:-1]
        return self.tree.nearest(is_row)

    def launched_by(self, rows: Rows) -> tuple[Rows, Int32s]:
        """Return the device work that operators, or operators within them, launched.

        Args:
            rows: Operators or what contains them, such as annotations.

        Returns:
            The work, ascending, and for each the innermost of ``rows`` that launched it.
        """
        op = self.launches.op
        owner = np.where(op == NO_ROW, NO_ROW, self.nearest(rows)[op])
        return self.launches.work[owner != NO_ROW], owner[owner != NO_ROW]

    def step_of(self, rows: Rows | Int32s) -> Int32s:
        """Return the step in which each row begins, or -1. Shape of ``rows``."""
        return self.steps.of(self.events.ts_ns[rows])

    def location(self, row: int) -> Location:
        """Return the source line, operator and module of a host row.

        Device work has none of its own: pass its launch or operator.
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
        """Group host rows by source line; rows without one by their operator.

        Stacks that torch recorded have only the first line of each function: then these are groups
        of a function's calls, whose location has the precision ``function``.

        Yields:
            The location of the first row of each group, and the group's rows in their order. The
            location names a step if there are several and all rows begin in that one.
        """
        if not len(rows):
            return
        rows = np.asarray(rows, dtype=np.intp)

        frame = self.source.frame[rows].astype(np.int64)
        op = self.innermost_op[rows]
        name_number = np.where(op == NO_ROW, self.events.name[rows], self.events.name[op])
        # Lines are numbered from 0. Names take the numbers below -1, so that no key is both.
        key = np.where(frame != NO_FRAME, frame, -2 - name_number.astype(np.int64))
        _, first, group = np.unique(key, return_index=True, return_inverse=True)

        for number in np.argsort(first, kind="stable").tolist():
            group_rows = rows[group == number]
            location = self.location(int(group_rows[0]))
            steps = distinct(self.step_of(group_rows))
            is_one_step = len(self.steps) > 1 and len(steps) == 1 and steps[0] != NO_STEP
            if is_one_step:
                location = replace(location, step=self.steps.names[steps[0]])
            yield location, group_rows

    def costliest_lines(
        self, rows: Rows | Int32s, limit: int, spent_ns: Int64s | None = None
    ) -> tuple[Location, ...]:
        """Return the lines with the most time, the costliest first.

        Args:
            rows: Host rows, in any order; a row may occur several times. Shape ``(k,)``.
            limit: The maximum number of lines.
            spent_ns: The time to add for each; by default each counts the same. Shape ``(k,)``.
        """
        # A row that occurs several times counts each time, which `total[rows] +=` would not do.
        total = np.zeros(len(self.events), dtype=np.int64)
        np.add.at(total, rows, 1 if spent_ns is None else spent_ns)

        unique_rows = distinct(rows).astype(np.intp)
        lines = sorted(self.by_line(unique_rows), key=lambda line: -int(total[line[1]].sum()))
        return tuple(location for location, _ in lines[:limit])

    @cached_property
    def has_program(self) -> bool:
        """Return whether anything but the profiler's own calls was recorded."""
        events = self.events
        is_any = len(events.rows_of(*_OF_PROGRAM)) or len(LAUNCH.rows(events))
        return bool(is_any or len(self.trace.memory))

    @cached_property
    def is_unexplained(self) -> bool:
        """Return whether a replay explains too little of the steps to predict costs."""
        most_ns = MAX_UNEXPLAINED_SHARE * self.replay.recorded_ns
        return self.critical_path.unexplained_ns > most_ns

    def time_cost(self, change: ProgramChange, basis: Basis = "replay") -> Cost:
        """Return the time that a change saves, by replay; for several use :meth:`time_costs`."""
        return self.time_costs((change,), basis)[0]

    def time_costs(self, changes: Sequence[ProgramChange], basis: Basis = "replay") -> list[Cost]:
        """Return the time that each of some changes saves, by replay.

        Where too much of the recording is unexplained, it is an upper bound: all that was
        unexplained may disappear with the change, but no more time than it removes.

        Args:
            basis: ``upper-bound`` or ``estimate`` where the change itself is one.
        """
        costs = []
        for change, saving in zip(changes, self.replay.savings(changes), strict=True):
            ns, high_ns = saving.ns, saving.max_ns
            if self.is_unexplained:
                possible_ns = saving.max_ns + self.critical_path.unexplained_ns
                ns = high_ns = min(possible_ns, self.replay.removed_ns(change))
                basis = "upper-bound"

            cost = self.cost(ns, basis=basis)
            costs.append(replace(cost, low_ns=min(saving.ns, ns), high_ns=high_ns))
        return costs

    def cost(
        self, ns: int | None = None, n_bytes: int | None = None, basis: Basis = "measured"
    ) -> Cost:
        """Return a cost in total, and per step if the recording has steps."""
        per_step_ns, per_step_bytes = (
            None if total is None else divide_by_steps(total, len(self.steps))
            for total in (ns, n_bytes)
        )
        return Cost(ns, n_bytes, per_step_ns, per_step_bytes, basis=basis)
