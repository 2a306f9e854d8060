import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from isal import igzip

from benchmarks.load import ROOT, TRACES, repeat_events
from tests.traces import load_trace

pytestmark = pytest.mark.slow

TRACE = next(TRACES.glob("leak_cured/*.pt.trace.json.gz"))


def test_a_repeated_trace_has_the_given_size_and_a_multiple_of_the_events(
    tmp_path: Path,
) -> None:
    text = igzip.decompress(TRACE.read_bytes())
    longer = tmp_path / "longer.json"
    longer.write_bytes(b"".join(repeat_events(text, 3 * len(text))))
    assert longer.stat().st_size >= 3 * len(text)
    once, several = load_trace(TRACE).events, load_trace(longer).events
    assert len(several.ts_ns) % len(once.ts_ns) == 0
    assert len(several.ts_ns) > len(once.ts_ns)


def test_the_benchmark_of_loading_prints_each_reader_and_the_targets() -> None:
    command = [sys.executable, "benchmarks/load.py", "--mb", "1"]
    settings = {**os.environ, "PYTHONPATH": str(ROOT)}
    output = subprocess.check_output(command, cwd=ROOT, env=settings, text=True)

    rows = re.findall(
        r"^(profkit|json|orjson|msgspec(?:, typed)?) +([\d.]+) ", output, re.MULTILINE
    )
    assert [name for name, _ in rows] == [
        "profkit",
        "json",
        "orjson",
        "msgspec",
        "msgspec, typed",
        "profkit",
        "msgspec, typed",
    ]
    assert all(float(seconds) >= 0 for _, seconds in rows)
    assert output.count(": time, of a typed decode by msgspec: ") == 2


def test_a_repeated_trace_is_valid_json_with_ascending_times() -> None:
    text = igzip.decompress(TRACE.read_bytes())
    events = json.loads(b"".join(repeat_events(text, 2 * len(text))))["traceEvents"]
    steps = [event["ts"] for event in events if event["name"].startswith("ProfilerStep#")]
    assert len(steps) >= 6
    assert steps == sorted(steps)


def test_the_benchmark_of_analyzing_prints_each_program_and_the_targets() -> None:
    command = [sys.executable, "benchmarks/analyze.py", "--mb", "1", "--peers-mb", "0"]
    settings = {**os.environ, "PYTHONPATH": str(ROOT)}
    output = subprocess.check_output(command, cwd=ROOT, env=settings, text=True)
    assert re.findall(r"^(profkit analyze|msgspec|json) +[\d.]+ ", output, re.MULTILINE) == [
        "profkit analyze",
        "msgspec",
        "json",
    ]
    assert ": time, of a bare decode by msgspec: " in output
    assert "Error" not in output
