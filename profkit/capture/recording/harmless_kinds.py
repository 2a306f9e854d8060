"""Which kinds of recording are harmless for the program.

What is open when a recording stops, an operator or a region, writes its end into the memory of that
recording. The memory is free by then, if another recording of the same kind runs meanwhile: of one
thread or of all, for which torch has different places. So no more of this kind are made.

Source: ``onFunctionExit`` in ``torch/csrc/autograd/profiler_kineto.cpp``, and Valgrind's report of
such a write with torch 2.13.
"""

import sys
from collections.abc import Iterable, Iterator
from enum import Enum, auto
from inspect import iscode
from typing import Final, Protocol

from profkit.capture.process.objects import running_frames
from profkit.capture.process.optimizer_steps import step_regions
from profkit.capture.process.torch_features import all_threads_setting
from profkit.model.torch_names import OPTIMIZER_STEP


class RecordingKind(Enum):
    """Of which threads a recording has operators."""

    ONE_THREAD = auto()
    """The thread that starts it, and backward passes."""
    ALL_THREADS = auto()
    """All threads of the process."""
    ALONE = auto()
    """The thread that starts it, in which nothing of the program runs until the stop. Nothing that
    is open can end meanwhile, so that this kind is always harmless."""


class StoppedRecording(Protocol):
    """A recording that may have left something open."""

    @property
    def kind(self) -> RecordingKind:
        """Return which threads it has recorded."""

    def find_left_open(self) -> Iterable[str]:
        """Find the names of operators and regions that were open at the stop."""


_unexamined: Final[list[StoppedRecording]] = []
"""Stopped recordings that were not searched yet for what they left open. That takes a microsecond
per event, and is needed only before another recording."""

_left_open: Final[set[RecordingKind]] = set()
"""The kinds of which one recording stopped inside an operator or region of the program."""

_in_optimizer: Final[set[RecordingKind]] = set()
"""The kinds of which one recording stopped where nothing but torch's own regions around ``step()``
of optimizers was open.

Their end is known, since a frame of each is on its thread's stack. Until then, no more are made:
L-BFGS calls the whole model in there.
"""


def find_harmless_kind(*, all_threads: bool) -> RecordingKind | None:
    """Return the kind that a recording of the program can have, or None.

    Recordings of all threads leave the other kind to those of one thread, unless it can have both
    again once an optimizer's step has ended.

    Args:
        all_threads: Whether operators of all threads are wanted.
    """
    has_setting = all_threads_setting() is not None
    of_all = RecordingKind.ALL_THREADS if has_setting else RecordingKind.ONE_THREAD
    open_kinds = _find_open_kinds()

    if not all_threads:
        kinds = [RecordingKind.ONE_THREAD, of_all]
    elif of_all in _left_open:
        # For good: the other kind is left to recordings of one thread, which can have no third.
        kinds = [of_all]
    else:
        kinds = [of_all, RecordingKind.ONE_THREAD]
    return next((kind for kind in kinds if kind not in open_kinds), None)


def can_mute() -> bool:
    """Return whether all threads can be recorded now, and another thread can mute that."""
    return find_harmless_kind(all_threads=True) is RecordingKind.ALL_THREADS


def find_stacks_obstacle() -> str:
    """Return why a recording with stacks could end the program, in a clause; empty if none could.

    In each call of what ``nn.Module.__call__`` was at the first of them, torch's tracer reads the
    local variable ``self`` without a check. In a program that has put a function of its own there,
    with another name for the module, that is a segmentation fault. So is, some time after the
    recording has stopped with an error, a source file whose path is not UTF-8.

    Source: ``recordPyCall`` and the names of ``CodeLocation`` in
    ``torch/csrc/autograd/profiler_python.cpp``; both seen with torch 2.13.
    """
    from torch.nn import Module

    code = getattr(Module.__call__, "__code__", None)
    if not (iscode(code) and code.co_argcount > 0 and code.co_varnames[0] == "self"):
        return "the program has replaced `nn.Module.__call__`, which torch's tracer reads"
    if not all(map(_is_utf8, _list_code_paths())):
        return "a path of its source files is not UTF-8, which torch's tracer requires"
    return ""


def _list_code_paths() -> Iterator[str]:
    """Yield the folders that code is imported from, and the files that it was imported from."""
    yield from filter(None, sys.path)
    for module in list(sys.modules.values()):
        # A program may put any object there, and an attribute may be a function of a lazy module.
        file = getattr(module, "__dict__", {}).get("__file__")
        if isinstance(file, str):
            yield file


def _is_utf8(path: str) -> bool:
    """Return whether a path has no bytes that Python keeps as surrogates."""
    return path.isascii() or not any("\ud800" <= char <= "\udfff" for char in path)


def note_stop(recording: StoppedRecording) -> None:
    """Have a stopped recording searched for what it left open, before the next one."""
    if recording.kind is not RecordingKind.ALONE:
        _unexamined.append(recording)


def note_release(recording: StoppedRecording, *, is_last: bool) -> None:
    """Decide what a recording left open, while it has its events.

    Args:
        is_last: Whether the program has ended. Without the search, something counts as open.
    """
    if recording not in _unexamined:
        return
    _unexamined.remove(recording)
    # The search takes a microsecond per event, which a program at its end need not wait for.
    if is_last:
        _left_open.add(recording.kind)
    else:
        _examine(recording)


def _find_open_kinds() -> set[RecordingKind]:
    """Return the kinds of which no more are made now, with all recordings so far."""
    while _unexamined:
        _examine(_unexamined.pop())
    if _in_optimizer and not _is_in_optimizer():
        _in_optimizer.clear()
    return _left_open | _in_optimizer


def _examine(recording: StoppedRecording) -> None:
    """Search what was open at the stop: no more of this kind are made if anything was."""
    for name in recording.find_left_open():
        if not OPTIMIZER_STEP.match(name):
            _left_open.add(recording.kind)
            break
        _in_optimizer.add(recording.kind)


def _is_in_optimizer() -> bool:
    """Return whether any thread is inside an optimizer's ``step()``, or may be."""
    steps = step_regions()
    return not steps or any(frame.f_code in steps for frame in running_frames())
