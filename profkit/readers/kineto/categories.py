"""The categories of events as Kineto and converters write them, and what each is in the model.

Where a written category is not enough, as for a vendor's runtime that also has operators,
:mod:`profkit.readers.kineto.event_categories` decides by the event.
"""

from typing import Final

from profkit.model.events import Category

CATEGORIES: Final = {
    "cpu_op": Category.OP,
    "operator": Category.OP,
    "user_annotation": Category.ANNOTATION,
    "nvtx": Category.ANNOTATION,
    "gpu_user_annotation": Category.DEVICE_ANNOTATION,
    "kernel": Category.KERNEL,
    "gpu_memcpy": Category.MEMCPY,
    "memcpy": Category.MEMCPY,
    "gpu_memset": Category.MEMSET,
    "memset": Category.MEMSET,
    "cuda_runtime": Category.RUNTIME,
    "runtime": Category.RUNTIME,
    "xpu_runtime": Category.RUNTIME,
    "mtia_runtime": Category.RUNTIME,
    "glow_runtime": Category.RUNTIME,
    "hpu_op": Category.RUNTIME,
    "privateuse1_runtime": Category.RUNTIME,
    "cuda_driver": Category.DRIVER,
    "xpu_driver": Category.DRIVER,
    "privateuse1_driver": Category.DRIVER,
    "python_function": Category.PYTHON,
    "overhead": Category.OVERHEAD,
    "cuda_sync": Category.DEVICE_SYNC,
    "xpu_sync": Category.DEVICE_SYNC,
    "trace": Category.SPAN,
}
"""Categories by their name in lower case.

Source: ``libkineto/include/ActivityType.h``. torch 1.8 to 1.10 write capitalized names; ``nvtx`` is
written by ``nsys2json.py``, a converter of Nsight Systems' reports.
"""
DEVICE_TYPES: Final = {"xpu": "xpu", "privateuse1": "privateuseone", "hpu": "hpu", "mtia": "mtia"}
"""PyTorch's device types by the first part of vendors' categories (``xpu_runtime``); others are of
``cuda``, which HIP's are too."""
WITHOUT_WORK: Final = frozenset(
    {
        "external_correlation",
        "cpu_instant_event",
        "cuda_profiler_range",
        "cuda_event",
        "collective_comm",
        "mtia_insight",
        "mtia_counters",
    }
)
"""Kineto's other categories. Each of their events describes one of a category above once more.

Source: ``libkineto/include/ActivityType.h``.
"""
_OF_HOST: Final = frozenset(
    {Category.OP, Category.ANNOTATION, Category.PYTHON, Category.OVERHEAD, Category.SPAN}
)
_WITH_OR_WITHOUT_DEVICE: Final = frozenset({"", "cpu_instant_event"})
"""Categories of no kind in the model that a recording of a CPU may have; empty where it is missing.
"""
_ONLY_WITH_DEVICE: Final = frozenset({"nvtx"})
"""Categories of events on the host that only tools for GPUs write."""


def needs_device(written: str) -> bool:
    """Return whether only the recording of a program that uses a device has a category.

    Args:
        written: The category as in the file, such as ``cuda_runtime``.
    """
    name = written.lower()
    if name in _WITH_OR_WITHOUT_DEVICE:
        return False
    return name in _ONLY_WITH_DEVICE or CATEGORIES.get(name) not in _OF_HOST
