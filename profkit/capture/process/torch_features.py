"""Which torch has what; the oldest that profkit supports is torch 2.6.

Torch is asked what it has, and its version is compared only where that cannot be seen. What differs
besides is a matter of one place:

- Since 2.7, Dynamo's record of a compilation has its reason (``compiles.py``).
- Until 2.12, torch warns that a profiler clears its events (``quiet_profiler.py``).
- Since 2.13, torch holds the Python objects of nodes (``autograd_graphs.py``, which tries it).
- Since 2.13, the window in an exported trace has its name first (``recorded_window.py``).
- Since 2.14, ``Function.apply`` is code in C (``safe_points.py``).
"""

import functools
from typing import Any


def all_threads_setting() -> Any:  # noqa: ANN401
    """Return torch's setting that records all threads; None in torch 2.6, which has none.

    Source: ``torch/csrc/profiler/orchestration/observer.h`` (``ExperimentalConfig``).
    """
    from torch._C._profiler import _ExperimentalConfig

    try:
        return _ExperimentalConfig(profile_all_threads=True)
    except TypeError:
        return None


@functools.cache
def shows_saved_tensors() -> bool:
    """Return whether torch shows what a node has saved without running the program's hooks.

    Before ``SavedTensor.data``, which torch 2.9 does not have, a saved tensor can only be unpacked.
    """
    import torch

    autograd = getattr(torch._C, "_autograd", None)  # noqa: SLF001  (torch has no public way)
    return hasattr(getattr(autograd, "SavedTensor", None), "data")


def tensors_refer_to_class() -> bool:
    """Return whether every tensor shows its class to the garbage collector, as since torch 2.13.

    Before, those that C++ refers to as well do not; which of the earlier releases also do was not
    examined.

    Source: ``THPVariable_subclass_traverse`` in ``torch/csrc/autograd/python_variable.cpp``.
    """
    import torch

    version: Any = torch.__version__  # compares with tuples
    return bool(version >= (2, 13))
