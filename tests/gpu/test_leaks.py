"""On a real device: the leaking programs leak there too, with source line and holder."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.examples.leak_cures import LEAKS, PROGRAMS
from tests.examples.test_leaks import (
    CLEAN,
    is_held_as_stated,
    location_of,
    marked_lines,
    memory_findings,
)
from tests.processes import start

pytestmark = pytest.mark.gpu

ON_CUDA = Path(__file__).with_name("on_cuda.py")
BOUND_TO_THE_HOST = ("DataLoader", "Generator", "numpy", ".to(", "device")
"""Text of programs that choose the device of their tensors themselves."""


def uses_default_device(name: str) -> bool:
    text = (PROGRAMS / f"{name}.py").read_text()
    return not any(word in text for word in BOUND_TO_THE_HOST)


def report_on(name: str, facts: dict[str, Any], folder: Path) -> dict[str, Any]:
    command = ("-m", "profkit", "run", "--dir", "out", "--json", "report.json")
    program = [str(ON_CUDA), str(PROGRAMS / f"{name}.py"), *facts["arguments"]]
    ended = start(folder, *command, *program)
    assert ended.code == 0, ended.err
    report: dict[str, Any] = json.loads((folder / "report.json").read_text())
    return report


@pytest.mark.parametrize("name", [name for name in LEAKS if uses_default_device(name)])
def test_a_leak_on_the_device_has_its_line_and_holder(name: str, tmp_path: Path) -> None:
    facts = LEAKS[name]
    report = report_on(name, facts, tmp_path)
    leaks = [finding for finding in report["findings"] if finding["name"] in facts["rules"]]
    assert leaks, (report["findings"], report["unchecked"])
    if facts.get("line", True):
        assert location_of(leaks[0]) in marked_lines(name)
    assert is_held_as_stated(leaks[0], facts), leaks[0]["holders"]


@pytest.mark.parametrize("name", [name for name in CLEAN if uses_default_device(name)])
def test_a_clean_program_has_no_finding_on_the_device(name: str, tmp_path: Path) -> None:
    assert memory_findings(report_on(name, CLEAN[name], tmp_path)) == []
