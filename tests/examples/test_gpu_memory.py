"""The programs of ``examples/gpu`` on memory, on the modelled allocator of a device.

What they ask of a CPU, small, is asked of the model, large: it tells whether the fault exists there
and whether the cure cures it.
"""

import importlib.util
import json
import os
import subprocess
import sys
import weakref
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

from profkit.api import analyze
from profkit.testing import SnapshotBuilder
from profkit.testing.reference_allocator import ReferenceBlock
from traces.recordings import fault_line

pytestmark = pytest.mark.slow

PROGRAMS = Path(__file__).parents[2] / "examples" / "gpu"
EXPECTED: dict[str, dict[str, Any]] = json.loads((PROGRAMS / "expected.json").read_text())
MIB = 1 << 20


@dataclass(frozen=True)
class Small:
    """How a program is made small.

    Attributes:
        scale: Its ``--scale``.
        steps: Its steps.
        times: How many times as large its tensors are on a device.
        faulty: What the allocator is told in the faulty variant.
        cured: And in the cured one.
        instead: Values of the program that do not follow the scale.
    """

    scale: float
    steps: int
    times: int
    faulty: Mapping[str, Any] = field(default_factory=dict)
    cured: Mapping[str, Any] = field(default_factory=dict)
    instead: Mapping[str, int] = field(default_factory=dict)


SMALL = {
    # Both sides of its tensors shrink, and the number of layers does, too.
    "fragmentation": Small(0.1, 2, 110, instead={"LAYERS": 800}),
    "cache_growth": Small(0.1, 32, 100),
    "allocator_churn": Small(
        0.1,
        40,
        100,
        {"total_bytes": 1280 * MIB, "max_split_bytes": 32 * MIB},
        {"total_bytes": 1280 * MIB},
    ),
    "fenced_segments": Small(
        0.05,
        40,
        20,
        {"expandable": True, "max_split_bytes": 128 * MIB},
        {"expandable": True},
        {"TIMES": 1},
    ),
}


def loaded(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return a program as it stands."""
    monkeypatch.syspath_prepend(str(PROGRAMS))
    monkeypatch.delitem(sys.modules, "measured", raising=False)
    spec = importlib.util.spec_from_file_location(name, PROGRAMS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    return program


def find_recorded_requests(
    name: str, arguments: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> list[tuple[int, int]]:
    """Address and bytes of what a program took and, below zero, gave back, in order."""
    program = loaded(name, monkeypatch)
    for what, value in SMALL[name].instead.items():
        monkeypatch.setattr(program, what, value)
    precision, n_threads = torch.get_float32_matmul_precision(), torch.get_num_threads()
    torch.set_num_threads(1)

    with (
        torch.random.fork_rng(),
        profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded,
    ):
        program.main(arguments)

    torch.set_float32_matmul_precision(precision)
    torch.set_num_threads(n_threads)
    path = folder / "requests.json"
    recorded.export_chrome_trace(str(path))
    events = [
        event
        for event in json.loads(path.read_text())["traceEvents"]
        if event["name"] == "[memory]"
    ]
    events.sort(key=lambda event: event["ts"])
    return [(event["args"]["Addr"], event["args"]["Bytes"]) for event in events]


def modelled(requests: list[tuple[int, int]], times: int, **settings: Any) -> SnapshotBuilder:  # noqa: ANN401
    """Build the device after a program's requests, so many times as large."""
    builder = SnapshotBuilder(**settings)
    live = {}
    for address, n_bytes in requests:
        if n_bytes > 0:
            live[address] = builder.alloc(n_bytes * times)
        elif address in live:
            builder.free(live.pop(address))
    return builder


class Lines(TorchDispatchMode):
    """Asks a modelled device for the results of operators, from the lines of a program.

    Args:
        program: Its path.
        times: How many times as large tensors are on the device.
    """

    def __init__(self, program: Path, times: int) -> None:
        super().__init__()
        self.device = SnapshotBuilder()
        self._program = str(program)
        self._times = times
        self._live: set[int] = set()

    def __torch_dispatch__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401
        made = func(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, tuple | list) else (made,):
            if isinstance(tensor, torch.Tensor) and tensor.untyped_storage().nbytes():
                self._allocated(tensor, tensor.untyped_storage())
        return made

    def _allocated(self, tensor: torch.Tensor, storage: torch.UntypedStorage) -> None:
        address = storage.data_ptr()
        if address in self._live:
            return
        frame: Any = sys._getframe()
        while frame is not None and frame.f_code.co_filename != self._program:
            frame = frame.f_back
        with self.device.frame(self._program, frame.f_lineno, "main") if frame else nullcontext():
            block = self.device.alloc(storage.nbytes() * self._times)
        self._live.add(address)
        weakref.finalize(tensor, self._freed, address, block)

    def _freed(self, address: int, block: ReferenceBlock) -> None:
        self._live.discard(address)
        self.device.free(block)


@pytest.mark.parametrize("variant", ["faulty", "cured"])
def test_the_line_of_the_peak_is_found_on_the_modelled_device_and_not_the_cure(
    variant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = PROGRAMS / "peak_of_one_line.py"
    main = loaded(program.stem, monkeypatch).main
    cure = ["--cured"] if variant == "cured" else []
    lines, precision = Lines(program, 2500), torch.get_float32_matmul_precision()
    with torch.random.fork_rng(), lines:
        main(["--device", "cpu", "--warm-up", "1", "--steps", "2", "--scale", "0.02", *cure])
    torch.set_float32_matmul_precision(precision)
    report = analyze(lines.device.write(tmp_path / "modelled.snapshot.pickle"))
    places = [
        (finding.name, Path(finding.locations[0].file or "").name, finding.locations[0].line)
        for finding in report.findings
    ]

    fault = (EXPECTED[program.stem]["rule"], program.name, fault_line(program.read_text()))
    assert places == ([fault] if variant == "faulty" else [])

    if variant == "faulty":
        # Scores, and their logarithms beside them.
        n_bytes = 2 * 4 * 2500 * 328 * 656
        assert report.findings[0].evidence["line_bytes"] == pytest.approx(n_bytes, rel=0.01)


@pytest.mark.parametrize("variant", ["faulty", "cured"])
@pytest.mark.parametrize("name", SMALL)
def test_the_fault_is_found_on_the_modelled_device_and_not_the_cure(
    name: str, variant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = SMALL[name]
    arguments = ["--device", "cpu", "--warm-up", "0", "--steps", str(small.steps)]
    arguments += ["--scale", str(small.scale), *(["--cured"] if variant == "cured" else [])]
    requests = find_recorded_requests(name, arguments, tmp_path, monkeypatch)
    builder = modelled(
        requests, small.times, **(small.cured if variant == "cured" else small.faulty)
    )
    report = analyze(builder.write(tmp_path / "modelled.snapshot.pickle"))
    facts = EXPECTED[name]
    finding_of = {finding.name: finding for finding in report.findings}

    told = set(finding_of) - set(facts["same_rules"])
    assert told == ({facts["rule"]} if variant == "faulty" else set())

    if variant == "faulty":
        # What is said of expandable segments is what they come to. Nothing empties the cache, so
        # the end is the peak.
        evidence = finding_of[facts["rule"]].evidence
        if facts["rule"] == "allocator-churn":
            assert evidence["reallocated_bytes"] != 0
            return
        grown = modelled(requests, small.times, expandable=True).moment().reserved_bytes
        assert evidence["is_reproduced"] is True
        assert evidence["reserved_if_expandable_bytes"] == grown


PINS = """
import sys, types, torch
folder, programs, *arguments = sys.argv[1:]
sys.path.insert(0, programs)
import measured
from profkit.capture.memory.monitor import live_tensors
from profkit.capture.recording.options import Options
from profkit.capture.run.plan import Plan
from profkit.capture.run.run import ProgramTarget, run
from profkit.capture.recording.schedule import DEFAULT_SCHEDULE

torch.set_num_threads(1)
torch.Tensor.pin_memory = torch.Tensor.clone
torch.UntypedStorage.is_pinned = lambda storage: storage.nbytes() == 576 * 8
live_tensors.devices = types.SimpleNamespace(modules_in_use=lambda: [True])
measured.on_cuda, measured.wait = lambda _options: True, lambda _options: None
plan = Plan("pinned", Options(folder=folder, quiet=True), DEFAULT_SCHEDULE, record_trace=False)
ended = run(ProgramTarget(f"{programs}/pinned_growth.py", arguments), plan)
assert ended.error is None, ended.error
"""
"""Copies of 576 labels are pinned, and there is a device."""


@pytest.mark.parametrize("variant", ["faulty", "cured"])
def test_growth_of_pinned_memory_is_found_where_it_is_allocated_and_not_the_cure(
    variant: str, tmp_path: Path
) -> None:
    # In a process of its own: torch is told that there is a device.
    small = ["--device", "cpu", "--scale", "0.14", "--warm-up", "12", "--steps", "80"]
    cure = ["--cured"] if variant == "cured" else []
    subprocess.run(
        [sys.executable, "-c", PINS, str(tmp_path), str(PROGRAMS), *small, *cure],
        env={**os.environ, "PYTHONPATH": str(PROGRAMS.parents[1])},
        capture_output=True,
        check=True,
    )
    (memory,) = tmp_path.rglob("*.memory.json.gz")
    report = analyze(memory)
    program = PROGRAMS / "pinned_growth.py"
    places = [
        (finding.name, Path(finding.locations[0].file or "").name, finding.locations[0].line)
        for finding in report.findings
    ]

    fault = (EXPECTED[program.stem]["rule"], program.name, fault_line(program.read_text()))
    assert places == ([fault] if variant == "faulty" else [])
