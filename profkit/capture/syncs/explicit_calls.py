"""Wraps the explicit synchronization calls, which torch's sync debug mode does not report.

Source: ``torch.cuda.synchronize`` and ``torch.accelerator.synchronize``, which end in
``c10::cuda::device_synchronize``, and ``torch.cuda.Event.synchronize``, which ends in
``CUDAEvent::synchronize``: neither checks the debug mode.
"""

import contextlib
import functools
import importlib
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

from profkit.capture.process.wrappers import replace_attribute

CALLS: Final = (
    ("torch.cuda", "synchronize", "torch.cuda.synchronize()"),
    ("torch.accelerator", "synchronize", "torch.accelerator.synchronize()"),
    ("torch.cuda.streams:Event", "synchronize", "torch.cuda.Event.synchronize()"),
)
"""For each call: its module and class, its name there, and the operation in a report."""

_thread: Final = threading.local()


def is_in_call() -> bool:
    """Tell whether this thread is inside one of the calls, which has then been reported already."""
    return bool(getattr(_thread, "in_call", False))


def wrap_calls(report: Callable[[str, FrameType], None]) -> Callable[[], None]:
    """Report each such call before it blocks; returns the function that restores the originals.

    Args:
        report: Receives the operation and the calling frame. An exception of it surfaces there.
    """
    undo = contextlib.ExitStack()
    for call in CALLS:
        undo.callback(_wrap(*call, report))
    return undo.close


def _wrap(
    place: str, name: str, operation: str, report: Callable[[str, FrameType], None]
) -> Callable[[], None]:
    module, _, class_name = place.partition(":")
    owner: Any = importlib.import_module(module)
    if class_name:
        owner = getattr(owner, class_name)
    original = vars(owner)[name]

    @functools.wraps(original)
    def reported(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401  (passes its arguments on)
        if is_in_call():  # one of the calls made by another
            return original(*args, **kwargs)
        report(operation, sys._getframe(1))  # noqa: SLF001
        _thread.in_call = True
        try:
            return original(*args, **kwargs)
        finally:
            _thread.in_call = False

    return replace_attribute(owner, name, reported)
