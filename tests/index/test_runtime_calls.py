"""Which calls wait is known by their names, whatever the vendor."""

import pytest

from profkit.index.runtime_calls import DEVICE_SYNC, EXPLICIT_SYNC

OF_A_DEVICE = (
    "cudaDeviceSynchronize", "hipDeviceSynchronize", "cuCtxSynchronize", "musaDeviceSynchronize",
    "topsDeviceSynchronize", "orDeviceSynchronize", "synDeviceSynchronize", "zeDeviceSynchronize",
    "aclrtSynchronizeDevice", "aclrtSynchronizeDeviceWithTimeout", "cnrtSyncDevice",
)  # fmt: skip
OF_LESS = (
    "cudaStreamSynchronize", "cudaStreamSynchronize_ptsz", "hipEventSynchronize",
    "cuStreamSynchronize", "orEventSynchronize", "musaStreamSynchronize", "aclrtSynchronizeStream",
    "cnrtQueueSync", "cnQueueSync", "cnrtWaitNotifier", "zeEventHostSynchronize",
    "zeFenceHostSynchronize", "zeCommandListHostSynchronize", "zeCommandQueueSynchronize",
    "urQueueFinish", "urEventWait", "piQueueFinish", "piEventsWait",
)  # fmt: skip
NO_WAIT = (
    "cudaLaunchKernel", "cudaStreamWaitEvent", "hipStreamWaitEvent", "cudaEventRecord",
    "cudaStreamIsCapturing", "cudaEventQuery", "orStreamWaitEvent", "aclrtStreamWaitEvent",
    "cnrtQueueWaitNotifier", "zeCommandListAppendBarrier", "zeCommandListAppendWaitOnEvents",
    "zeEventQueryStatus", "urEnqueueEventsWait", "urEnqueueEventsWaitWithBarrier", "urEventRetain",
    "musaDeviceSetLimit", "enqueueCommand waitOnEvent",
)  # fmt: skip


@pytest.mark.parametrize("name", OF_A_DEVICE + OF_LESS)
def test_synchronizing_calls_are_recognized_by_name(name: str) -> None:
    assert EXPLICIT_SYNC.matches(name)
    assert DEVICE_SYNC.matches(name) is (name in OF_A_DEVICE)


@pytest.mark.parametrize("name", NO_WAIT)
def test_asynchronous_calls_are_not_syncs(name: str) -> None:
    assert not EXPLICIT_SYNC.matches(name)
    assert not DEVICE_SYNC.matches(name)
