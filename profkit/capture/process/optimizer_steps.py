"""Listens to the ends of optimizers' steps, after ``step()`` has returned to the program.

torch's own hooks run within its region around ``step()``, where no recording may begin or end. So
``step`` of each class of optimizers is a function that calls torch's one, and the listeners after
it. A class gets it when its first optimizer is made, as torch patches it then too.

Source: ``Optimizer._patch_step_function`` in ``torch/optim/optimizer.py``, which ``__init__`` and
``__setstate__`` call.
"""

import contextlib
import functools
import inspect
import sys
import threading
from collections.abc import Callable, Iterator
from functools import cache
from types import CodeType
from typing import Any, Final

from profkit.capture.process.compiling import dynamo_flag
from profkit.capture.process.objects import types_of
from profkit.capture.process.wrappers import replace_attribute

Listener = Callable[[Any], None]
"""Receives the optimizer, in the thread in which it has stepped."""

_MARK: Final = "_is_followed_by_profkit"
_listeners: Final[list[Listener]] = []
_undo: Final[list[Callable[[], None]]] = []


class _Depth(threading.local):
    """How many steps of optimizers are open in this thread: a step may call others."""

    n = 0


_depth: Final = _Depth()


def listen(listener: Listener) -> Callable[[], None]:
    """Call a listener after each step of any optimizer; returns what stops that.

    Steps within the step of another optimizer are a part of it. Code that Dynamo traces calls no
    listener.
    """
    if not _listeners:
        _follow_all()
    _listeners.append(listener)

    def stop() -> None:
        if listener in _listeners:
            _listeners.remove(listener)
        while _undo and not _listeners:
            _undo.pop()()

    return stop


def used_classes() -> Iterator[Any]:
    """Yield the classes of optimizers of which the program has made one: torch has marked them."""
    optimizer = getattr(sys.modules.get("torch.optim"), "Optimizer", None)
    for kind in () if optimizer is None else types_of(optimizer):
        if getattr(vars(kind).get("step"), "hooked", False):
            yield kind


@cache
def step_regions() -> tuple[CodeType, ...]:
    """Return the code of torch that opens a region around each ``step()`` of an optimizer.

    Source: ``Optimizer.profile_hook_step``, whose inner function opens and ends the region.
    """
    from torch.optim import Optimizer

    function: Any = inspect.unwrap(Optimizer.profile_hook_step)
    return tuple(code for code in function.__code__.co_consts if inspect.iscode(code))


def _follow_all() -> None:
    """Follow the classes that have optimizers, and each other one from its first optimizer on."""
    from torch.optim import Optimizer

    patch: Any = Optimizer._patch_step_function  # noqa: SLF001  (torch has no hook after its region)

    def patch_and_follow(optimizer: Any) -> None:  # noqa: ANN401
        patch(optimizer)
        _follow(type(optimizer))

    _undo.append(replace_attribute(Optimizer, "_patch_step_function", patch_and_follow))
    for kind in used_classes():
        _follow(kind)


def _follow(kind: Any) -> None:  # noqa: ANN401  (a class of optimizers)
    """Have the listeners called after ``step()`` of a class."""
    # The mark is inherited: a class without a step of its own has a followed one already.
    if getattr(kind.step, _MARK, False):
        return

    with contextlib.suppress(Exception):  # a metaclass of the program may refuse it with any
        _undo.append(replace_attribute(kind, "step", _follow_calls(kind.step)))


def _follow_calls(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method that calls another one, and then the listeners."""
    is_dynamo_tracing = dynamo_flag()

    @functools.wraps(function)
    def step_and_tell(optimizer: Any, /, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        if is_dynamo_tracing():
            return function(optimizer, *args, **kwargs)

        _depth.n += 1
        try:
            result = function(optimizer, *args, **kwargs)
        finally:
            _depth.n -= 1

        if not _depth.n:
            # A copy, as a listener may stop listening.
            for listener in tuple(_listeners):
                listener(optimizer)
        return result

    setattr(step_and_tell, _MARK, True)
    return step_and_tell
