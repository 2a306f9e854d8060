"""A torch that reports syncs as one with CUDA does."""

import functools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch.cuda import _gpu_trace

from profkit.capture.syncs import sync_monitor


@dataclass
class FakeSyncMode:
    """Replaces CUDA's part of torch's sync debug mode.

    The warning is another one that torch raises in C++ each time, like the mode's: that of
    ``torch.std`` of one number. Only its text differs.

    Attributes:
        mode: The debug mode.
        n_traced: How often the GPU trace was switched on.
    """

    mode: int = 0
    n_traced: int = 0

    def set_mode(self, mode: int) -> None:
        """Stand in for ``_cuda_set_sync_debug_mode``."""
        self.mode = mode

    def activate(self) -> None:
        """Stand in for ``_activate_gpu_trace``."""
        self.n_traced += 1


ONE = torch.ones(1)


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeSyncMode]:
    """Yield a torch with sync debug mode."""
    fake = FakeSyncMode()
    c: Any = torch._C
    monkeypatch.setattr(c, "_cuda_set_sync_debug_mode", fake.set_mode, raising=False)
    monkeypatch.setattr(c, "_cuda_get_sync_debug_mode", lambda: fake.mode, raising=False)
    monkeypatch.setattr(c, "_activate_gpu_trace", fake.activate, raising=False)
    monkeypatch.setattr(sync_monitor, "SYNC_WARNING", re.compile(r"std\(\): degrees of freedom"))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: None)
    yield fake
    assert not sync_monitor._listeners, "a test left a listener subscribed"
    assert fake.mode == 0
    assert not _gpu_trace.StreamSynchronizationCallbacks.callback_list


Fires = Callable[[], None]


@pytest.fixture
def stream_sync() -> Fires:
    """Return the function that torch calls, from C++, before it synchronizes a stream."""
    return functools.partial(_gpu_trace.StreamSynchronizationCallbacks.fire_callbacks, 7)
