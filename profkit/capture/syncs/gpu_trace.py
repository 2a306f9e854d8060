"""Waits that torch's GPU trace tells of: also those in extensions and in ``torch.ops``.

A warning becomes one of Python only on the way through torch's Python bindings. An operator that is
called by ``torch.ops`` or an extension of the user's own prints it instead, and the trace is what
remains. It can't be switched off again: from then on every allocation and every event of CUDA calls
into Python, which finds nobody who listens. So it is used only where it was asked for.

Source: ``torch.cuda._gpu_trace``; ``torch._C._activate_gpu_trace``, which has no counterpart
(``c10/core/impl/GPUTrace.cpp``); ``torch._utils.CallbackRegistry``, which logs what a callback
raises.
"""

import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

from profkit.capture.syncs.wait import Wait

_WAITS: Final = (
    ("DeviceSynchronizationCallbacks", "a wait for all work of the device"),
    ("StreamSynchronizationCallbacks", "a wait for the work of a stream"),
    ("EventSynchronizationCallbacks", "a wait for an event"),
)
"""The registries of torch, and what each tells of."""

_Key = tuple[int, int]
_registered: Final[list[tuple[list[Any], Any]]] = []
_kept: Final[dict[int, list[tuple[_Key, Wait]]]] = {}
"""By thread: waits at one place of which the mode has told nothing yet."""


def begin(tell: Callable[[str, FrameType], None]) -> None:
    """Listen to the trace. Does nothing if it is listened to.

    Args:
        tell: Is given what waits, in words, and the frame that is running; it must not raise.
    """
    if _registered:
        return
    import torch
    from torch.cuda import _gpu_trace

    for name, what in _WAITS:
        registry = getattr(_gpu_trace, name, None)
        if registry is not None:
            callback = _callback(tell, what)
            registry.callback_list.append(callback)
            _registered.append((registry.callback_list, callback))
    torch._C._activate_gpu_trace()  # noqa: SLF001


def end() -> None:
    """Listen no longer."""
    for listening, callback in _registered:
        if callback in listening:
            listening.remove(callback)
    _registered.clear()


def keep(key: tuple[int, int], wait: Wait) -> list[Wait]:
    """Keep a wait until the mode has told of it too.

    Args:
        key: The place in the running function.

    Returns:
        Those of the same thread that were kept from another place: of them it will not tell.
    """
    ours = _kept.setdefault(threading.get_ident(), [])
    others = [each for place, each in ours if place != key]
    ours[:] = [(place, each) for place, each in ours if place == key] + [(key, wait)]
    return others


def take(key: tuple[int, int]) -> Wait | None:
    """The wait that was kept from a place in this thread, which is then no longer kept.

    Args:
        key: The place in the running function.
    """
    ours = _kept.get(threading.get_ident(), [])
    for at, (place, wait) in enumerate(ours):
        if place == key:
            del ours[at]
            return wait
    return None


def left_over() -> list[Wait]:
    """All waits that are still kept, which are then no longer kept."""
    found = [wait for ours in _kept.values() for _, wait in ours]
    _kept.clear()
    return found


def _callback(tell: Callable[[str, FrameType], None], what: str) -> Callable[..., None]:
    def told(*_args: object) -> None:
        tell(what, sys._getframe(2))  # noqa: SLF001  (past this and the registry's own loop)

    return told
