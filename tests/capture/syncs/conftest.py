"""A torch that tells of waits as one with CUDA does."""

import functools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch.cuda import _gpu_trace

from profkit.capture.syncs import sync_monitor


@dataclass
class Waits:
    """Stands for CUDA's part in torch's sync debug mode.

    The warning is one of torch's own, made in C++ and carried to Python as the mode's is:
    ``torch.std`` of one number warns each time. Only its words differ.

    Attributes:
        mode: The debug mode.
        n_traced: How often the GPU trace was switched on.
    """

    mode: int = 0
    n_traced: int = field(default=0)

    def set_mode(self, mode: int) -> None:
        """As ``_cuda_set_sync_debug_mode``."""
        self.mode = mode

    def activate(self) -> None:
        """As ``_activate_gpu_trace``."""
        self.n_traced += 1


ONE = torch.ones(1)


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[Waits]:
    """A torch that can be asked to tell of waits."""
    waits = Waits()
    c: Any = torch._C
    monkeypatch.setattr(c, "_cuda_set_sync_debug_mode", waits.set_mode, raising=False)
    monkeypatch.setattr(c, "_cuda_get_sync_debug_mode", lambda: waits.mode, raising=False)
    monkeypatch.setattr(c, "_activate_gpu_trace", waits.activate, raising=False)
    monkeypatch.setattr(sync_monitor, "SYNC_WARNING", re.compile(r"std\(\): degrees of freedom"))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: None)
    yield waits
    assert not sync_monitor._listeners, "a test left somebody listening"
    assert waits.mode == 0
    assert not _gpu_trace.StreamSynchronizationCallbacks.callback_list


Fires = Callable[[], None]


@pytest.fixture
def stream_waits() -> Fires:
    """What torch calls, from C++, before it waits for a stream."""
    return functools.partial(_gpu_trace.StreamSynchronizationCallbacks.fire_callbacks, 7)
