"""On a real device: a trace has all device work, and its figures agree with torch's."""

from pathlib import Path

import pytest
import torch

import profkit

pytestmark = pytest.mark.gpu

N_PRODUCTS = 20
SIZE = 2048
STEPS = 6


def find_products(a: torch.Tensor) -> torch.Tensor:
    """Work that runs on the device long after the host has enqueued it."""
    for _ in range(N_PRODUCTS):
        a = torch.mm(a, a).clamp(-1, 1)
    return a


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> profkit.Report:
    """Steps of known work; the block does not synchronize after the last one."""
    a = torch.randn(SIZE, SIZE, device="cuda")
    find_products(a)
    with profkit.trace("products", dir=str(tmp_path_factory.mktemp("traces")), quiet=True) as t:
        for _ in range(STEPS):
            find_products(a)
            t.step()
    assert t.report is not None
    return t.report


def test_no_kernel_of_the_last_step_is_missing(recorded: profkit.Report) -> None:
    n_steps = len(recorded.summary.steps)
    mm = next(op for op in recorded.summary.top_ops if op.name == "aten::mm")
    clamp = next(op for op in recorded.summary.top_ops if op.name == "aten::clamp")
    assert mm.n_calls == clamp.n_calls == N_PRODUCTS * n_steps
    (device,) = recorded.summary.devices
    assert device.n_kernels >= 2 * N_PRODUCTS * n_steps
    assert recorded.summary.n_gpu_events_without_launch == 0


def test_the_device_has_its_name(recorded: profkit.Report) -> None:
    (device,) = recorded.summary.devices
    assert device.device == f"cuda:{torch.cuda.current_device()}"
    assert device.name == torch.cuda.get_device_name()


def test_busy_time_agrees_with_cuda_events(recorded: profkit.Report) -> None:
    a = torch.randn(SIZE, SIZE, device="cuda")
    find_products(a)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    find_products(a)
    end.record()
    end.synchronize()
    (device,) = recorded.summary.devices
    per_step_ms = device.busy_ns / len(recorded.summary.steps) / 1e6
    # Clock rates change between the two.
    assert per_step_ms == pytest.approx(begin.elapsed_time(end), rel=0.25)


def test_the_kernels_that_take_longest_have_a_source_line(recorded: profkit.Report) -> None:
    first = recorded.summary.top_kernels[0]
    assert first.location is not None
    assert first.location.file is not None
    assert Path(first.location.file).name == Path(__file__).name


def test_each_of_two_windows_has_all_device_work(tmp_path: Path) -> None:
    # CUPTI is stopped at the end of a window, and started again for the next.
    a = torch.randn(SIZE, SIZE, device="cuda")
    find_products(a)
    for name in ("first", "second"):
        with profkit.trace(name, dir=str(tmp_path), quiet=True) as t:
            for _ in range(STEPS):
                find_products(a)
                t.step()
        assert t.report is not None
        (device,) = t.report.summary.devices
        n_steps = len(t.report.summary.steps)
        assert n_steps > 0
        assert device.n_kernels >= 2 * N_PRODUCTS * n_steps, name


def test_the_kernels_of_a_replayed_graph_are_there(tmp_path: Path) -> None:
    a = torch.randn(SIZE, SIZE, device="cuda")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        find_products(a)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        find_products(a)
    with profkit.trace("replays", dir=str(tmp_path), quiet=True) as t:
        for _ in range(STEPS):
            graph.replay()
            t.step()
    assert t.report is not None

    (device,) = t.report.summary.devices
    assert device.n_kernels >= 2 * N_PRODUCTS * len(t.report.summary.steps)
    assert t.report.summary.n_gpu_events_without_launch == 0
