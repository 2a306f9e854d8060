"""device-mismatch reports the error of tensors on different devices, with their devices."""

from collections.abc import Callable

import pytest

from profkit.model.capture_info import CaptureInfo, DeviceMismatch, TensorPlace
from profkit.model.finding import Finding
from profkit.model.report import Report
from profkit.testing import TraceBuilder

RULE = "device-mismatch"
Found = Callable[..., tuple[Finding, ...]]
Analyzed = Callable[..., Report]

TENSORS = [
    TensorPlace("x", "cpu", [2, 4]),
    TensorPlace("weight of Linear", "cuda:0", [4, 4]),
    TensorPlace("bias of Linear", "cuda:0", [4]),
]
ERROR = "Expected all tensors to be on the same device, but found at least two devices"


def ended(mismatch: DeviceMismatch | None, *, stopped_by: str = "RuntimeError") -> TraceBuilder:
    capture = CaptureInfo("0", "train", "whole", stopped_by=stopped_by, mismatch=mismatch)
    b = TraceBuilder(device_names=(), capture=capture)
    b.compute("aten::randn", 1_000)
    with b.op("aten::linear"):
        b.compute("aten::addmm", 1_000)
    return b


def test_it_names_the_operator_the_line_and_the_devices(found: Found) -> None:
    mismatch = DeviceMismatch(ERROR, "aten::addmm", ("train.py", 12, "step"), TENSORS)
    (finding,) = found(ended(mismatch), RULE)
    assert finding.message == (
        "`aten::addmm` at train.py:12 failed: `x` is on cpu, `weight of Linear` and `bias of "
        "Linear` are on cuda:0."
    )
    assert (finding.locations[0].line, finding.locations[0].op) == (12, "aten::addmm")
    assert "`x = x.to(device)`" in finding.fix


def test_an_error_without_the_operator_belongs_to_the_last_one(found: Found) -> None:
    (finding,) = found(ended(DeviceMismatch(ERROR, "", ("train.py", 12, "step"), [])), RULE)
    assert finding.message == f"`aten::linear` at train.py:12 failed: {ERROR}."


def test_tensors_of_one_device_explain_nothing(found: Found) -> None:
    mismatch = DeviceMismatch(ERROR, "aten::addmm", ("", 0, ""), TENSORS[1:])
    (finding,) = found(ended(mismatch), RULE)
    assert finding.message == f"`aten::addmm` failed: {ERROR}."


@pytest.mark.parametrize("stopped_by", ["", "RuntimeError"])
def test_another_end_is_not_reported(found: Found, stopped_by: str) -> None:
    assert found(ended(None, stopped_by=stopped_by), RULE) == ()


def test_a_program_that_catches_the_error_goes_on(found: Found) -> None:
    assert found(ended(None, stopped_by=""), RULE) == ()


def test_in_recordings_of_other_programs_it_is_skipped(
    analyzed: Analyzed, host_alone: TraceBuilder
) -> None:
    (unchecked,) = analyzed(host_alone, RULE).unchecked
    assert unchecked.rule == "CFG004"
