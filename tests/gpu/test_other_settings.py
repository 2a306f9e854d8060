"""On a real device: simulated allocator settings reserve as predicted."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from profkit.engine.context import Context
from profkit.index.snapshot.device_memory import DeviceMemory
from profkit.model.snapshot import MemorySnapshot
from profkit.readers.open import load

pytestmark = pytest.mark.gpu

PROGRAM = """
import sys, torch

def tensor(mebibytes):
    return torch.empty(mebibytes << 20, dtype=torch.uint8, device="cuda")

torch.cuda.memory._record_memory_history(max_entries=100_000)
batch = [tensor(200) for _ in range(10)]
del batch
retained = []
for n in range(10):
    work = tensor(182 + n)
    retained.append(tensor(120))
    del work
    small = [torch.empty(size * 700, device="cuda") for size in range(1, 400)]
    del small
batch = [tensor(200) for _ in range(10)]
torch.cuda.memory._dump_snapshot(sys.argv[1])
"""


def recorded(folder: Path, settings: str) -> DeviceMemory:
    """Return the program's device memory under some allocator settings."""
    path = folder / "snapshot.pickle"
    # The second is for torch before 2.9.
    names = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
    inherited = {key: value for key, value in os.environ.items() if key not in names}
    setting = dict.fromkeys(names, settings) if settings else {}
    command = [sys.executable, "-c", PROGRAM, str(path)]
    subprocess.run(command, env=inherited | setting, check=True)
    snapshot = load(path)
    assert isinstance(snapshot, MemorySnapshot)
    memories = Context(snapshot=snapshot).device_memories
    (memory,) = (memory for memory in memories if len(memory.replay.alloc))
    return memory


def test_predicted_peaks_agree_with_a_run_with_the_settings(tmp_path: Path) -> None:
    other_settings = recorded(tmp_path, "").what_if
    assert other_settings.max_error_bytes == 0
    expandable, split = other_settings.expandable, other_settings.best_split
    assert expandable is not None
    assert split is not None
    assert split.peak_bytes < expandable.peak_bytes < other_settings.recorded.peak_bytes
    for outcome in (expandable, split):
        then = recorded(tmp_path, outcome.settings.alloc_conf)
        assert int(then.reserved_bytes.max()) == outcome.peak_bytes
        # The simulation reproduces that history, too.
        assert then.what_if.max_error_bytes == 0
