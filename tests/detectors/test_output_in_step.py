"""output-in-step finds printing, plotting and logging that the steps wait for."""

from collections.abc import Callable

import pytest

from profkit.model.finding import Finding
from profkit.model.report import Report
from profkit.testing import TraceBuilder

RULE = "output-in-step"
Found = Callable[..., tuple[Finding, ...]]
Analyzed = Callable[..., Report]

SAVEFIG = ("matplotlib/pyplot.py", 1100, "savefig")
WRITE = ("torch/utils/tensorboard/writer.py", 349, "add_scalar")


def program(
    frame: tuple[str, int, str] | None, *, output_ns: int = 3_000_000, device_ns: int = 0
) -> TraceBuilder:
    """Three steps of 1 ms of operators and some output, which runs an operator itself."""
    b = TraceBuilder(stacks=True, device_names=("NVIDIA H200",) if device_ns else ())
    for _ in range(3):
        with b.step(), b.frame("train.py", 10, "train"):
            if device_ns:
                b.launch("aten::mm", kernel="gemm", host_ns=1_000_000, device_ns=device_ns)
            else:
                b.compute("aten::mm", 1_000_000)
            if frame is not None:
                with b.frame("train.py", 40, "show"), b.frame(*frame):
                    b.compute("aten::detach", 1_000)
                    with b.frame("matplotlib/figure.py", 7, "draw"):
                        b.advance(output_ns - 1_000)
    return b


@pytest.mark.parametrize(
    ("frame", "what", "fix"),
    [
        (SAVEFIG, "`savefig()` of matplotlib", "Plot after the loop"),
        (WRITE, "`add_scalar()` of torch", "every 100 steps"),
        (("logging/__init__.py", 1529, "info"), "`info()` of logging", "every 100 steps"),
        (("/usr/lib/python3.11/logging/__init__.py", 9, "info"), "`info()` of logging", "100"),
        (("C:\\env\\Lib\\site-packages\\wandb\\run.py", 9, "log"), "`log()` of wandb", "100"),
        (("tqdm/std.py", 1325, "refresh"), "`refresh()` of tqdm", "every 100 steps"),
    ],
)
def test_it_costs_the_calls_and_names_the_function(
    found: Found, frame: tuple[str, int, str], what: str, fix: str
) -> None:
    (finding,) = found(program(frame), RULE)
    assert (finding.cost.ns, finding.cost.per_step_ns) == (9_000_000, 3_000_000)
    assert finding.cost.basis == "replay"
    assert finding.n == 3
    assert finding.message == (
        f"{what} in show (train.py:40) runs once per step: 3.00 ms per step (75%)."
    )
    assert fix in finding.fix
    assert finding.severity == "warning"


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("function print", "`print()`"),
        ("method write of _io.TextIOWrapper object at 0x7f", "`write()`"),
    ],
)
def test_builtins_are_named(found: Found, name: str, what: str) -> None:
    b = TraceBuilder(stacks=True, device_names=())
    with b.step(), b.frame("train.py", 10, "train"):
        b.compute("aten::mm", 1_000_000)
        with b.builtin(name):
            b.advance(1_000_000)
    (finding,) = found(b, RULE)
    assert finding.cost.ns == 1_000_000
    assert finding.message.startswith(f"{what} in train (train.py:10) runs once per step")


def test_output_after_the_steps_is_not_reported(found: Found) -> None:
    b = program(None)
    with b.frame("train.py", 1, "main"), b.frame(*SAVEFIG):
        b.advance(90_000_000)
    assert found(b, RULE) == ()


@pytest.mark.parametrize(("output_ns", "n"), [(50_000, 0), (60_000, 1)])
def test_a_twentieth_of_the_step_is_the_limit(found: Found, output_ns: int, n: int) -> None:
    assert len(found(program(SAVEFIG, output_ns=output_ns), RULE)) == n


def test_output_that_the_gpu_does_not_wait_for_costs_nothing(found: Found) -> None:
    assert found(program(SAVEFIG, device_ns=20_000_000), RULE) == ()
    assert found(program(SAVEFIG, device_ns=100_000), RULE) != ()


@pytest.mark.parametrize(
    "frame",
    [
        ("project/logging/metrics.py", 5, "update"),
        ("rich_models.py", 5, "forward"),
        ("logging/__init__.py", 2098, "getLogger"),
        ("matplotlib/__init__.py", 1, "<module>"),
        ("tqdm/std.py", 1160, "__iter__"),
        ("torch/nn/modules/linear.py", 114, "forward"),
    ],
)
def test_other_functions_are_silent(found: Found, frame: tuple[str, int, str]) -> None:
    b = TraceBuilder(stacks=True, device_names=())
    with b.step(), b.frame("train.py", 10, "train"):
        b.compute("aten::mm", 1_000_000)
        with b.frame(*frame):
            b.advance(1_000_000)
    assert found(b, RULE) == ()


def test_a_thread_of_a_logger_is_none_of_the_program(found: Found) -> None:
    b = program(None)
    with b.thread(7), b.frame("wandb/sdk/run.py", 3, "loop"):
        b.events[-1].ts_ns = 0
        b.advance(9_000_000)
    assert found(b, RULE) == ()


def test_what_a_loader_prints_is_a_wait_for_data(found: Found) -> None:
    b = TraceBuilder(stacks=True, device_names=())
    for _ in range(3):
        with b.step(), b.frame("train.py", 10, "train"):
            b.compute("aten::mm", 1_000_000)
            with (
                b.annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"),
                b.builtin("function print"),
            ):
                b.advance(1_000_000)
    assert found(b, RULE) == ()


def test_without_python_calls_it_is_skipped(analyzed: Analyzed, host_alone: TraceBuilder) -> None:
    (unchecked,) = analyzed(host_alone, RULE).unchecked
    assert unchecked.rule == "CPU001"
    assert unchecked.reason == "No calls of Python functions were recorded."
