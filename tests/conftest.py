"""What all tests share: one core for each process, a cache of their own, and the marker gpu."""

import gc
import os
import sys
import tempfile
from collections.abc import Iterable

import pytest
from hypothesis import settings

from tests.processes import let_interrupts_through

# No test is timed: a busy machine is not a fault. Too slow is for benchmarks to say.
# The tests of a change try the same examples each time; "make test-all" searches for others.
settings.register_profile("profkit", deadline=None, derandomize=True)
settings.register_profile("search", deadline=None, print_blob=True)
settings.load_profile(os.environ.get("PROFKIT_HYPOTHESIS", "profkit"))

if "PYTEST_XDIST_WORKER" in os.environ:
    # The test processes share the cores already; threads of torch that wait for each other take
    # ten times as long. Programs that a test starts inherit this.
    os.environ.setdefault("OMP_NUM_THREADS", "1")

let_interrupts_through()

# No test reads or writes the cache of whoever runs it. Programs that a test starts inherit this.
_caches = tempfile.TemporaryDirectory(prefix="profkit-tests-")
os.environ["XDG_CACHE_HOME"] = _caches.name
os.environ.pop("PROFKIT_CACHE", None)


@pytest.fixture(autouse=True, scope="module")
def small_heap() -> None:
    """Let the garbage collector pass over the objects of earlier tests.

    What pytest and thousands of tests have made is more than the objects of most programs, and both
    collections and searches for the holders of a tensor would pass over it each time.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def no_regions_left_open() -> None:
    """Recordings that another test stopped inside a region decide nothing in this one."""
    if kinds := sys.modules.get("profkit.capture.recording.harmless_kinds"):
        kinds._left_open.clear()
        kinds._unexamined.clear()


def pytest_collection_modifyitems(items: Iterable[pytest.Item]) -> None:
    """Skip tests marked ``gpu`` where there is none; torch is asked only if there are any."""
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    import torch

    if not torch.cuda.is_available():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="there is no CUDA device"))
