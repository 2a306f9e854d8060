"""``profkit.no_sync``: an error at the line where the host waits for a CUDA device."""

import linecache
import threading
from collections.abc import Callable
from contextvars import Token
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from profkit.capture import current, wrappers
from profkit.capture.memory.holders.frames import is_ours
from profkit.capture.syncs import regions, sync_monitor
from profkit.capture.syncs.tally import Tally
from profkit.capture.syncs.wait import Wait
from profkit.errors import HostSyncError, UsageError
from profkit.model.live_memory import SyncSite

if TYPE_CHECKING:
    from typing_extensions import Self

Function = TypeVar("Function", bound=Callable[..., Any])

_HINT: Final = (
    "Keep the value on the device until the end, copy it with non_blocking=True to pinned memory, "
    'or say why it must wait: with profkit.allow_sync("…").'
)

_open: Final[list["NoSync"]] = []
"""The guards that are open in any thread."""


class IdleGuard:
    """A ``profkit.no_sync`` that looks at nothing; all share one object."""

    __slots__ = ()

    lines: tuple[SyncSite, ...] = ()

    def __enter__(self) -> "Self":
        return self

    def __exit__(self, _kind: object, _error: object, _traceback: object) -> None:
        return None

    def __call__(self, function: Function) -> Function:
        """Leave a function as it is."""
        return function


IDLE: Final = IdleGuard()


class NoSync:
    """One use of ``profkit.no_sync``, as a context manager or a decorator.

    Args:
        raises: Whether a wait is an error; else it is only counted.
        extensions: Whether waits in extensions are looked for.
    """

    def __init__(self, *, raises: bool, extensions: bool) -> None:
        self._raises = raises
        self._extensions = extensions
        self._tally = Tally()
        self._late: Wait | None = None
        self._token: Token[object] | None = None

    def __enter__(self) -> "Self":
        if self._token is not None:
            raise UsageError("This profkit.no_sync is open; a block within takes one of its own.")
        sync_monitor.listen(self._hear, with_callbacks=self._extensions)
        _open.append(self)
        self._token = regions.guard.set(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        token, self._token = self._token, None
        if token is None:
            return
        regions.leave(regions.guard, token)
        sync_monitor.unlisten(self._hear)
        _open.remove(self)
        if isinstance(error, HostSyncError):
            _end_at_the_line(error)
        late, self._late = self._late, None
        if late is not None and kind is None:
            raise HostSyncError(_sentence(late), _HINT, lines=self.lines)

    def __call__(self, function: Function) -> Function:
        """Guard every call of a function.

        Args:
            function: A function of any kind.

        Raises:
            UsageError: If it is no function.
        """
        wrappers.demand_function(function, "profkit.no_sync")
        return cast("Function", wrappers.wrap(function, self._again))

    def _again(self) -> "NoSync":
        guard = NoSync(raises=self._raises, extensions=self._extensions)
        guard._tally = self._tally
        return guard

    @property
    def lines(self) -> tuple[SyncSite, ...]:
        """The lines that waited, the most calls first, also those that are allowed to."""
        return self._tally.lines()

    def _hear(self, wait: Wait, at_the_line: bool) -> None:  # noqa: FBT001  (a listener)
        if not self._is_meant(wait):
            return
        self._tally.hear(wait)
        if wait.reason is not None or not self._raises:
            return
        if at_the_line:
            raise HostSyncError(_sentence(wait), _HINT, lines=self.lines)
        self._late = self._late or wait

    def _is_meant(self, wait: Wait) -> bool:
        """Whether a wait is one of this guard's thread or task.

        A thread of autograd's does the work of whoever called ``backward``; with several guards
        open nobody can tell who that is.
        """
        if wait.guard is None and wait.is_foreign:
            return _open == [self]
        return wait.guard is self


def no_sync(*, raises: bool = True, extensions: bool = False) -> NoSync | IdleGuard:
    """Raise an error at the line where the host waits for a CUDA device.

    ::

        with profkit.no_sync():
            train_step(batch)

        @profkit.no_sync()
        def train_step(batch): ...

    What waits: ``.item()``, ``float(t)``, ``if t:``, ``.cpu()``, ``.tolist()``, ``nonzero`` and
    masks, copies from and to pageable memory, ``torch.cuda.synchronize()``, a stream's and an
    event's ``synchronize``. It holds for the thread or asyncio task that opens it, and for what
    autograd does on its behalf; other threads go on as they are. The error comes from the waiting
    line, after the wait itself, so that nothing is left half done. On a CPU nothing waits.

    What it does not see: waits in torch.distributed and torch.sparse, which torch's debug mode
    leaves out; ``non_blocking`` copies from pageable memory, which CUDA itself lets wait;
    ``cudaFree`` and ``cudaMalloc``; what libraries do by themselves; and where the program silences
    all warnings within the block. A trace sees these: ``profkit.trace``.

    Args:
        raises: False only counts: what waited is in ``lines``, one entry a line.
        extensions: Look for waits in operators of ``torch.ops`` and in extensions too, by torch's
            GPU trace. The error then comes at the end of the block. The trace can't be switched
            off again: each allocation on the device is slower for the rest of the process.

    Returns:
        A context manager and decorator with ``lines``.

    Raises:
        HostSyncError: Where the host waits: with the line and what waits.
    """
    return NoSync(raises=raises, extensions=extensions) if current.is_on else IDLE


def _end_at_the_line(error: HostSyncError) -> None:
    """Let the traceback end where the program waits, not where profkit was told of it."""
    last = traceback = error.__traceback__
    while traceback is not None:
        if not is_ours(traceback.tb_frame):
            last = traceback
        traceback = traceback.tb_next
    if last is not None:
        last.tb_next = None


def _sentence(wait: Wait) -> str:
    """Who waits and where, in one sentence."""
    if wait.place is None:
        thread = threading.current_thread().name
        return f"The host waits for the device within profkit.no_sync: {wait.what}, in {thread}."
    file, line, function = wait.place
    text = linecache.getline(file, line).strip()
    code = f" `{text}`" if text else ""
    return (
        f"The host waits for the device within profkit.no_sync: {wait.what}, "
        f"at {file}:{line} in {function}:{code}."
    )
