"""Stands before the calls that only wait, which torch's sync debug mode passes over.

Source: ``torch.cuda.synchronize`` and ``torch.accelerator.synchronize``, which end in
``c10::cuda::device_synchronize``, and ``torch.cuda.Event.synchronize``, which ends in
``CUDAEvent::synchronize``: neither asks for the mode.
"""

import functools
import importlib
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

CALLS: Final = (
    ("torch.cuda", "synchronize", "torch.cuda.synchronize()"),
    ("torch.accelerator", "synchronize", "torch.accelerator.synchronize()"),
    ("torch.cuda.streams:Event", "synchronize", "torch.cuda.Event.synchronize()"),
)
"""Where each call is found, its name there, and what it is called in a report."""

_within: Final = threading.local()


def is_within() -> bool:
    """Whether this thread is in one of the calls, so that it has been told of."""
    return bool(getattr(_within, "depth", 0))


def stand_before(tell: Callable[[str, FrameType], None]) -> Callable[[], None]:
    """Tell of each such call before it waits; what puts back the calls themselves.

    Args:
        tell: Is given the call in words and the frame that calls; an error of it comes out there.
    """
    put_back = [_replace(*call, tell) for call in CALLS]

    def undo() -> None:
        for each in put_back:
            each()

    return undo


def _replace(
    place: str, name: str, what: str, tell: Callable[[str, FrameType], None]
) -> Callable[[], None]:
    module, _, class_name = place.partition(":")
    holder: Any = importlib.import_module(module)
    if class_name:
        holder = getattr(holder, class_name)
    original = vars(holder)[name]

    @functools.wraps(original)
    def told(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401  (passes on what the call takes)
        if is_within():  # one of the calls made by another
            return original(*args, **kwargs)
        tell(what, sys._getframe(1))  # noqa: SLF001
        _within.depth = 1
        try:
            return original(*args, **kwargs)
        finally:
            _within.depth = 0

    def undo() -> None:
        if vars(holder)[name] is told:  # else somebody stands before us, and goes on calling us
            setattr(holder, name, original)

    setattr(holder, name, told)
    return undo
