"""The door for authors of rules: what a rule imports of profkit.

A rule begins with one import::

    from profkit.rule import Context, Finding, RuleInfo, dataclass, needs

It may also import relations between events from :mod:`profkit.index`, and what several rules of one
kind share from :mod:`profkit.engine.families`. All else of profkit may move, and these names stay.
They are, in the order of ``__all__``:

The parts of a rule's module:
    :class:`RuleInfo` for its ``INFO``, with what it needs from ``needs``, or a :class:`Need` of its
    own; ``dataclass`` for its ``Thresholds``, at a twentieth of the time of the standard library's;
    ``regex`` for patterns, which are compiled at their first use.

What ``detect`` gets:
    A :class:`Context`, which is all of one recording, with relations that are computed at their
    first use; or a :class:`JobContext` with all ranks, for a rule that needs ``needs.RANKS``.

What ``detect`` yields:
    A :class:`Finding`. ``measure_saving`` replays the recording with a :class:`ProgramChange` and
    tells what the steps take less, whether that ``reaches`` a share of them, and builds the finding
    on it. A finding that no replay has a cost for is built by ``INFO.finding(...)``.

Steps:
    Everything is measured in ``windows(ctx)``, which are the steps, or the whole recording if it
    has no steps. ``find_rows`` finds events in them by name, ``reaches_share`` compares a time with
    them. Rules on calls that block the host share :class:`WaitThresholds` and
    ``find_costly_waits``.

Parts of messages:
    Places, counts and times, worded alike in all findings, and numbers with their units. Names from
    a recording are text of strangers: ``visible`` makes them safe to print.

Events:
    Rows are indices into ``ctx.events``, whose columns are NumPy arrays. ``NO_ROW`` and ``MISSING``
    stand for what is not there. ``torch_names`` has the names that PyTorch gives to its events.

Records:
    What profkit writes beside the events, what is known of a device and a file, memory snapshots
    and monitored memory, and the delays of ranks: types of attributes of a context.
"""

from profkit.dataclass import dataclass
from profkit.engine import needs
from profkit.engine.context import Context
from profkit.engine.detector import RuleInfo
from profkit.engine.device_support import lacks_bfloat16
from profkit.engine.figures.snapshot import allocation_sites, fragmentation_summary
from profkit.engine.job_context import JobContext, PlaceTime
from profkit.engine.needs import Need
from profkit.engine.savings import (
    CostlyWait,
    MeasuredSaving,
    WaitThresholds,
    find_costly_wait,
    find_costly_waits,
    measure_saving,
    measure_savings,
)
from profkit.engine.windows import (
    MAX_EVENT_IDS,
    busy_ns,
    device_time,
    event_ids,
    find_computing,
    find_rows,
    idle_in_windows,
    in_windows,
    launched_in_windows,
    reaches_share,
    select_on_cpu,
    time_with_busy_share,
    time_with_share,
    uses_device,
    waits_in_windows,
    windows,
    windows_ns,
)
from profkit.engine.wording import (
    MAX_LINES,
    at,
    at_first,
    counted,
    find_costliest_lines,
    from_torch,
    known_locations,
    listed,
    tensor_method,
    the_group,
    the_ranks,
    time_per_step,
    times_per_step,
)
from profkit.model import torch_names
from profkit.model.capture_info import (
    DEBUG_SETTINGS,
    CodePlace,
    Compiled,
    CpuTime,
    DeviceMismatch,
    HostThreads,
)
from profkit.model.change import ProgramChange
from profkit.model.events import (
    MISSING,
    NO_ROW,
    Category,
    Float64s,
    Int32s,
    Int64s,
    Mask,
    Rows,
)
from profkit.model.finding import Basis, Confidence, Cost, Finding
from profkit.model.flight_record import RankFailure
from profkit.model.growth import growth
from profkit.model.job import Lateness
from profkit.model.live_memory import CYCLE, NUMBERED, TEE, Chain, Leak
from profkit.model.location import Location
from profkit.model.memory_summary import FragmentationSite
from profkit.model.snapshot import NO_STACK, MemorySnapshot, State
from profkit.model.trace import LOST_TIME, DeviceInfo, LoadNotes
from profkit.names import middle_cut, visible
from profkit.patterns import regex
from profkit.readers.kineto.categories import WITHOUT_WORK
from profkit.units import format_bytes, format_count, format_ns, format_share, format_times

__all__ = [  # noqa: RUF022  (in groups)
    # The parts of a rule's module.
    "RuleInfo", "needs", "Need", "dataclass", "regex",
    # What detect gets.
    "Context", "JobContext",
    # What detect yields.
    "Finding", "ProgramChange", "measure_saving", "measure_savings", "MeasuredSaving", "Cost",
    "Basis", "Confidence", "Location", "growth",
    # Steps.
    "windows", "windows_ns", "in_windows", "find_rows", "launched_in_windows", "find_computing",
    "select_on_cpu", "waits_in_windows", "reaches_share", "busy_ns", "device_time",
    "idle_in_windows", "uses_device", "WaitThresholds", "CostlyWait", "find_costly_wait",
    "find_costly_waits",
    # Parts of messages.
    "find_costliest_lines", "MAX_LINES", "known_locations", "at", "at_first", "tensor_method",
    "counted", "listed", "from_torch", "times_per_step", "time_per_step", "time_with_share",
    "time_with_busy_share", "the_ranks", "the_group", "format_bytes", "format_count", "format_ns",
    "format_share", "format_times", "visible", "middle_cut", "event_ids", "MAX_EVENT_IDS",
    # Events.
    "Category", "Rows", "Mask", "Int32s", "Int64s", "Float64s", "NO_ROW", "MISSING", "torch_names",
    "WITHOUT_WORK",
    # Records.
    "Compiled", "CodePlace", "CpuTime", "HostThreads", "DeviceMismatch", "DEBUG_SETTINGS",
    "DeviceInfo", "lacks_bfloat16", "LoadNotes", "LOST_TIME", "MemorySnapshot", "State", "NO_STACK",
    "FragmentationSite", "fragmentation_summary", "allocation_sites", "Leak", "Chain", "CYCLE",
    "NUMBERED", "TEE", "Lateness", "PlaceTime", "RankFailure",
]  # fmt: skip
