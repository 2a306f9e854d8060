"""What the program has set for its thread neither changes a recording nor sees it."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import profkit
from profkit.capture.memory.holders import autograd_graphs
from profkit.capture.process.new_thread import in_new_thread
from profkit.capture.recording import current, overhead
from profkit.errors import CaptureError

Opened = Callable[[str | None], dict[str, Any]]


@pytest.fixture(autouse=True)
def _nothing_measured(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(overhead, "_costs", {})
    autograd_graphs._nodes_keep_python_objects.cache_clear()
    yield
    autograd_graphs._nodes_keep_python_objects.cache_clear()


class FunctionMode(TorchFunctionMode):
    def __init__(self, seen: Counter[str]) -> None:
        super().__init__()
        self.seen = seen

    def __torch_function__(self, func, _types, args=(), kwargs=None):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN204
        self.seen[str(func)] += 1
        return func(*args, **(kwargs or {}))


class DispatchMode(TorchDispatchMode):
    def __init__(self, seen: Counter[str]) -> None:
        super().__init__()
        self.seen = seen

    __torch_dispatch__ = FunctionMode.__torch_function__


def hooks(seen: Counter[str]) -> AbstractContextManager[object]:
    def pack(tensor: torch.Tensor) -> torch.Tensor:
        seen["pack"] += 1
        return tensor

    return saved_tensors_hooks(pack, lambda tensor: tensor)


def run_a_step(*, recorded: bool) -> None:
    weight = torch.ones(4, 4, requires_grad=True)
    if not recorded:
        weight.exp().sum().backward()
        return
    with profkit.trace("step", memory=False), profkit.trace("within"):
        weight.exp().sum().backward()


@pytest.mark.parametrize("made", [FunctionMode, DispatchMode, hooks])
def test_modes_and_hooks_see_only_the_programs_operators(
    made: Callable[[Counter[str]], AbstractContextManager[object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    is_measured, small_network = [], overhead._make_small_network

    def noted() -> Callable[[], None]:
        is_measured.append(True)
        return small_network()

    monkeypatch.setattr(overhead, "_make_small_network", noted)
    bare: Counter[str] = Counter()
    with made(bare):
        run_a_step(recorded=False)
    recorded: Counter[str] = Counter()
    with made(recorded):
        run_a_step(recorded=True)
    assert is_measured, "the overhead was not estimated"
    assert recorded == bare


def test_a_block_in_inference_mode_is_written_with_its_overhead(opened: Opened) -> None:
    with torch.inference_mode():
        with profkit.trace("evaluation") as block:
            torch.ones(4).exp()
        assert autograd_graphs.safe_depth() >= 0
        is_known = autograd_graphs._nodes_keep_python_objects()
    assert opened(block.path)["profkit"]["cost"]["overhead_ratio"] is not None
    autograd_graphs._nodes_keep_python_objects.cache_clear()
    assert autograd_graphs._nodes_keep_python_objects() is is_known


@pytest.mark.parametrize("error", [CaptureError("busy", "wait"), RuntimeError("no thread")])
def test_a_recording_whose_overhead_cannot_be_estimated_is_written_without(
    error: Exception, monkeypatch: pytest.MonkeyPatch, opened: Opened
) -> None:
    def fails(_options: object) -> tuple[float, float]:
        raise error

    monkeypatch.setattr(overhead, "_measure_costs", fails)
    with profkit.trace("step") as block:
        torch.ones(4).exp()
    assert opened(block.path)["profkit"]["cost"]["overhead_ratio"] is None


def test_an_error_of_the_new_thread_is_raised_in_the_caller() -> None:
    with pytest.raises(ZeroDivisionError):
        in_new_thread(lambda: 1 // 0)


@pytest.mark.parametrize("way", ["block", "steps"])
def test_calls_are_not_traced_where_torchs_tracer_would_not_find_the_module(
    way: str, monkeypatch: pytest.MonkeyPatch, opened: Opened, capsys: pytest.CaptureFixture[str]
) -> None:
    original = torch.nn.Module.__call__

    def call(module: torch.nn.Module, *args: object) -> object:
        return original(module, *args)

    monkeypatch.setattr(torch.nn.Module, "__call__", call)
    model = torch.nn.ReLU()
    schedule: dict[str, Any] = {} if way == "block" else {"wait": 0, "warmup": 1, "active": 1}
    with profkit.trace("calls", **schedule) as block:
        for _ in range(3):
            model(torch.ones(4))
            block.step()
    categories = {event.get("cat") for event in opened(block.path)["traceEvents"]}
    assert "cpu_op" in categories
    assert "python_function" not in categories
    assert "nn.Module.__call__" in capsys.readouterr().err


@pytest.mark.filterwarnings("error")
def test_the_operator_within_which_a_recording_stops_does_not_warn(opened: Opened) -> None:
    with profkit.trace("stopped", stacks=False) as block:

        class Stopping(TorchDispatchMode):
            def __torch_dispatch__(self, func, _types, args=(), kwargs=None):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN204
                assert current.state.session is not None
                current.state.session.freeze()
                return func(*args, **(kwargs or {}))

        with Stopping():
            torch.ones(4)
    names = {event["name"] for event in opened(block.path)["traceEvents"]}
    assert "aten::ones" in names
