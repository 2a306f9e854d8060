"""Which devices torch can use, and profkit's own synchronization with them."""

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Final, Literal

from profkit.patterns import regex

OnlyDevice = Literal["cuda", "xpu"]
"""A kind of device that recording can be restricted to. ROCm's is ``cuda``, as in torch."""

_NVIDIA_GPUS: Final = Path("/proc/driver/nvidia/gpus")
_DEVICE_FILES: Final = Path("/dev")
_MODEL: Final = regex(r"(?m)^Model:\s*(.+?)\s*$")

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
            # A child forked later could not use CUDA if `is_available()` had asked the driver.
            if module is not None and module.is_initialized() and module.is_available():
                yield module


def read_device_memory() -> Iterator[tuple[str, int, int]]:
    """Yield the name, such as ``cuda:0``, of each device, and its allocated and reserved bytes.

    Source: ``torch.cuda.memory_allocated`` and ``torch.cuda.memory_reserved``.
    """
    for module in modules_in_use():
        kind = module.__name__.rpartition(".")[2]
        with contextlib.suppress(RuntimeError, AttributeError, AssertionError):
            for number in range(module.device_count()):
                allocated_bytes = int(module.memory_allocated(number))
                yield f"{kind}:{number}", allocated_bytes, int(module.memory_reserved(number))


def find_unused_gpus() -> list[str]:
    """Return the names of the NVIDIA GPUs that this process may use, if it has used no device.

    The driver is not asked: that would prevent the program from forking. A container that was given
    no GPU sees the names of all, but none of their device files.

    Source: "proc interface" in the README of NVIDIA's driver for Linux. "CUDA Environment
    Variables" in the CUDA C++ Programming Guide: an empty list, or a first entry that is no GPU,
    hides all.
    """
    visible_gpus = os.environ.get("CUDA_VISIBLE_DEVICES")
    is_hidden = visible_gpus is not None and (not visible_gpus or visible_gpus.startswith("-1"))
    if is_hidden or any(modules_in_use()):
        return []

    with contextlib.suppress(OSError):
        if any(os.access(file, os.R_OK | os.W_OK) for file in _DEVICE_FILES.glob("nvidia[0-9]*")):
            return read_nvidia_gpus()
    return []


def read_nvidia_gpus() -> list[str]:
    """Read the names of the NVIDIA GPUs that the kernel's driver has found, without calling it."""
    names = []
    with contextlib.suppress(OSError):
        for gpu in sorted(_NVIDIA_GPUS.glob("*/information")):
            model = _MODEL.search(gpu.read_text(encoding="utf-8", errors="replace"))
            names += [model[1]] if model else []
    return names


def _ordinals_in_use(module: Any) -> list[int]:  # noqa: ANN401  (torch.cuda and its like)
    """Return the current device, and devices with memory reserved by this process.

    Synchronizing any other would create a context on it, which takes hundreds of MiB.
    """
    current = int(module.current_device())
    ordinals = range(module.device_count())
    return [current, *(i for i in ordinals if i != current and module.memory_reserved(i))]
