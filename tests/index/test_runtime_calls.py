"""Which calls wait is known by their names, whatever the vendor."""

import re
from pathlib import Path

import pytest

from profkit.index.runtime_calls import (
    DEVICE_SYNC,
    EVENT_SYNC,
    EXPLICIT_SYNC,
    names_matching,
    rows_named,
)
from profkit.model.events import Category
from profkit.testing import TraceBuilder
from tests.traces import load_trace

OF_A_DEVICE = (
    "cudaDeviceSynchronize", "hipDeviceSynchronize", "cuCtxSynchronize", "musaDeviceSynchronize",
    "topsDeviceSynchronize", "orDeviceSynchronize", "synDeviceSynchronize", "zeDeviceSynchronize",
    "aclrtSynchronizeDevice", "aclrtSynchronizeDeviceWithTimeout", "cnrtSyncDevice",
)  # fmt: skip
OF_LESS = (
    "cudaStreamSynchronize", "cudaStreamSynchronize_ptsz", "cuStreamSynchronize",
    "musaStreamSynchronize", "aclrtSynchronizeStream", "cnrtQueueSync", "cnQueueSync",
    "zeFenceHostSynchronize", "zeCommandListHostSynchronize", "zeCommandQueueSynchronize",
    "urQueueFinish", "piQueueFinish",
)  # fmt: skip
OF_AN_EVENT = (
    "cudaEventSynchronize", "hipEventSynchronize", "orEventSynchronize", "aclrtSynchronizeEvent",
    "AscendCL@aclrtSynchronizeEvent", "cnrtWaitNotifier", "zeEventHostSynchronize", "urEventWait",
    "piEventsWait",
)  # fmt: skip
NO_WAIT = (
    "cudaLaunchKernel", "cudaStreamWaitEvent", "hipStreamWaitEvent", "cudaEventRecord",
    "cudaStreamIsCapturing", "cudaEventQuery", "orStreamWaitEvent", "aclrtStreamWaitEvent",
    "cnrtQueueWaitNotifier", "zeCommandListAppendBarrier", "zeCommandListAppendWaitOnEvents",
    "zeEventQueryStatus", "urEnqueueEventsWait", "urEnqueueEventsWaitWithBarrier", "urEventRetain",
    "musaDeviceSetLimit", "enqueueCommand waitOnEvent",
)  # fmt: skip


@pytest.mark.parametrize("name", OF_A_DEVICE + OF_LESS + OF_AN_EVENT)
def test_synchronizing_calls_are_recognized_by_name(name: str) -> None:
    assert EXPLICIT_SYNC.matches(name)
    assert DEVICE_SYNC.matches(name) is (name in OF_A_DEVICE)
    assert EVENT_SYNC.matches(name) is (name in OF_AN_EVENT)


@pytest.mark.parametrize("name", NO_WAIT)
def test_asynchronous_calls_are_not_syncs(name: str) -> None:
    assert not EXPLICIT_SYNC.matches(name)
    assert not DEVICE_SYNC.matches(name)
    assert not EVENT_SYNC.matches(name)


class Counted:
    """A pattern that notes what it searches."""

    def __init__(self, pattern: str) -> None:
        self._pattern = re.compile(pattern)
        self.searched: list[str] = []

    def search(self, name: str) -> re.Match[str] | None:
        self.searched.append(name)
        return self._pattern.search(name)


def test_a_name_is_searched_once_and_only_where_its_category_matters(tmp_path: Path) -> None:
    b = TraceBuilder()
    for n in range(20):
        b.compute(f"op_{n}", 1_000)
        b.launch("aten::mm", kernel=f"kernel_{n}", host_ns=1_000, device_ns=1_000)
    events = load_trace(b.write(tmp_path / "t.pt.trace.json")).events
    pattern = Counted("_1[0-9]$")
    for _ in range(2):
        named = rows_named(events, pattern, Category.KERNEL)  # type: ignore[arg-type]
        assert [events.name_of(row) for row in named.nonzero()[0].tolist()] == [
            f"kernel_{n}" for n in range(10, 20)
        ]

    assert sorted(pattern.searched) == sorted(f"kernel_{n}" for n in range(20))

    every = names_matching(events, pattern)  # type: ignore[arg-type]
    assert every.sum() == 20
    assert not every.flags.writeable
