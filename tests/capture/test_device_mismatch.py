"""What is kept of the error that tensors are on different devices: where, and which ones."""

import gc
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import profkit
from profkit.api import analyze
from profkit.capture.process import environment
from profkit.capture.recording import device_mismatch


@pytest.fixture(autouse=True)
def nothing_noted() -> Iterator[None]:
    yield
    environment.state.mismatch = None


def failing(tensor: torch.Tensor) -> None:
    """Fail as an operator does that gets a tensor of another device."""
    raise RuntimeError(f"Expected all tensors to be on the same device, {id(tensor)} is not!")


def check(folder: Path, operator: str) -> None:
    """Record a layer on another device than its input."""
    network = torch.nn.Linear(4, 4).to("meta")
    x = torch.randn(2, 4)
    recording = profkit.trace("mismatch", dir=str(folder), quiet=True)
    with pytest.raises(RuntimeError, match="device"), recording:
        network(x)
    assert recording.path is not None
    report = analyze(recording.path, select=["device-mismatch"], strict=True)
    (finding,) = report.findings
    assert Path(finding.locations[0].file or "").name == Path(__file__).name
    assert finding.locations[0].op == operator
    assert finding.message.endswith(
        "failed: `x` and `input of Linear` are on cpu, `weight of Linear` and `bias of Linear` are "
        "on meta."
    )


def test_a_failing_block_writes_its_trace_with_the_devices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def linear(x: torch.Tensor, *_: object) -> None:
        failing(torch.relu(x))

    linear.__code__ = linear.__code__.replace(co_filename=torch.nn.functional.__file__)
    monkeypatch.setattr(torch.nn.functional, "linear", linear)
    monkeypatch.setattr(failing, "__code__", failing.__code__.replace(co_filename=torch.__file__))
    check(tmp_path, "aten::relu")


@pytest.mark.slow  # torch imports its decompositions for the device "meta"
def test_a_layer_on_another_device_fails_so(tmp_path: Path) -> None:
    check(tmp_path, "aten::linear")


def test_the_operator_comes_from_the_error() -> None:
    device_mismatch.note(
        RuntimeError(
            "Expected all tensors to be on the same device, but found at least two devices, cuda:0 "
            "and cpu! (when checking argument for argument mat1 in method wrapper_CUDA_addmm)"
        )
    )
    assert environment.state.mismatch is not None
    assert environment.state.mismatch.operator == "aten::addmm"
    assert environment.state.mismatch.tensors == []


def test_other_errors_are_not_kept() -> None:
    device_mismatch.note(RuntimeError("out of memory"))
    assert environment.state.mismatch is None


def test_only_the_recording_that_the_error_ended_has_it() -> None:
    device_mismatch.note(RuntimeError("Expected all tensors to be on the same device"))
    assert environment.describe("one", "entry").mismatch is not None
    assert environment.describe("two", "entry").mismatch is None


def test_neither_the_error_nor_its_tensors_are_kept_alive() -> None:
    x = torch.randn(2, 4)
    alive = weakref.ref(x)
    try:
        failing(x)
    except RuntimeError as error:
        device_mismatch.note(error)
    del x
    gc.collect()
    assert environment.state.mismatch is not None
    assert environment.state.mismatch.tensors
    assert alive() is None


def test_no_code_of_the_program_runs() -> None:
    class Own(torch.Tensor):
        @classmethod
        def __torch_function__(cls, *_: object, **__: object) -> object:
            raise AssertionError

    with torch._C.DisableTorchFunction():
        x = torch.randn(2).as_subclass(Own)
    try:
        failing(x)
    except RuntimeError as error:
        device_mismatch.note(error)
    assert environment.state.mismatch is not None
    assert environment.state.mismatch.tensors == []
