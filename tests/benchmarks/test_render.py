"""The benchmark of the HTML report at a small size."""

import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest
from isal import igzip

from benchmarks.load import ROOT, TRACES, repeat_events
from profkit.engine.context import Context
from tests.traces import load_trace

pytestmark = pytest.mark.slow

TRACE = next(TRACES.glob("leak_cured/*.pt.trace.json.gz"))


def test_randomly_scaled_repetitions_preserve_nesting(tmp_path: Path) -> None:
    text = igzip.decompress(TRACE.read_bytes())
    path = tmp_path / "longer.json"
    path.write_bytes(b"".join(repeat_events(text, 3 * len(text), random.Random(0))))  # noqa: S311
    once, several = Context(trace=load_trace(TRACE)), Context(trace=load_trace(path))
    n = len(once.events)
    for turn in range(len(several.events) // n):
        rows = slice(turn * n, (turn + 1) * n)
        assert several.tree.depth[rows].tolist() == once.tree.depth.tolist()
    lengths = several.events.dur_ns.reshape(-1, n)
    assert (lengths[0] != lengths[1]).mean() > 0.9


def test_the_benchmark_prints_a_row_per_size_and_its_targets() -> None:
    small = TRACE.parent.name
    command = [sys.executable, "benchmarks/render.py", "--events", "700", "--small", small]
    settings = {**os.environ, "PYTHONPATH": str(ROOT)}
    output = subprocess.check_output(command, cwd=ROOT, env=settings, text=True)
    rows = re.findall(r"^ +([\d,]+) +([\d.]+) ", output, re.MULTILINE)
    sizes = [int(n.replace(",", "")) for n, _ in rows]
    assert len(sizes) == 2, "a trace of a CPU, and one of a GPU"
    assert min(sizes) >= 700
    assert re.search(rf"^ +{small} +\d+ ", output, re.MULTILINE)
    assert "largest page of a small recording: " in output
