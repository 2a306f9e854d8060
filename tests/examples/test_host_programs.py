"""The programs of ``examples/host`` under torch's profiler: the problem found, the fix not.

Their rules need Python calls within the steps, which torch's profiler records there.
"""

import importlib.util
import json
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile, schedule

import profkit
from profkit.api import analyze
from profkit.capture.process.environment import find_half_types
from profkit.engine.registry import rules
from profkit.model.report import Report
from tests.examples.on_a_device import Device, write_on_a_device
from tests.step_counts import count_steps
from traces.recordings import fault_line

PROGRAMS = Path(__file__).parents[2] / "examples" / "host"
EXPECTED: dict[str, dict[str, Any]] = json.loads((PROGRAMS / "expected.json").read_text())
STEPS = 5
LONG_PAUSE_NS = 30_000_000
"""A thread may be interrupted for some milliseconds; sorting takes 60 to 100."""


def prepared(name: str, *, cured: bool) -> Callable[[], None]:
    spec = importlib.util.spec_from_file_location(name, PROGRAMS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    step: Callable[[], None] = module.prepare(cured=cured)
    return step


def report_on(name: str, path: Path, *, cured: bool) -> Report:
    step = prepared(name, cured=cured)
    if EXPECTED[name].get("with_profkit"):
        # The lines of a name are recorded once in a process, in one step more.
        loop = f"{name}-{path.stem}"
        with profkit.trace(loop, dir=path.parent, active=STEPS, quiet=True) as recorded:
            for _ in range(2 * STEPS):
                step()
                recorded.step()
        assert recorded.path is not None
        return analyze(recorded.path, strict=True)

    with profile(
        activities=[ProfilerActivity.CPU],
        with_stack=True,
        record_shapes=True,
        schedule=schedule(wait=0, warmup=0, active=STEPS, repeat=1),
        on_trace_ready=lambda profiler: profiler.export_chrome_trace(str(path)),
    ) as profiler:
        for _ in range(STEPS):
            step()
            profiler.step()
    # On a busy machine any step may take many times as long as what is to be found.
    rule = EXPECTED[name]["rule"]
    changed: dict[str, float] = {}
    if EXPECTED[name].get("on_a_device"):
        path = write_on_a_device(path, path.with_suffix(".json"), Device().work_of, slower=1)
        changed["min_pause_ns"] = LONG_PAUSE_NS
    elif "min_saved_share" in fields_of(rule):
        changed["min_saved_share"] = 1e-4

    return analyze(path, thresholds={rule: changed}, strict=True)


def fields_of(name: str) -> set[str]:
    """Return the thresholds of a rule."""
    (rule,) = (rule for rule in rules() if rule.INFO.name == name)
    return {field.name for field in fields(rule.Thresholds)}


def test_the_table_lists_exactly_the_programs() -> None:
    assert sorted(path.stem for path in PROGRAMS.glob("*.py")) == sorted(EXPECTED)
    assert {facts["rule"] for facts in EXPECTED.values()} <= {rule.INFO.name for rule in rules()}


@pytest.mark.parametrize("name", EXPECTED)
def test_a_program_does_not_use_profkit_and_marks_its_fault(name: str) -> None:
    program = (PROGRAMS / f"{name}.py").read_text()
    assert "profkit" not in program
    assert fault_line(program) is not None


@pytest.mark.parametrize("name", EXPECTED)
def test_the_problem_is_found_and_the_fix_has_no_such_finding(name: str, tmp_path: Path) -> None:
    missing = EXPECTED[name].get("without_type")
    types = find_half_types()
    if missing is not None and (types is None or missing in types):
        pytest.skip(f"this processor has arithmetic for {missing}, or does not tell")

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        cured = report_on(name, tmp_path / "cured.json.gz", cured=True)
        faulty = report_on(name, tmp_path / "faulty.json.gz", cured=False)
    finally:
        torch.set_num_threads(threads)
    rule = EXPECTED[name]["rule"]
    assert rule not in {finding.name for finding in cured.findings}
    (finding,) = (finding for finding in faulty.findings if finding.name == rule)
    assert (finding.cost.ns or 0) > 0
    assert count_steps(faulty.summary) == STEPS
    if finding.locations:
        assert Path(finding.locations[0].file or "").name == f"{name}.py"
