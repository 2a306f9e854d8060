"""A recording prints nothing into the program's output, in which torch's profiler prints lines."""

from pathlib import Path

from tests.processes import start

PROGRAM = """
import torch
import profkit

before = [torch.ones(1000) for _ in range(5)]
with profkit.trace("step"):
    before.clear()
    torch.ones(10).exp()
"""


def test_memory_that_was_allocated_before_prints_no_line(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    ended = start(tmp_path, "train.py")
    assert (ended.code, ended.out) == (0, "")
    assert "unknown size" not in ended.err
    assert "profiler_start" not in ended.err
