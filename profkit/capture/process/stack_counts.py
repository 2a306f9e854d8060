"""How often threads ran with which Python stacks, in bounded memory."""

from typing import Final

from profkit.capture.process.thread_stacks import Calls
from profkit.capture.source.files import PROFKIT_FOLDER
from profkit.dataclass import dataclass

_MAX_STACKS: Final = 10_000


@dataclass(frozen=True)
class StackCount:
    """How often a thread ran with one stack.

    Attributes:
        thread: The thread's ident, which Python reuses after its end.
        n: Number of samples.
        ns: Time that they stand for: from the sample before each of them, of whichever stack.
    """

    thread: int
    calls: Calls
    n: int
    ns: int


class StackCounts:
    """Counts the samples of running threads by thread and stack, up to a number of stacks.

    Attributes:
        n_left_out: Samples that are in no count, as there are too many stacks.
    """

    __slots__ = ("_counts", "_stacks", "n_left_out")

    def __init__(self) -> None:
        self.n_left_out = 0
        self._counts: dict[tuple[int, Calls], list[int]] = {}
        self._stacks: dict[Calls, Calls] = {}

    def shared(self, calls: Calls) -> Calls:
        """Return the stack that equals this one and is in memory already, or else this one."""
        if len(self._stacks) < _MAX_STACKS:
            return self._stacks.setdefault(calls, calls)
        return calls

    def add(self, thread: int, calls: Calls, elapsed_ns: int) -> None:
        """Count a sample of a thread, which stands for the time since the sample before."""
        key = (thread, calls)
        count = self._counts.get(key)
        if count is None:
            if len(self._counts) >= _MAX_STACKS:
                self.n_left_out += 1
                return
            count = self._counts[key] = [0, 0]

        count[0] += 1
        count[1] += elapsed_ns

    def read(self) -> list[StackCount]:
        """Return the counts without frames of profkit, most time first."""
        counts = [
            StackCount(thread, program_calls, n, ns)
            # A copy, as the sampling thread may add to them meanwhile.
            for (thread, calls), (n, ns) in list(self._counts.items())
            if (program_calls := _select_program_calls(calls))
        ]
        return sorted(counts, key=lambda count: -count.ns)


def _select_program_calls(calls: Calls) -> Calls:
    """Return the calls without those of profkit, or none where profkit itself was running."""
    if not calls or calls[-1][0].startswith(PROFKIT_FOLDER):
        return ()
    return tuple(call for call in calls if not call[0].startswith(PROFKIT_FOLDER))
