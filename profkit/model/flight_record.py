"""What torch's FlightRecorder wrote of one rank: its last calls of collectives.

Source: ``torch/csrc/distributed/c10d/FlightRecorder.hpp`` (``Entry``).
"""

from collections.abc import Mapping
from dataclasses import field
from math import prod
from typing import Final, Literal

from profkit.dataclass import dataclass
from profkit.model.location import Frame
from profkit.model.process_group import ProcessGroup

CallProgress = Literal["scheduled", "started", "completed"]
"""How far a collective is on one rank: called by the host, started on the device, completed."""
Sizes = tuple[tuple[int, ...], ...]
"""The shape of each tensor."""

_MAX_ELEMENTS: Final = (1 << 62) - 1


@dataclass(frozen=True)
class RecordedCall:
    """A call of a collective.

    Attributes:
        name: The call with its backend and, for sends and receives, the ranks in the group, such as
            ``nccl:all_reduce`` or ``nccl:send 0->1``.
        group: Name of its process group.
        description: The purpose of the group, such as ``default_pg``, or empty.
        seq: Its number among the group's collectives on this rank, or among the group's sends and
            receives. None where it was not recorded.
        is_p2p: Whether it is a send or receive.
        created_ns: Nanoseconds since 1970 when the host called it, or None.
        progress: How far it was when the record was written. Gloo does not record starts.
        is_retired: Whether torch no longer waits for it. One that has not completed has timed out.
        inputs: Shapes of its inputs.
        outputs: Shapes of its outputs.
        input_types: Their element types, such as ``Float``.
        output_types: Those of the outputs.
        frames: The Python stack of the call, innermost first; empty where it was not recorded.
    """

    name: str
    group: str
    description: str = ""
    seq: int | None = None
    is_p2p: bool = False
    created_ns: int | None = None
    progress: CallProgress = "scheduled"
    is_retired: bool = False
    inputs: Sizes = ()
    outputs: Sizes = ()
    input_types: tuple[str, ...] = ()
    output_types: tuple[str, ...] = ()
    frames: tuple[Frame, ...] = ()

    @property
    def has_timed_out(self) -> bool:
        """Return whether torch has given up waiting for the call."""
        return self.is_retired and self.progress != "completed"

    @property
    def n_in(self) -> int:
        """Number of elements of all inputs."""
        return _n_elements(self.inputs)

    @property
    def n_out(self) -> int:
        """Number of elements of all outputs."""
        return _n_elements(self.outputs)

    @property
    def element_type(self) -> str:
        """Return the element type of the first tensor, or empty."""
        return next(iter((*self.input_types, *self.output_types)), "")


def _n_elements(sizes: Sizes) -> int:
    return min(sum(map(prod, sizes)), _MAX_ELEMENTS)


@dataclass(frozen=True)
class RankSteps:
    """The latest steps of a rank by its main thread. One value for each step.

    Attributes:
        first: How many steps ended before them.
        ends_ns: Nanoseconds since 1970 when the step ended.
        own_ns: How long profkit stopped the program before the step.
        delayed_ns: How long the thread was ready to run in the step and had no core.
        cpu_ns: Processor time of the thread in the step.
    """

    first: int
    ends_ns: tuple[int, ...]
    own_ns: tuple[int, ...]
    delayed_ns: tuple[int, ...]
    cpu_ns: tuple[int, ...]


@dataclass(frozen=True)
class RankFailure:
    """Why the program of a rank ended early.

    Attributes:
        at_ns: Nanoseconds since 1970.
        what: What the rank has done, such as ``raised ValueError: bad batch``.
        file: The innermost file of the program on the exception's stack, or empty.
        line: The line there, or 0.
        is_consequence: Whether another rank or somebody outside has caused it.
        has_died: Whether the process was gone without a Python exception.
    """

    at_ns: int
    what: str
    file: str = ""
    line: int = 0
    is_consequence: bool = False
    has_died: bool = False


@dataclass(frozen=True)
class FlightRecord:
    """The last calls of collectives of one rank.

    Attributes:
        path: The file.
        rank: The rank: from the file, else from its name, else None.
        world_size: Number of ranks of the job, or None.
        host: The machine, or None.
        pid: The process, or None.
        written_ns: Nanoseconds since 1970 when it was written, or None.
        is_end: Whether profkit wrote it when the program had ended, and made no further calls.
        is_of_window: Whether profkit wrote it with a trace, while the program continued.
        stopped_by: The exception or signal that ended the program, or empty.
        version: The version of the format, such as ``2.10``, or empty.
        groups: The process groups of this rank by name, as far as their ranks are known.
        calls: The calls, in order.
        has_all: Whether no earlier calls were overwritten.
        n_skipped: Entries that could not be read.
        steps: The times of its steps until the end of the program, or None.
        failure: Why the program ended early, or None.
    """

    path: str
    rank: int | None
    world_size: int | None = None
    host: str | None = None
    pid: int | None = None
    written_ns: int | None = None
    is_end: bool = False
    is_of_window: bool = False
    stopped_by: str = ""
    version: str = ""
    groups: Mapping[str, ProcessGroup] = field(default_factory=dict)
    calls: tuple[RecordedCall, ...] = ()
    has_all: bool = False
    n_skipped: int = 0
    steps: RankSteps | None = None
    failure: RankFailure | None = None

    def group_of(self, call: RecordedCall) -> ProcessGroup:
        """Return the process group of a call."""
        group = self.groups.get(call.group)
        if group is not None and group.ranks:
            return ProcessGroup(call.group, group.ranks, len(group.ranks), call.description)
        return ProcessGroup(call.group, description=call.description)
