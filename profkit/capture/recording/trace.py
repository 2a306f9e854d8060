"""``profkit.trace``: a block, a function or a loop, recorded into a trace file."""

import os
import threading
from collections.abc import Callable
from typing import Any, Final, NamedTuple, Self, TypeVar, get_args, overload

from profkit.arguments import (
    FLAG,
    NAME,
    PATH,
    Arguments,
    Kind,
    one_of,
    optional,
    require_positional,
    whole,
)
from profkit.capture.process import console, wrappers
from profkit.capture.process.devices import OnlyDevice
from profkit.capture.recording import current, reporting
from profkit.capture.recording.options import DEFAULTS, Options
from profkit.capture.recording.schedule import Schedule
from profkit.capture.recording.session import Session
from profkit.errors import UsageError
from profkit.model.capture_info import StepKind
from profkit.model.report import Report

Function = TypeVar("Function", bound=Callable[..., Any])

_DEFAULT_NAME: Final = "trace"
OPTIONS: Final[dict[str, Kind]] = {
    "wait": whole(), "warmup": whole(), "active": optional(whole(1)), "repeat": whole(),
    "limit": whole(), "only": optional(one_of(*get_args(OnlyDevice))), "dir": optional(PATH),
    "ops": FLAG, "device": FLAG, "stacks": FLAG, "shapes": FLAG, "memory": FLAG, "flops": FLAG,
    "quiet": FLAG,
}  # fmt: skip
"""The arguments that are given by name, also to what passes them on."""
_ARGUMENTS: Final = Arguments("profkit.trace", **OPTIONS)
_NAME: Final = Arguments("profkit.trace", name=optional(NAME))


class Idle(wrappers.IdleContext):
    """A ``profkit.trace`` that records nothing, at almost no cost; all share one object."""

    __slots__ = ()

    path: None = None
    report: None = None

    def __repr__(self) -> str:
        return reporting.as_text("profkit.trace", None, "recording is off")

    _repr_html_ = reporting.as_html

    def step(self) -> None:
        """Only tell those who listen to the ends of steps, such as ``profkit.memory``."""
        current.step_ended()

    def pause(self) -> None:
        """Do nothing."""

    def resume(self) -> None:
        """Do nothing."""


IDLE: Final = Idle()


class Ended(Idle):
    """A block of a name beyond its limit: it is not recorded, and has the last recording's report.

    Attributes:
        path: The trace file of the last recorded block of the name.
    """

    __slots__ = ("_report", "path")

    path: str  # type: ignore[assignment]  # here there is one

    def __init__(self, path: str) -> None:
        self.path = path
        self._report: Report | None = None

    def __repr__(self) -> str:
        return reporting.as_text("profkit.trace", None, f"last recorded in {self.path}")

    @property
    def report(self) -> Report:  # type: ignore[override]  # here there is one
        """Return the report of that file, created on first access.

        Raises:
            LoadError: If the file cannot be read any more.
        """
        if self._report is None:
            self._report = reporting.report_of(self.path)
        return self._report


_ended: Final[dict[str | None, Ended]] = {}
"""For each name, the object for its blocks beyond the limit."""
_noted_threads: Final[dict[str, object]] = {}
"""The names of which it was said that another thread records."""


class _Settings(NamedTuple):
    limit: int
    options: Options
    schedule: Schedule | None
    only: OnlyDevice | None


class TraceCapture(wrappers.CaptureBlock):
    """One use of ``profkit.trace``, as a context manager or a decorator.

    The outermost block of a thread records; a block inside it is a named region of that recording.

    Args:
        name: The name, or None: then a decorated function's own.
        steps: What a step is.

    Attributes:
        path: The trace file, once the block has ended; None when nothing was recorded.
        flight: The dump of the FlightRecorder beside it, or None.
    """

    __slots__ = (
        "_entered",
        "_n_steps",
        "_name",
        "_report",
        "_settings",
        "_steps",
        "flight",
        "path",
    )

    def __init__(self, name: str | None, settings: _Settings, steps: StepKind) -> None:
        self._name = name
        self._settings = settings
        self._steps = steps
        self._entered: list[Any] = []
        self._n_steps = 0
        self._report: Report | None = None
        self.path: str | None = None
        self.flight: str | None = None

    def __repr__(self) -> str:
        state = "nothing recorded yet" if self.path is None else f"recorded in {self.path}"
        if any(isinstance(entered, Session) for entered in self._entered):
            state = "open"
        return reporting.as_text("profkit.trace", self._name, state)

    _repr_html_ = reporting.as_html

    def __enter__(self) -> Self:
        entered = None
        limit, options, schedule, only = self._settings
        if only is None or not current.is_absent(only):
            name = self._name or _DEFAULT_NAME
            entered = current.enter(name, limit, options, schedule, self._steps)
            if entered is None:
                _note_other_thread(name, quiet=options.quiet)
        self._entered.append(entered)
        self._n_steps = 0
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: object
    ) -> None:
        if not self._entered:
            raise wrappers.not_open(self._function)
        is_over = self.is_done
        entered = self._entered.pop()
        if isinstance(entered, Session):
            # Imported here, as most blocks end without an error.
            if type(error) is RuntimeError:
                from profkit.capture.recording import device_mismatch

                device_mismatch.note(error)
            early = kind.__name__ if kind is not None and wrappers.is_early_end(kind) else ""
            current.leave(entered, early)
            self.path, self.flight = entered.path, entered.flight
            self._report = None

            # Later blocks of the name, beyond its limit, show this recording.
            if self.path is not None:
                _ended[self._name] = Ended(self.path)
            if not (is_over or early):
                self._warn_of_few_steps()
        elif entered is not None:
            entered.__exit__(kind, error, traceback)

    def __call__(self, function: Function) -> Function:
        """Record every call of a function, up to the limit.

        Functions, methods, static and class methods are recorded from call to return, async
        functions from the first await to the last, generators and async generators item by item.

        Raises:
            UsageError: If it is not a function, or steps of a loop are to be recorded.
        """
        if self._settings.schedule is not None:
            raise UsageError(
                f"{self._function} takes `wait`, `warmup`, `active` and `repeat` for the steps of "
                "a loop; each call of a decorated function is a block of its own.",
                "Leave them out: the first `limit` calls are recorded. Or write `with "
                f"{self._function}(…) as t:` around the loop that calls the function, and "
                "`t.step()` after each call.",
            )
        return super().__call__(function)

    def _wrap(self, function: Function) -> Function:
        name = self._name or wrappers.name_of(function)
        return wrappers.wrap(function, lambda: _make_capture(name, self._settings))

    def set_step_kind(self, steps: StepKind) -> None:
        """Set what a step is in this recording; also in an open one, where it is found out."""
        self._steps = steps
        session = self._session
        if session is not None:
            session.writer.steps = steps

    def step(self) -> None:
        """Mark the end of a step of the loop.

        Where another recording covers the block, as ``profkit run`` does, it is a step of that one.
        """
        self.end_step()
        current.step_ended()

    def end_step(self) -> None:
        """End a recorded step of this block, and tell nobody else."""
        self._n_steps += 1
        session = self._session
        if session is not None:
            session.step()

    def pause(self) -> None:
        """Leave what follows out of the steps until ``resume()``, such as a validation.

        The recorded steps follow each other: a pause among them ends the recording early, or lets
        it begin again after the pause.
        """
        session = self._session
        if session is not None:
            session.pause()

    def resume(self) -> None:
        """Begin the next step, after ``pause()``."""
        session = self._session
        if session is not None:
            session.resume()

    @property
    def is_recording(self) -> bool:
        """Return whether a profiler of this block is recording."""
        session = self._session
        return session is not None and session.is_recording

    @property
    def is_done(self) -> bool:
        """Return whether this block records nothing more."""
        session = self._session
        return session is None or session.is_done

    def _warn_of_few_steps(self) -> None:
        """Warn if the block ended before a step that was to be recorded has ended."""
        schedule = self._settings.schedule
        if schedule is None or self._steps not in _STEP_HINTS:
            return
        n_before = schedule.wait + schedule.warmup
        if self._n_steps > n_before:
            return

        hints = _STEP_HINTS[self._steps]
        what = "recorded nothing" if self.path is None else "recorded no complete active step"
        begin = f"{hints.function} {what} of “{self._name or _DEFAULT_NAME}”: "
        if not self._n_steps:
            console.warn(f"{begin}no step has ended. {hints.without_steps}")
            return
        n_needed = n_before + (schedule.active or 1)
        ended = "1 step has" if self._n_steps == 1 else f"{self._n_steps} steps have"
        console.warn(
            f"{begin}{ended} ended, and wait={schedule.wait} and warmup={schedule.warmup} leave "
            f"out the first {n_before}. {hints.too_few.format(n=n_needed)}"
        )

    @property
    def _session(self) -> Session | None:
        """Return the recording of the innermost entry, if it is one."""
        entered = self._entered[-1] if self._entered else None
        return entered if isinstance(entered, Session) else None

    @property
    def report(self) -> Report | None:
        """Return the report of the trace file, created on first access; None without a file.

        Raises:
            LoadError: If the file cannot be read any more.
        """
        if self._report is None and self.path is not None:
            self._report = reporting.report_of(self.path)
        return self._report


class _StepHints(NamedTuple):
    """What a block that ended before its recorded steps is advised.

    Attributes:
        function: The public function that made it.
        without_steps: What to do where no step has ended.
        too_few: What to do where ``n`` steps are needed.
    """

    function: str
    without_steps: str
    too_few: str


_STEP_HINTS: Final = {
    "user": _StepHints(
        "profkit.trace",
        "`wait`, `warmup` and `active` count steps: write `with profkit.trace(…) as t:`, and call "
        "`t.step()` at the end of each step of the loop.",
        "At least {n} steps are needed, each with a `t.step()` at its end; or lower `wait` and "
        "`warmup`.",
    ),
    "loader": _StepHints(
        "profkit.steps",
        "The loop has no batches, or left the first one by `break`.",
        "At least {n} batches are needed; or lower `wait` and `warmup`.",
    ),
}
"""By the kinds of step that programs mark."""


@overload
def trace(name: Function, /) -> Function: ...


@overload
def trace(
    name: str | None = None,
    /,
    *,
    wait: int = 0,
    warmup: int = 0,
    active: int | None = None,
    repeat: int = 1,
    limit: int = 3,
    only: OnlyDevice | None = None,
    dir: str | os.PathLike[str] | None = None,
    ops: bool = True,
    device: bool = True,
    stacks: bool = True,
    shapes: bool = True,
    memory: bool = True,
    flops: bool = False,
    quiet: bool = False,
) -> TraceCapture | Idle: ...


def trace(
    name: Any = None,
    /,
    *,
    wait: int = 0,
    warmup: int = 0,
    active: int | None = None,
    repeat: int = 1,
    limit: int = 3,
    only: OnlyDevice | None = None,
    **recording: Any,
) -> Any:
    """Record a block, or a function's calls, into a trace that TensorBoard can open too.

    ::

        with profkit.trace("step"):
            train_step(batch)

        @profkit.trace
        def train_step(batch): ...

        with profkit.trace("train", wait=1, warmup=2, active=3) as t:
            for batch in loader:
                train_step(batch)
                t.step()

    The first ``limit`` blocks of a name are recorded; later ones cost almost nothing and have the
    report of the last recording. A block inside another one of the same thread is a named region.
    An error of the recording becomes one warning on stderr: the program continues, and its own
    exceptions are raised as usual.

    torch has one profiler per process. So of several threads one records at a time, and a note says
    once for a name that its blocks in other threads are not recorded. A profiler that the program
    uses itself is not disturbed: a block inside it, or in its warm-up, is not recorded, and where
    it begins inside a block, the recording of the block ends. A block has no source lines while
    ``sys.setprofile`` or ``cProfile`` is in use.

    ``wait``, ``warmup`` and ``active`` select steps of a loop, as in ``torch.profiler.schedule``;
    each step ends with ``t.step()``, so a decorator takes none of them. A block that ends before
    one ``active`` step has ended prints a warning with the number of steps that it needs. Python
    stacks make short steps about twice as long, so the ``active`` steps are recorded without them,
    and source lines come from one ``warmup`` step. A block without steps is recorded with stacks
    the first time, and its trace has the overhead.

    Args:
        name: A name for the folder and the report; by default that of the decorated function.
        wait: Steps at the start that are not recorded.
        warmup: Steps after those; source lines come from one of them.
        active: Steps to record; None for all until the block ends.
        repeat: How many such cycles; 0 for no limit.
        limit: How many blocks of this name are recorded in this process.
        only: Record only if this kind of device is present (``"cuda"``, ``"xpu"``).
        **recording: ``dir``: folder for traces (default ``$PROFKIT_DIR``, else ``traces``).
            ``ops``, ``device``, ``stacks``, ``shapes``, ``memory`` (all True), ``flops`` (False):
            what to record. ``quiet`` (False): do not print the trace's path to stderr.

    Returns:
        A context manager and decorator with ``step()``, and with ``path`` and ``report`` once the
        block has ended. A bare ``@profkit.trace`` returns the decorated function.

    Raises:
        UsageError: If an argument is invalid.
    """
    is_bare = _is_function(name)

    # A block that is not recorded takes less than a microsecond: its arguments were checked before.
    idle = _find_idle(name, limit, only)
    if idle is not None:
        return name if is_bare else idle

    if not is_bare:
        _NAME.check(name=name)
    _ARGUMENTS.check(wait=wait, warmup=warmup, active=active, repeat=repeat, limit=limit, only=only)

    options = _build_options(recording) if recording else DEFAULTS
    is_loop = wait or warmup or active is not None or repeat != 1
    schedule = Schedule(wait, warmup, active, repeat) if is_loop else None
    settings = _Settings(limit, options, schedule, only)

    if is_bare:
        return TraceCapture(None, settings, "entry")(name)
    return TraceCapture(name, settings, "user" if schedule else "entry")


def _find_idle(name: Any, limit: Any, only: Any) -> Idle | None:  # noqa: ANN401  (checked later)
    """Return a block that is certain not to be recorded; None for one that may be."""
    if not current.state.is_on:
        return IDLE
    if current.state.session is not None:
        return None

    # Arguments are checked later: one of another type is not looked up here.
    is_device = type(only) is str
    if is_device and current.is_known(only) and current.is_absent(only):
        return IDLE
    is_valid = type(name) is str and type(limit) is int
    if is_valid and 0 <= limit < current.n_recorded.get(name, 0):
        return _ended.get(name, IDLE)
    return None


def _is_function(name: object) -> bool:
    """Return whether a bare decorator was given its function instead of a name."""
    return callable(name) or isinstance(name, (staticmethod, classmethod))


def _make_capture(name: str, settings: _Settings) -> TraceCapture | None:
    """Return the capture for one more call of a decorated function; None if it is not recorded."""
    if current.state.session is None:
        is_over = current.n_recorded.get(name, 0) > settings.limit
        if is_over or (settings.only is not None and current.is_absent(settings.only)):
            return None
    return TraceCapture(name, settings, "entry")


def _build_options(recording: dict[str, Any]) -> Options:
    require_positional("profkit.trace", recording, ("name",))
    _ARGUMENTS.check(**recording)
    arguments = dict(recording)
    folder = arguments.pop("dir", None)
    return Options(**arguments, folder=None if folder is None else os.fspath(folder))


def _note_other_thread(name: str, *, quiet: bool) -> None:
    """Say once for a name that another thread records, so that this one's block is not recorded."""
    outer, token = current.state.session, object()
    if outer is None or outer.pid != os.getpid() or outer.thread == threading.get_ident():
        return
    # Of several threads that are here at once, one adds the name.
    if _noted_threads.setdefault(name, token) is token:
        console.note(
            f"“{name}” is not recorded in this thread, because another one records "
            f"“{outer.name}”: torch has one profiler per process, so one thread records at a time.",
            quiet=quiet,
        )
