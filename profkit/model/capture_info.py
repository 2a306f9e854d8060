"""What profkit writes into a trace that it records: the key ``profkit`` at the top of the JSON."""

from dataclasses import dataclass, field
from typing import Literal

StepKind = Literal["user", "loader", "optimizer", "entry", "whole"]


@dataclass(frozen=True)
class CaptureCost:
    """What the recording itself cost, in nanoseconds. None where it was not measured.

    Attributes:
        start_ns: From asking the profiler to start until it ran.
        stop_ns: From asking it to stop until its events were collected.
        write_ns: From then until the file was in place, as far as known when it was written.
        n_events: Events in the window.
        overhead_ratio: By how much the recording made the window longer: 0.8 means that a second
            of the program took 1.8 seconds.
        overhead_basis: How ``overhead_ratio`` is known, in a few words.
    """

    start_ns: int | None = None
    stop_ns: int | None = None
    write_ns: int | None = None
    n_events: int | None = None
    overhead_ratio: float | None = None
    overhead_basis: str = ""


@dataclass(frozen=True)
class OpLines:
    """Which line of the user's code each operator of a window came from.

    Lists have one entry a host event that is no Python call (operators, annotations, and runtime
    calls outside operators), each thread's in the order of their starts. The annotations that mark
    steps and entries are left out.

    Attributes:
        same_window: The lines were recorded in the window of this trace, so ``external_id`` joins
            them. Otherwise they come from another step of the same loop, and are joined by step,
            operator sequence and kernel.
        names: Every operator's name once.
        frames: ``[file, line, function, exact]``; with ``exact`` 0 only the function is known.
        modules: Every ``nn.Module`` once, as torch names it.
        name: Index into ``names``.
        parent: Index of the enclosing entry in these lists, or -1.
        thread: The operating system's thread id, as the trace has it in ``tid``.
        external_id: ``External id`` of the operator, or -1.
        frame: Index into ``frames`` of the innermost user frame, or -1.
        module: Index into ``modules``, or -1.
    """

    same_window: bool
    names: list[str]
    frames: list[tuple[str, int, str, int]]
    modules: list[str]
    name: list[int]
    parent: list[int]
    thread: list[int]
    external_id: list[int]
    frame: list[int]
    module: list[int]


CodePlace = tuple[str, int, str]
"""File, line and function."""


@dataclass(frozen=True)
class Compiled:
    """One time that ``torch.compile`` compiled a function, or gave up on it.

    Attributes:
        number: torch's number, such as ``3/1``: of the function, and of how often it was compiled
            before. Empty where this torch has none.
        code: The function; ``("", 0, "")`` where it is not known.
        is_users: Whether the user wrote the function.
        caller: The user's line that called it, or None.
        start_ns: When it began, in nanoseconds since 1970, or None.
        dur_ns: How long it took, in nanoseconds, or None.
        n_ops: Operators in its graph, or None: without a graph, or not known.
        again: Whether nothing of what it was compiled to before did fit.
        reason: Why not, in torch's words, or empty.
        failure: Why torch gave up, in its words, or empty.
    """

    number: str = ""
    code: CodePlace = ("", 0, "")
    is_users: bool = False
    caller: CodePlace | None = None
    start_ns: int | None = None
    dur_ns: int | None = None
    n_ops: int | None = None
    again: bool = False
    reason: str = ""
    failure: str = ""


@dataclass(frozen=True)
class GraphBreak:
    """A place where ``torch.compile`` had to end a graph.

    Attributes:
        reason: Why, in torch's words.
        stack: The calls that were compiled together there, the innermost first.
        user: Place in ``stack`` of the innermost one of the user's, or -1.
        n: How often it was met in compiling.
    """

    reason: str
    stack: list[CodePlace]
    user: int = -1
    n: int = 1


@dataclass(frozen=True)
class Compiles:
    """What ``torch.compile`` had done in the process by the end of the window.

    Attributes:
        compiled: As far as torch remembers, the oldest first.
        breaks: Where graphs ended.
        n_left_out: How many of both are left out, of very many.
    """

    compiled: list[Compiled] = field(default_factory=list)
    breaks: list[GraphBreak] = field(default_factory=list)
    n_left_out: int = 0


@dataclass(frozen=True)
class CaptureInfo:
    """The recording as profkit saw it.

    Attributes:
        version: profkit's version.
        name: Name of the capture, as in ``profkit.trace("step")``.
        steps: What a step is here: the user's ``step()`` or ``profkit.steps``, a loader's
            iteration, an optimizer's step, one entry of a block, or the whole run.
        torch: PyTorch's version.
        python: Python's version.
        cuda: Version of CUDA or HIP that torch was built for, or None.
        driver: Version of the driver, or None.
        devices: Names of the devices in use.
        rank: Rank in a distributed job, or None.
        world_size: Ranks in that job, or None.
        host: The machine's name.
        pid: The process.
        argv: The program and its arguments.
        paths: From the shortened paths in the trace's stacks to the files they stand for.
        libraries: First parts of shortened paths that belong to installed packages or to the
            standard library, and so are not the user's code.
        cost: What the recording cost.
        lines: Which line each operator came from, or None without stacks.
        stopped_by: Empty, or the exception or signal that ended the window early.
        open_step: Name of the annotation of the step that had begun and not ended when the window
            did, or empty. It is no whole step, so its length says nothing.
        compiles: What ``torch.compile`` had done by then, or None where it had done nothing.
    """

    version: str
    name: str
    steps: StepKind = "entry"
    torch: str | None = None
    python: str | None = None
    cuda: str | None = None
    driver: str | None = None
    devices: list[str] = field(default_factory=list)
    rank: int | None = None
    world_size: int | None = None
    host: str | None = None
    pid: int | None = None
    argv: list[str] = field(default_factory=list)
    paths: dict[str, str] = field(default_factory=dict)
    libraries: list[str] = field(default_factory=list)
    cost: CaptureCost = field(default_factory=CaptureCost)
    lines: OpLines | None = None
    stopped_by: str = ""
    open_step: str = ""
    compiles: Compiles | None = None
