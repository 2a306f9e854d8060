"""Converts CUDA events to the events that other vendors' profiler backends write.

Source: ``libkineto/include/ActivityType.h`` for the categories; ``libkineto/src/plugin/xpupti``
and PTI-GPU for an XPU's names and fields; ``torch_openreg``, PyTorch's example of an out-of-tree
backend, for PrivateUse1; the Gaudi bridge's ``KinetoActivityProfiler`` and the Synapse API for
HPU; traces that MTIA's users published.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final, Literal

from profkit.model.torch_names import MEMORY
from profkit.patterns import regex
from profkit.testing.event_recorder import Event

Vendor = Literal["cuda", "rocm", "rocm-7.1", "xpu", "privateuse1", "mtia", "hpu"]

DEVICE_WORK: Final = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
NO_PROCESS: Final = -1
"""The process of XPU syncs and of profiler overhead."""

_CALLS: Final = frozenset({"cuda_runtime", "cuda_driver"})
_CATEGORIES: Final[Mapping[str, Mapping[str, str]]] = {
    "xpu": {"cuda_runtime": "xpu_runtime", "cuda_driver": "xpu_driver"},
    "privateuse1": {"cuda_runtime": "privateuse1_runtime", "cuda_driver": "privateuse1_driver"},
    "mtia": {
        **dict.fromkeys(_CALLS, "mtia_runtime"),
        **dict.fromkeys(DEVICE_WORK, "mtia_ccp_events"),
    },
    "hpu": dict.fromkeys((*_CALLS, "gpu_memcpy", "gpu_memset"), "hpu_op"),
}
_PREFIX: Final = {
    "rocm": "hip", "rocm-7.1": "hip", "xpu": "ur", "privateuse1": "or", "mtia": "", "hpu": "syn",
}  # fmt: skip
_NAMES: Final[Mapping[str, Mapping[str, str]]] = {
    "xpu": {
        "LaunchKernel": "urEnqueueKernelLaunch",
        "MemcpyAsync": "urEnqueueUSMMemcpy",
        "MemsetAsync": "urEnqueueUSMFill",
        "DeviceSynchronize": "zeDeviceSynchronize",
        "StreamSynchronize": "zeCommandListHostSynchronize",
        "EventSynchronize": "zeEventHostSynchronize",
    },
    "mtia": {
        "LaunchKernel": "runFunction - job_prep_and_submit_for_execution",
        "MemcpyAsync": "enqueueCommand memcpyHtoDAsync",
        "DeviceSynchronize": "synchronize",
        "StreamSynchronize": "synchronizeStream",
        "EventRecord": "recordEvent",
    },
    "hpu": {"LaunchKernel": "synLaunchExt", "MemcpyAsync": "synMemCopyAsync"},
}
_XPU_SYNCS: Final = {
    "zeDeviceSynchronize": "HOST_COMMAND_QUEUE",
    "zeCommandListHostSynchronize": "HOST_COMMAND_LIST",
    "zeEventHostSynchronize": "HOST_EVENT",
}
_XPU_COPIES: Final = {
    "HtoD (Pageable -> Device)": "M2D (MEMORY(Unknown) -> DEVICE)",
    "HtoD (Pinned -> Device)": "H2D (HOST -> DEVICE)",
    "DtoH (Device -> Pageable)": "D2M (DEVICE -> MEMORY(Unknown))",
    "DtoH (Device -> Pinned)": "D2H (DEVICE -> HOST)",
    "DtoD (Device -> Device)": "D2D (DEVICE -> DEVICE)",
}
_ROCM_KERNELS: Final = {
    "gpu_memcpy": "__amd_rocclr_copyBuffer",
    "gpu_memset": "__amd_rocclr_fillBufferAligned",
}
_DEVICE_TYPES: Final = {"xpu": 12, "hpu": 15, "mtia": 19, "privateuse1": 20}
"""Source: ``c10/core/DeviceType.h``."""
_CUDA_NAME: Final = regex(r"^cu(da)?(?=[A-Z])")
_HANDLE: Final = "0x{:016x}"


def convert_to_vendor(event: Event, vendor: Vendor) -> Event:
    """Convert a CUDA event to the event that a vendor's profiler backend writes."""
    if vendor == "cuda":
        return event
    if event.name == MEMORY:
        return _convert_allocation(event, vendor)
    if event.cat in _CALLS:
        return _convert_call(event, vendor)
    if event.cat in DEVICE_WORK:
        return _convert_work(event, vendor)
    return event


def build_ignored_events(event: Event, vendor: Vendor) -> Iterator[Event]:
    """Build the events that a vendor's profiler adds to device work, and no figure includes.

    Args:
        event: The work, as :func:`convert_to_vendor` returned it.
        vendor: The vendor.
    """
    if vendor == "mtia":
        for cat in ("mtia_insight", "mtia_workloadd"):
            yield replace(event, cat=cat, name=cat, args={"stream": 1})
        yield replace(event, ph="C", cat="mtia_counters", name="HBM", dur_ns=None, args={"GB/s": 1})
    elif vendor == "xpu":
        args = {"correlation": 0, "Type": "GPU_BARRIER_EXECUTION"}
        name = "zeCommandListAppendBarrier"
        yield replace(event, cat="xpu_sync", name=name, pid=NO_PROCESS, args=args)


def _convert_allocation(event: Event, vendor: Vendor) -> Event:
    args = dict(event.args or {})
    if args.get("Device Type"):
        args["Device Type"] = _DEVICE_TYPES.get(vendor, args["Device Type"])
    return replace(event, args=args)


def _convert_call(event: Event, vendor: Vendor) -> Event:
    cat, args = event.cat or "", dict(event.args or {})
    unprefixed = _CUDA_NAME.sub("", event.name)
    name = _NAMES.get(vendor, {}).get(unprefixed, _PREFIX[vendor] + unprefixed)
    cat = _CATEGORIES.get(vendor, {}).get(cat, cat)

    # The plugin writes synchronizing calls as activities of their own, outside any process.
    if name in _XPU_SYNCS:
        args |= _sync_args(name)
        return replace(event, cat="xpu_sync", name=name, pid=NO_PROCESS, args=args)
    if vendor == "mtia":
        args = {"correlation": args["correlation"], "device": 0, "stream_id": 1}
    elif vendor == "hpu":
        args = {}
    return replace(event, cat=cat, name=name, args=args)


def _sync_args(name: str) -> dict[str, Any]:
    handles = {f"{kind}_handle": _HANDLE.format(1) for kind in ("Context", "Queue", "Event")}
    return {"Type": _XPU_SYNCS[name], **handles, "Number_wait_events": 0, "Return_code": 0}


def _convert_work(event: Event, vendor: Vendor) -> Event:
    cat, name, args = event.cat or "", event.name, dict(event.args or {})

    if vendor == "xpu":
        args["sycl queue"] = args.pop("stream")
        args |= {"context": _HANDLE.format(1), "l0 queue": _HANDLE.format(args["sycl queue"])}
        kind = name.removeprefix("Memcpy ")
        name = name.replace(kind, _XPU_COPIES.get(kind, kind))
    elif vendor == "mtia":
        args = {"correlation": args["correlation"], "stream": args["stream"], "column": "0"}
        # Fills are transfers of the device's DMA engine too.
        name = name if cat == "kernel" else "dma_request"
    elif vendor == "hpu":
        args = {"device": args["device"]} if cat == "kernel" else {}
    elif vendor.startswith("rocm"):
        # ROCm 7.1 records copies and fills as the kernels that carry them out.
        if vendor == "rocm-7.1" and cat in _ROCM_KERNELS:
            name, cat = _ROCM_KERNELS[cat], "kernel"
        args = {key: str(value) if key == "bytes" else value for key, value in args.items()}
        name = name.replace("Pageable", "Host").replace("Pinned", "Host")

    return replace(event, cat=_CATEGORIES.get(vendor, {}).get(cat, cat), name=name, args=args)
