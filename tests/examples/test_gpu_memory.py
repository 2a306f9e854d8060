"""The programs of ``examples/gpu`` on memory, on the modelled allocator of a device.

What they ask of a CPU, small, is asked of the model, large: it tells whether the fault exists there
and whether the cure cures it.
"""

import importlib.util
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from profkit.api import analyze
from profkit.testing import SnapshotBuilder

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
    "fenced_segments": Small(
        0.05,
        40,
        20,
        {"expandable": True, "max_split_bytes": 128 * MIB},
        {"expandable": True},
        {"TIMES": 1},
    ),
}


def recorded_requests(
    name: str, arguments: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> list[tuple[int, int]]:
    """Address and bytes of what a program took and, below zero, gave back, in order."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    monkeypatch.syspath_prepend(str(PROGRAMS))
    monkeypatch.delitem(sys.modules, "measured", raising=False)
    spec = importlib.util.spec_from_file_location(name, PROGRAMS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
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
        one for one in json.loads(path.read_text())["traceEvents"] if one["name"] == "[memory]"
    ]
    events.sort(key=lambda one: one["ts"])
    return [(one["args"]["Addr"], one["args"]["Bytes"]) for one in events]


def modelled(requests: list[tuple[int, int]], times: int, **settings: Any) -> SnapshotBuilder:  # noqa: ANN401
    """The device when all of that was asked of it, so many times as large."""
    builder = SnapshotBuilder(**settings)
    live = {}
    for address, n_bytes in requests:
        if n_bytes > 0:
            live[address] = builder.alloc(n_bytes * times)
        elif address in live:
            builder.free(live.pop(address))
    return builder


@pytest.mark.parametrize("variant", ["faulty", "cured"])
@pytest.mark.parametrize("name", SMALL)
def test_the_fault_is_found_on_the_modelled_device_and_not_the_cure(
    name: str, variant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = SMALL[name]
    arguments = ["--device", "cpu", "--warm-up", "0", "--steps", str(small.steps)]
    arguments += ["--scale", str(small.scale), *(["--cured"] if variant == "cured" else [])]
    requests = recorded_requests(name, arguments, tmp_path, monkeypatch)
    builder = modelled(
        requests, small.times, **(small.cured if variant == "cured" else small.faulty)
    )
    report = analyze(builder.write(tmp_path / "modelled.snapshot.pickle"))
    facts = EXPECTED[name]
    found = {finding.name: finding for finding in report.findings}
    told = set(found) - set(facts["same_rules"])
    assert told == ({facts["rule"]} if variant == "faulty" else set())
    if variant == "faulty":
        # What is said of expandable segments is what they come to. Nothing empties the cache, so
        # the end is the peak.
        evidence = found[facts["rule"]].evidence
        grown = modelled(requests, small.times, expandable=True).moment().reserved_bytes
        assert evidence["is_reproduced"] is True
        assert evidence["reserved_if_expandable_bytes"] == grown
