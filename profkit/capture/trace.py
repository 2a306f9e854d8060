"""``profkit.trace``: a block, a function or a loop, recorded into a trace file."""

import functools
import inspect
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast, overload

from profkit.capture import current, reporting, wrappers
from profkit.capture.options import DEFAULTS, OnlyDevice, Options
from profkit.capture.schedule import Schedule
from profkit.capture.session import Session
from profkit.errors import UsageError
from profkit.model.capture_info import StepKind
from profkit.model.report import Report

if TYPE_CHECKING:
    from typing_extensions import Self

Function = TypeVar("Function", bound=Callable[..., Any])

_DEFAULT_NAME = "trace"


class Idle:
    """A ``profkit.trace`` that records nothing, at next to no cost; all share one object."""

    __slots__ = ()

    path: None = None
    report: None = None

    def __repr__(self) -> str:
        return reporting.as_text("profkit.trace", None, "nothing is recorded")

    def _repr_html_(self) -> str:
        """What a notebook shows: the report, or why there is none."""
        return reporting.as_html(self)

    def __enter__(self) -> "Self":
        return self

    def __exit__(self, _kind: object, _error: object, _traceback: object) -> None:
        return None

    def __call__(self, function: Function) -> Function:
        """Leave a function as it is."""
        return function

    def step(self) -> None:
        """Tell those who watch memory; nothing is recorded."""
        if current.step_listeners:
            current.step_ended()


IDLE = Idle()


class Ended(Idle):
    """What stands for the blocks of a name beyond its limit: they point to its last recording.

    Attributes:
        path: The trace file of the last block of the name that was recorded.
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
        """The report of that file, made when it is first asked for.

        Raises:
            LoadError: If the file cannot be read any more.
        """
        if self._report is None:
            self._report = reporting.report_of(self.path)
        return self._report


_ended: Final[dict[str | None, Ended]] = {}
"""By name, what its blocks beyond the limit are."""


class TraceCapture:
    """One use of ``profkit.trace``, as a context manager or a decorator.

    The outermost block of a thread records; one within it is a named region of that recording.

    Args:
        name: The name, or None: then a decorated function's own.
        limit: How often the name is recorded in this process.
        options: What to record.
        schedule: Which steps to record, or None for the whole block.
        only: Record only where this device is.
        steps: What a step is.

    Attributes:
        path: The trace file, once the block has ended; None when nothing was recorded.
    """

    __slots__ = (
        "_entered",
        "_limit",
        "_name",
        "_only",
        "_options",
        "_report",
        "_schedule",
        "_steps",
        "path",
    )

    def __init__(
        self,
        name: str | None,
        limit: int,
        options: Options,
        schedule: Schedule | None,
        only: OnlyDevice | None,
        steps: StepKind,
    ) -> None:
        self._name = name
        self._limit = limit
        self._options = options
        self._schedule = schedule
        self._only = only
        self._steps = steps
        self._entered: list[Any] = []
        self._report: Report | None = None
        self.path: str | None = None

    def __repr__(self) -> str:
        state = "nothing recorded yet" if self.path is None else f"recorded in {self.path}"
        if any(isinstance(entered, Session) for entered in self._entered):
            state = "open"
        return reporting.as_text("profkit.trace", self._name, state)

    def _repr_html_(self) -> str:
        """What a notebook shows: the report, or why there is none."""
        return reporting.as_html(self)

    def __enter__(self) -> "Self":
        if self._only is not None and current.is_absent(self._only):
            self._entered.append(None)
        else:
            self._entered.append(
                current.enter(
                    self._name or _DEFAULT_NAME,
                    self._limit,
                    self._options,
                    self._schedule,
                    self._steps,
                )
            )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        entered = self._entered.pop()
        if isinstance(entered, Session):
            # A generator that is closed early ends its block in the usual way.
            early = kind is not None and kind is not GeneratorExit
            current.leave(entered, kind.__name__ if kind is not None and early else "")
            self.path = entered.path
            self._report = None
            if self.path is not None:
                _ended[self._name] = Ended(self.path)
        elif entered is not None:
            entered.__exit__(kind, error, traceback)

    def __call__(self, function: Function) -> Function:
        """Record every call of a function, as long as the limit lasts.

        Functions, methods, and what ``staticmethod`` and ``classmethod`` make of them are recorded
        from call to return, async functions from the first await to the last; of generators and
        async generators, each making of an item is one entry.

        Args:
            function: The function to decorate.

        Raises:
            UsageError: If it is no function.
        """
        given: Any = function
        if isinstance(given, (staticmethod, classmethod)):
            return cast("Function", type(given)(self(given.__func__)))
        if not callable(given) or inspect.isclass(given):
            raise UsageError(
                f"profkit.trace decorates functions, and {given!r} is none.",
                "Decorate the class's methods." if inspect.isclass(given) else "",
            )
        name = self._name or _name_of(given)
        fresh = functools.partial(
            _again, name, self._limit, self._options, self._schedule, self._only
        )
        return cast("Function", wrappers.wrap(function, fresh))

    def step_definition(self, steps: StepKind) -> None:
        """Say what a step is in this recording.

        Args:
            steps: What :meth:`step` is called after.
        """
        self._steps = steps

    def step(self) -> None:
        """Say that a step of the loop has ended. Does nothing outside the recording block."""
        entered = self._entered[-1] if self._entered else None
        if isinstance(entered, Session):
            entered.step()
        if current.step_listeners:
            current.step_ended()

    @property
    def is_recording(self) -> bool:
        """Whether a profiler of this block records now."""
        entered = self._entered[-1] if self._entered else None
        return isinstance(entered, Session) and entered.is_recording

    @property
    def report(self) -> Report | None:
        """The report of the trace file, made when it is first asked for; None without a file.

        Raises:
            LoadError: If the file cannot be read any more.
        """
        if self._report is None and self.path is not None:
            self._report = reporting.report_of(self.path)
        return self._report


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
    dir: str | None = None,
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
    """Record a block, or a function's calls, into a trace that TensorBoard opens too.

    ::

        with profkit.trace("step"):
            train_step(batch)

        @profkit.trace
        def train_step(batch): ...

        with profkit.trace("train", wait=1, warmup=2, active=3) as t:
            for batch in loader:
                train_step(batch)
                t.step()

    The first ``limit`` blocks of a name are recorded, the rest cost next to nothing and point to
    the last recording. Within another block of the same thread it is a named region. Whatever goes
    wrong in the recording is one warning on stderr; the program runs on, and its exceptions pass
    through.

    With ``wait``, ``warmup`` or ``active`` it follows a loop whose steps end with ``t.step()``, in
    the words of ``torch.profiler.schedule``. Python stacks make small steps about twice as long,
    so the ``active`` steps are recorded without them, and one step of the ``warmup`` lends its
    lines. A block without steps has stacks in its first recording, and the trace says by how much
    they stretched it.

    Args:
        name: A name for the folder and the report. A decorated function's own if left out.
        wait: Steps to leave alone first.
        warmup: Steps that follow; one of them lends its lines.
        active: Steps to record; None for all until the block ends.
        repeat: How often to do so; 0 for as long as the loop goes on.
        limit: How many blocks of this name are recorded in this process.
        only: Record only where this kind of device is (``"cuda"``, ``"xpu"``).
        **recording: ``dir``: folder for traces (default ``$PROFKIT_DIR``, else ``traces``).
            ``ops``, ``device``, ``stacks``, ``shapes``, ``memory`` (all True), ``flops`` (False):
            what to record. ``quiet`` (False): no line on stderr about where the trace is.

    Returns:
        A context manager and decorator with ``step()``, and with ``path`` and ``report`` once the
        block has ended. A bare ``@profkit.trace`` returns the decorated function.

    Raises:
        UsageError: If an argument makes no sense.
    """
    if not current.is_on:
        return name if _is_function(name) else IDLE
    if current.session is None:
        if only is not None and current.is_absent(only) and current.is_known(only):
            return name if _is_function(name) else IDLE
        if current.n_recorded.get(name, 0) > limit:
            return _ended.get(name, IDLE)
    options = _options(recording) if recording else DEFAULTS
    schedule = None
    if wait or warmup or active is not None or repeat != 1:
        schedule = Schedule(wait, warmup, active, repeat)
    if _is_function(name):
        return TraceCapture(None, limit, options, schedule, only, "entry")(name)
    if name is not None and not isinstance(name, str):
        raise UsageError(f"The name of a trace is a text, and {name!r} is none.")
    return TraceCapture(name, limit, options, schedule, only, "user" if schedule else "entry")


def _is_function(name: object) -> bool:
    """Whether a bare decorator was given its function instead of a name."""
    return callable(name) or isinstance(name, (staticmethod, classmethod))


def _again(
    name: str,
    limit: int,
    options: Options,
    schedule: Schedule | None,
    only: OnlyDevice | None,
) -> TraceCapture | None:
    """A trace for one more call of a decorated function, or None when there is to be none."""
    if current.session is None and (
        current.n_recorded.get(name, 0) > limit or (only is not None and current.is_absent(only))
    ):
        return None
    return TraceCapture(name, limit, options, schedule, only, "entry")


def _options(recording: dict[str, Any]) -> Options:
    """The options in the words of :func:`trace`."""
    words = dict(recording)
    if "dir" in words:
        words["folder"] = words.pop("dir")
    try:
        return Options(**words)
    except TypeError:
        odd = sorted(set(recording) - {"dir", *Options.__dataclass_fields__})
        raise UsageError(
            f"profkit.trace has no argument {', '.join(odd)}.",
            "It takes dir, ops, device, stacks, shapes, memory, flops and quiet.",
        ) from None


def _name_of(function: Callable[..., Any]) -> str:
    """A function's name with its class, without the functions that it was made in."""
    name = getattr(function, "__qualname__", type(function).__name__)
    return str(name).rsplit("<locals>.", 1)[-1]
