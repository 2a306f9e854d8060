"""``profkit.no_sync`` and ``profkit.allow_sync``: an error at the line of a host-device sync.

Both set context variables: each thread and each asyncio task has its own.
"""

import contextlib
import linecache
import threading
from collections.abc import Callable
from contextvars import ContextVar, Token
from typing import Any, Final, Self, TypeVar, overload

from profkit.arguments import FLAG, REASON, Arguments
from profkit.capture.process import wrappers
from profkit.capture.recording import current
from profkit.capture.source.user_code import is_profkit_frame
from profkit.capture.syncs import sync_monitor
from profkit.capture.syncs.sync_monitor import Sync, SyncCounter
from profkit.errors import HostSyncError, UsageError
from profkit.model.live_memory import SyncSite

Function = TypeVar("Function", bound=Callable[..., Any])

_HINT: Final = (
    "Keep the value on the device until the end, copy it to pinned memory with non_blocking=True, "
    'or allow the sync: with profkit.allow_sync("reason").'
)

_NO_SYNC: Final = Arguments("profkit.no_sync", raises=FLAG, extensions=FLAG)
_ALLOW_SYNC: Final = Arguments("profkit.allow_sync", why=REASON)

_open: Final[list["NoSync"]] = []
"""The guards that are open in any thread."""


class IdleGuard(wrappers.IdleContext):
    """A ``profkit.no_sync`` that does nothing, because recording is off; all share one object."""

    __slots__ = ()

    _function = "profkit.no_sync"

    lines: tuple[SyncSite, ...] = ()


IDLE: Final = IdleGuard()


class NoSync(wrappers.CaptureBlock):
    """One use of ``profkit.no_sync``, as a context manager or a decorator.

    Args:
        raises: Whether a sync is an error; else it is only counted.
        extensions: Whether syncs in extensions are reported.
    """

    _function = "profkit.no_sync"

    def __init__(self, *, raises: bool, extensions: bool) -> None:
        self._raises = raises
        self._extensions = extensions
        self._counter = SyncCounter()
        self._raise_at_end: Sync | None = None
        self._token: Token[object] | None = None

    def __enter__(self) -> Self:
        if self._token is not None:
            raise UsageError("This profkit.no_sync is already open: use a new one for each block.")
        sync_monitor.subscribe(self._on_sync, extensions=self._extensions)
        _open.append(self)
        self._token = sync_monitor.active_guard.set(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, _traceback: object) -> None:
        token, self._token = self._token, None
        if token is None:
            return

        _reset(sync_monitor.active_guard, token)
        sync_monitor.unsubscribe(self._on_sync)
        _open.remove(self)

        if isinstance(error, HostSyncError):
            _trim_traceback(error)

        late, self._raise_at_end = self._raise_at_end, None
        if late is not None and not wrappers.is_early_end(kind):
            raise HostSyncError(_message(late), _HINT, lines=self.lines)

    def _wrap(self, function: Function) -> Function:
        return wrappers.wrap(function, self._copy)

    def _copy(self) -> "NoSync":
        """Create a guard for one call of a decorated function, which counts into this one."""
        guard = NoSync(raises=self._raises, extensions=self._extensions)
        guard._counter = self._counter
        return guard

    @property
    def lines(self) -> tuple[SyncSite, ...]:
        """Return the source lines that synchronized, most calls first, allowed ones included."""
        return self._counter.sites()

    def _on_sync(self, sync: Sync, raises_at_line: bool) -> None:  # noqa: FBT001  (a Listener)
        if not self._covers(sync):
            return

        self._counter.count(sync)
        if sync.allowed_reason is not None or not self._raises:
            return

        if raises_at_line:
            raise HostSyncError(_message(sync), _HINT, lines=self.lines)
        self._raise_at_end = self._raise_at_end or sync

    def _covers(self, sync: Sync) -> bool:
        """Tell whether a sync is in this guard's thread or task.

        An autograd thread works for the caller of ``backward``; with several guards open it is
        unknown which one that is.
        """
        if sync.guard is None and sync.in_native_thread:
            return _open == [self]
        return sync.guard is self


@overload
def no_sync(function: Function, /) -> Function: ...


@overload
def no_sync(*, raises: bool = True, extensions: bool = False) -> NoSync | IdleGuard: ...


def no_sync(function: Any = None, /, *, raises: bool = True, extensions: bool = False) -> Any:
    """Raise an error at the line where the host waits for a CUDA device.

    ::

        with profkit.no_sync():
            train_step(batch)

        @profkit.no_sync
        def train_step(batch): ...

    These synchronize: ``.item()``, ``float(t)``, ``if t:``, ``.cpu()``, ``.tolist()``, ``nonzero``
    and masks, copies from and to pageable memory, ``torch.cuda.synchronize()``, and
    ``synchronize`` of a stream or event. The guard covers the thread or asyncio task that opens it
    and the work that autograd does for it, but no other threads. The error is raised at the source
    line after the sync itself, so that no operation is left half done. On a CPU nothing
    synchronizes.

    Not detected: syncs in torch.distributed and torch.sparse, which torch's debug mode excludes;
    ``non_blocking`` copies from pageable memory, where CUDA itself may block; ``cudaFree`` and
    ``cudaMalloc``; syncs inside other libraries; and syncs in a block where the program ignores all
    warnings. ``profkit.trace`` records all of these.

    Args:
        function: The function that a bare ``@profkit.no_sync`` decorates.
        raises: False only counts: ``lines`` has one entry per source line.
        extensions: Detect syncs in operators of ``torch.ops`` and in extensions too, by torch's
            GPU trace. Their error is raised at the end of the block. The trace can't be switched
            off again: every device allocation is slower for the rest of the process.

    Returns:
        A context manager and decorator with ``lines``. A bare ``@profkit.no_sync`` returns the
        decorated function.

    Raises:
        HostSyncError: Where the host waits: with the line and the operation.
        UsageError: If an argument is invalid.
    """
    _NO_SYNC.check(raises=raises, extensions=extensions)
    guard = NoSync(raises=raises, extensions=extensions) if current.state.is_on else IDLE
    if function is None:
        return guard
    wrappers.require_function(function, "profkit.no_sync")
    return guard(function)


class AllowSync(wrappers.CaptureBlock):
    """One use of ``profkit.allow_sync``, as a context manager or a decorator."""

    _function = "profkit.allow_sync"

    def __init__(self, why: str) -> None:
        self._why = why
        self._tokens: list[Token[str | None]] = []

    def __enter__(self) -> Self:
        self._tokens.append(sync_monitor.allowed_reason.set(self._why))
        return self

    def __exit__(self, _kind: object, _error: object, _traceback: object) -> None:
        if not self._tokens:
            raise wrappers.not_open(self._function)
        _reset(sync_monitor.allowed_reason, self._tokens.pop())

    def _wrap(self, function: Function) -> Function:
        return wrappers.wrap(function, lambda: AllowSync(self._why))


def allow_sync(why: str, /) -> AllowSync:
    """Allow syncs in a block or a function, inside a ``profkit.no_sync``.

    ::

        with profkit.no_sync():
            train_step(batch)
            with profkit.allow_sync("the number of boxes decides what runs next"):
                n_boxes = int(mask.sum())

    Args:
        why: The reason, for readers of the code; reports show it beside the sync.

    Returns:
        A context manager and decorator for its own thread or asyncio task. Without a guard around
        it, it has no effect and almost no cost.

    Raises:
        UsageError: If no reason is given.
    """
    _ALLOW_SYNC.check(why=why)
    return AllowSync(why)


def _reset(variable: ContextVar[Any], token: Token[Any]) -> None:
    # A generator that keeps the block open may be closed from another context, where the variable
    # was never set.
    with contextlib.suppress(ValueError):
        variable.reset(token)


def _trim_traceback(error: HostSyncError) -> None:
    """End the traceback at the source line that synchronizes, without profkit's own frames."""
    last = traceback = error.__traceback__
    while traceback is not None:
        if not is_profkit_frame(traceback.tb_frame):
            last = traceback
        traceback = traceback.tb_next
    if last is not None:
        last.tb_next = None


def _message(sync: Sync) -> str:
    summary = f"Host-device sync inside profkit.no_sync: {sync.operation}"
    if sync.place is None:
        return f"{summary}, in thread {threading.current_thread().name}."

    file, line, function = sync.place
    text = linecache.getline(file, line).strip()
    code = f" `{text}`" if text else ""
    return f"{summary}, at {file}:{line} in {function}:{code}."
