"""A program's last steps until its end, with the stacks of its threads and its memory.

Times are integer nanoseconds since 1970, sizes integer bytes.
"""

from dataclasses import field
from typing import Literal

from profkit.dataclass import dataclass
from profkit.model.location import Frame
from profkit.model.renderable import Renderable

SCHEMA = "profkit.last-steps/1"

ProgramState = Literal["running", "exception", "signal", "killed", "ended"]


@dataclass(frozen=True)
class LastStep:
    """One step that ended.

    Attributes:
        number: From 1.
        begin_ns: When the step before it ended; None for the first that is known.
        data_wait_ns: How long it waited for a DataLoader; None where ``begin_ns`` is.
    """

    number: int
    begin_ns: int | None
    end_ns: int
    data_wait_ns: int | None

    @property
    def dur_ns(self) -> int | None:
        """How long it took."""
        return None if self.begin_ns is None else self.end_ns - self.begin_ns


@dataclass(frozen=True)
class ThreadStack:
    """A stack that a thread had in one or more samples that follow each other.

    Attributes:
        thread: The thread's name.
        ident: Its ident, which Python reuses after its end.
        first_ns: The first of these samples.
        last_ns: The last of these samples.
        n_samples: The number of these samples.
        calls: The frames, innermost last; empty where they are no longer known.
    """

    thread: str
    ident: int
    first_ns: int
    last_ns: int
    n_samples: int
    calls: tuple[Frame, ...]


@dataclass(frozen=True)
class ProcessMemory:
    """Memory of a process at one time; None where it was not measured.

    Attributes:
        host_rss_bytes: Resident memory.
        allocated_bytes: Allocated bytes of all devices' allocators together.
        reserved_bytes: Their reserved bytes.
    """

    time_ns: int
    host_rss_bytes: int | None
    allocated_bytes: int | None
    reserved_bytes: int | None


@dataclass(frozen=True)
class ProgramError:
    """The exception, or the signal, that ended a program.

    Attributes:
        type: The exception's class, or the signal's name.
        message: Its text, shortened.
        calls: The frames of its traceback, the innermost last.
    """

    type: str
    message: str
    thread: str
    time_ns: int
    calls: tuple[Frame, ...] = ()


@dataclass(frozen=True)
class ProcessEnd:
    """One process of a program.

    Attributes:
        path: The file.
        name: The name of the run.
        argv: The program's command line.
        began_ns: When recording began.
        state: ``running``: it still runs. ``exception``: an exception ended it. ``signal``: SIGTERM
            ended it. ``killed``: it ended without writing how. ``ended``: it ended normally.
        error: The error that ended it, or None.
        n_steps: Number of steps that ended.
        steps: The last steps, oldest first.
        stacks: Stacks of all threads, in the order in which they began.
        memory: Memory samples, oldest first.
        n_skipped: Number of records that are left out, because they are damaged or incomplete.
    """

    path: str
    name: str
    host: str
    pid: int
    rank: int | None
    world_size: int | None
    argv: tuple[str, ...]
    torch: str | None
    began_ns: int
    state: ProgramState
    error: ProgramError | None
    n_steps: int
    steps: tuple[LastStep, ...]
    stacks: tuple[ThreadStack, ...]
    memory: tuple[ProcessMemory, ...]
    n_skipped: int = 0

    @property
    def last_ns(self) -> int:
        """Return the last moment of which something was recorded."""
        times = [stack.last_ns for stack in self.stacks]
        times += [memory.time_ns for memory in self.memory]
        times += [step.end_ns for step in self.steps[-1:]]
        times += [self.error.time_ns] if self.error is not None else []
        return max(times, default=self.began_ns)

    @property
    def last_stacks(self) -> tuple[ThreadStack, ...]:
        """Return the stack of each thread in the last sample, the main thread's first."""
        last_ns = max((stack.last_ns for stack in self.stacks), default=0)
        stacks = [stack for stack in self.stacks if stack.last_ns == last_ns]
        return tuple(sorted(stacks, key=lambda stack: stack.thread != MAIN_THREAD))


MAIN_THREAD = "MainThread"


@dataclass(frozen=True)
class LastSteps(Renderable):
    """The last steps of the processes of a program.

    Attributes:
        profkit: profkit's version.
        processes: By rank.
        unread: Files that could not be read, and why.
        schema: Name and version of this layout.
    """

    profkit: str
    processes: tuple[ProcessEnd, ...]
    unread: tuple[str, ...] = field(default_factory=tuple)
    schema: str = SCHEMA
