"""On a real device: what other settings would reserve is what they do reserve."""

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

def made(mebibytes):
    return torch.empty(mebibytes << 20, dtype=torch.uint8, device="cuda")

torch.cuda.memory._record_memory_history(max_entries=100_000)
held = [made(200) for _ in range(10)]
del held
kept = []
for n in range(10):
    work = made(182 + n)
    kept.append(made(120))
    del work
    small = [torch.empty(size * 700, device="cuda") for size in range(1, 400)]
    del small
held = [made(200) for _ in range(10)]
torch.cuda.memory._dump_snapshot(sys.argv[1])
"""


def recorded(folder: Path, settings: str) -> DeviceMemory:
    """What the program's history tells, under some settings."""
    path = folder / "snapshot.pickle"
    # The second name is that of torch before 2.9.
    names = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
    own = {key: value for key, value in os.environ.items() if key not in names}
    set_so = dict.fromkeys(names, settings) if settings else {}
    command = [sys.executable, "-c", PROGRAM, str(path)]
    subprocess.run(command, env=own | set_so, check=True)
    snapshot = load(path)
    assert isinstance(snapshot, MemorySnapshot)
    memories = Context(snapshot=snapshot).device_memories
    (memory,) = (each for each in memories if len(each.replay.alloc))
    return memory


def test_what_is_said_of_other_settings_comes_true(tmp_path: Path) -> None:
    other = recorded(tmp_path, "").what_if
    assert other.max_error_bytes == 0
    expandable, split = other.expandable, other.best_split
    assert expandable is not None
    assert split is not None
    assert split.peak_bytes < expandable.peak_bytes < other.recorded.peak_bytes
    for outcome in (expandable, split):
        then = recorded(tmp_path, outcome.alloc_conf)
        assert int(then.reserved_bytes.max()) == outcome.peak_bytes
        # And the history that comes of it follows the rules as well.
        assert then.what_if.max_error_bytes == 0
