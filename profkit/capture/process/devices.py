"""Which devices torch can use, and profkit's own synchronization with them."""

import contextlib
import sys
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from typing import Any, Final, Literal

OnlyDevice = Literal["cuda", "xpu"]
"""A kind of device that recording can be restricted to. ROCm's is ``cuda``, as in torch."""

_in_profkit: Final[ContextVar[bool]] = ContextVar("profkit_synchronizes", default=False)


@contextlib.contextmanager
def profkit_sync() -> Iterator[None]:
    """Have the syncs of this block count as profkit's: they are neither reported nor counted."""
    token = _in_profkit.set(True)
    try:
        yield
    finally:
        _in_profkit.reset(token)


def in_profkit_sync() -> bool:
    """Return whether this context is inside :func:`profkit_sync`."""
    return _in_profkit.get()


def is_present(device: OnlyDevice) -> bool:
    """Return whether torch can use a kind of device."""
    import torch

    module = getattr(torch, device, None)
    return module is not None and bool(module.is_available())


def synchronize() -> None:
    """Wait for the work on every device in use. Devices that were never used are not touched."""
    import torch

    # A failed device raises in the program itself, at the next call that uses it.
    ignored = contextlib.suppress(RuntimeError, AttributeError)
    with profkit_sync():
        with ignored:
            if torch.mps.is_available():
                torch.mps.synchronize()
        for module in modules_in_use(("cuda", "xpu", "mtia")):
            with ignored:
                for ordinal in _ordinals_in_use(module):
                    module.synchronize(ordinal)


def modules_in_use(kinds: Sequence[str] = ("cuda", "xpu")) -> Iterator[Any]:
    """Yield ``torch.cuda`` and the like, if the program has initialized them."""
    torch = sys.modules.get("torch")
    for kind in kinds:
        module = getattr(torch, kind, None)
        with contextlib.suppress(RuntimeError, AttributeError, AssertionError):
            if module is not None and module.is_available() and module.is_initialized():
                yield module


def _ordinals_in_use(module: Any) -> list[int]:  # noqa: ANN401  (torch.cuda and its like)
    """Return the current device, and devices with memory reserved by this process.

    Synchronizing any other would create a context on it, which takes hundreds of MiB.
    """
    current = int(module.current_device())
    ordinals = range(module.device_count())
    return [current, *(i for i in ordinals if i != current and module.memory_reserved(i))]
