"""Decides what an event is where its written category is not enough, by the event itself."""

from typing import Any, Final

from profkit.model.events import MISSING, Category
from profkit.readers.kineto.schema import (
    NO_ARGS,
)

_BRACKETED: Final = {
    "[KERNEL]": Category.KERNEL,
    "[MEMCPY]": Category.MEMCPY,
    "[MEMSET]": Category.MEMSET,
}
"""Kinds of device work that programs which use CUPTI directly write before a name."""


def category_by_name(event: Any) -> int:  # noqa: ANN401  (a struct of one of several kinds)
    """Return the category of an event whose ``cat`` is unknown, by the kind before its name."""
    return _BRACKETED.get(event.name.partition(" ")[0], Category.OTHER)


def _find_category_without_cat(event: Any) -> int:  # noqa: ANN401  (a struct of one of several kinds)
    """Return the category of an event without ``cat``.

    An autograd profiler's array has the kind in the process: ``CPU functions`` or, for device work,
    ``CUDA functions``. Programs that use CUPTI directly write its records of device work with its
    own field names, and the kind before the name, except for kernels: ``[MEMCPY] HtoD``. torch_npu
    has the type of each task of an Ascend device, and before each host call the level of CANN.

    Source: ``torch/autograd/profiler_util.py`` (``EventList.export_chrome_trace``);
    ``correlationId`` of ``CUpti_ActivityKernel`` and ``CUpti_ActivityMemcpy`` in CUPTI's API.
    """
    kind = category_by_name(event)
    if kind != Category.OTHER:
        return kind

    args = event.args or NO_ARGS
    if args.cupti_correlation != MISSING:
        return Category.KERNEL
    if args.task_type:
        return _category_of_ascend(str(args.task_type))
    if event.name.partition("@")[0] in _ASCEND_LAYERS:
        return Category.RUNTIME
    process = str(event.pid)
    if process == "CPU functions":
        return Category.OP
    return Category.KERNEL if process == "CUDA functions" else Category.OTHER


def _category_of_xpu_sync(event: Any) -> int:  # noqa: ANN401  (a struct of one of several kinds)
    """Return the category of an XPU sync: a driver call on the host, or a barrier on the device.

    Source: ``libkineto/src/plugin/xpupti/XpuptiActivityHandlers.cpp``
    (``handleSynchronizationActivity``): named after the Level Zero call, with its ``Type``.
    """
    kind = str((event.args or NO_ARGS).wait_type)
    return Category.DRIVER if kind.startswith("HOST_") else Category.DEVICE_SYNC


def _category_of_nsight(event: Any) -> int:  # noqa: ANN401  (a struct of one of several kinds)
    """Return the category of an event that a converter of Nsight reports wrote as ``cuda``.

    Source: ``nsys2json.py``, which writes kernels on the thread ``Stream 7`` of ``Device 0``.
    """
    return Category.KERNEL if str(event.tid).startswith("Stream ") else Category.OTHER


def _category_of_ascend(task_type: str) -> int:
    """Return the category of a task of an Ascend device.

    Source: ``Task Type`` in "Profile Data File References" of Ascend's msprof.
    """
    if task_type.startswith(_ASCEND_SYNCS):
        return Category.DEVICE_SYNC
    return Category.MEMCPY if task_type.startswith(_ASCEND_COPIES) else Category.KERNEL


_ASCEND_LAYERS: Final = ("AscendCL", "Model", "Node", "Runtime", "Communication")
"""Levels of CANN, before the name of each of its calls on the host: ``AscendCL@aclrtMalloc``.

Source: "CANN" in the description of ``trace_view.json`` of Ascend's documentation.
"""
_ASCEND_SYNCS: Final = ("EVENT_", "NOTIFY_", "PLACE_HOLDER", "WRITE_VALUE")
_ASCEND_COPIES: Final = ("SDMA", "MEMCPY", "PCIE_DMA")


def _category_of_mtia(event: Any) -> int:  # noqa: ANN401  (a struct of one of several kinds)
    """Return the category of what an MTIA device does: a job, a transfer, or an event of a stream.

    Source: seen in traces of MTIA; ``MTIA_CCP_EVENTS`` in ``libkineto/include/ActivityType.h``.
    """
    return _MTIA_EVENTS.get(event.name, Category.KERNEL)


_MTIA_EVENTS: Final = {
    "dma_request": Category.MEMCPY,
    "event_record": Category.DEVICE_SYNC,
    "event_wait": Category.DEVICE_SYNC,
}
AMBIGUOUS_CATEGORIES: Final = {
    "": _find_category_without_cat,
    "cuda": _category_of_nsight,
    "mtia_ccp_events": _category_of_mtia,
    "xpu_sync": _category_of_xpu_sync,
}
"""Written categories for which the event itself decides."""
