"""Syncs that torch's GPU trace reports, including those in extensions and in ``torch.ops``.

The sync debug mode's warning becomes a Python warning only in torch's Python bindings. An operator
called through ``torch.ops``, or a user's extension, prints it to stderr instead; only the GPU trace
reports those. The trace cannot be switched off again: from then on every CUDA allocation and event
calls into Python, with no callback registered. So it is used only on request.

Source: ``torch.cuda._gpu_trace``; ``torch._C._activate_gpu_trace``, which has no counterpart
(``c10/core/impl/GPUTrace.cpp``); ``torch._utils.CallbackRegistry``, which logs what a callback
raises.
"""

from collections.abc import Callable
from types import FrameType
from typing import Any, Final

from profkit.capture.process import console
from profkit.capture.process.frames import find_caller

_OPERATIONS: Final = (
    ("DeviceSynchronizationCallbacks", "a device synchronization"),
    ("StreamSynchronizationCallbacks", "a stream synchronization"),
    ("EventSynchronizationCallbacks", "an event synchronization"),
)
"""torch's callback registries, and the operation that each reports."""

_registered: Final[list[tuple[list[Any], Any]]] = []


def start(report: Callable[[str, FrameType | None], None]) -> None:
    """Register callbacks with the trace, unless they are registered.

    Args:
        report: Receives the operation and the running frame, or None; it must not raise.
    """
    if _registered:
        return
    try:
        import torch
        from torch.cuda import _gpu_trace

        activate = torch._C._activate_gpu_trace  # noqa: SLF001
    except (ImportError, AttributeError) as error:
        console.warn("syncs in extensions are not reported with this version of torch.", error)
        return

    for name, operation in _OPERATIONS:
        registry = getattr(_gpu_trace, name, None)
        if registry is not None:
            callback = _callback(report, operation)
            registry.callback_list.append(callback)
            _registered.append((registry.callback_list, callback))
    activate()


def stop() -> None:
    """Remove the callbacks."""
    for callbacks, callback in _registered:
        if callback in callbacks:
            callbacks.remove(callback)
    _registered.clear()


def _callback(
    report: Callable[[str, FrameType | None], None], operation: str
) -> Callable[..., None]:
    def on_sync(*_args: object) -> None:
        report(operation, find_caller(2))  # above this and the registry's loop

    return on_sync
