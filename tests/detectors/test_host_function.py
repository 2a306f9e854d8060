"""host-function finds Python functions of the program during which the GPU is idle."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import pytest

from profkit.api import analyze
from profkit.model.finding import Finding
from profkit.model.report import Report
from profkit.present.diagnosis import headline
from profkit.testing import TraceBuilder

RULE = "host-function"
Found = Callable[..., tuple[Finding, ...]]
Analyzed = Callable[..., Report]
Pause = Callable[[TraceBuilder], None]


@contextmanager
def calls(b: TraceBuilder, *frames: tuple[str, int, str]) -> Iterator[None]:
    with ExitStack() as stack:
        for frame in frames:
            stack.enter_context(b.frame(*frame))
        yield


def program(pause: Pause, *, device_ns: int = 500_000) -> TraceBuilder:
    """Three steps in which a kernel is launched, waited for, and then something happens."""
    b = TraceBuilder(stacks=True)
    for _ in range(3):
        with b.step(), b.frame("train.py", 10, "train"):
            b.launch("aten::mm", kernel="gemm", host_ns=10_000, device_ns=device_ns)
            b.synchronize()
            pause(b)
    return b


def augment(b: TraceBuilder) -> None:
    with calls(b, ("data.py", 30, "augment")):
        with calls(b, ("numpy/lib/_shape.py", 5, "flip")):
            b.advance(1_500_000)
        with calls(b, ("numpy/lib/_index.py", 6, "roll")):
            b.advance(1_500_000)


def preprocess(b: TraceBuilder) -> None:
    augment_calls = (("data.py", 30, "augment"), ("transformers/a.py", 3, "__call__"))
    with calls(b, *augment_calls), calls(b, ("transformers/b.py", 4, "preprocess")):
        b.advance(200_000)
        with calls(b, ("numpy/lib/_shape.py", 5, "flip")):
            b.advance(1_400_000)
        with calls(b, ("numpy/lib/_index.py", 6, "roll")):
            b.advance(1_400_000)


def sleep(b: TraceBuilder) -> None:
    with b.builtin("function sleep"):
        b.advance(3_000_000)


@pytest.mark.parametrize(
    ("pause", "text", "fix"),
    [
        (augment, "in augment (data.py:30).", "Do the work of `augment` in a data set, with `Data"),
        (
            preprocess,
            "in augment (data.py:30), mostly `preprocess()` of transformers.",
            "Do the work of `preprocess` in a data set, with `DataLoader(..., num_workers=4)`",
        ),
        (sleep, "in train (train.py:10), mostly `sleep()`.", "Leave out the sleep."),
    ],
)
def test_it_names_the_function_and_costs_its_time(
    found: Found, pause: Pause, text: str, fix: str
) -> None:
    (finding,) = found(program(pause), RULE)
    assert (finding.cost.ns, finding.cost.per_step_ns) == (9_000_000, 3_000_000)
    assert finding.cost.basis == "replay"
    assert finding.n == 3
    assert finding.severity == "warning"
    assert finding.message == (
        f"The GPU is idle for 3.00 ms per step (85%) while the host runs Python {text}"
    )
    assert fix in finding.fix


def test_two_functions_have_a_finding_each(found: Found) -> None:
    def both(b: TraceBuilder) -> None:
        with b.frame("data.py", 30, "outer"):
            b.advance(2_000_000)
            with b.frame("data.py", 60, "inner"):
                b.advance(5_000_000)

    findings = found(program(both), RULE)
    assert [(finding.locations[0].function, finding.cost.per_step_ns) for finding in findings] == [
        ("inner", 5_000_000),
        ("outer", 2_000_000),
    ]


def test_the_same_while_the_gpu_works_costs_nothing(found: Found) -> None:
    b = TraceBuilder(stacks=True)
    for _ in range(3):
        with b.step(), b.frame("train.py", 10, "train"):
            b.launch("aten::mm", kernel="gemm", host_ns=10_000, device_ns=4_000_000)
            augment(b)
            b.synchronize()
    assert found(b, RULE) == ()


def test_python_between_the_operators_of_a_model_is_not_a_function(found: Found) -> None:
    def layers(b: TraceBuilder) -> None:
        with b.frame("model.py", 5, "forward"):
            for _ in range(20):
                b.advance(300_000)
                b.launch("aten::add", kernel="add", host_ns=10_000, device_ns=5_000)

    assert found(program(layers), RULE) == ()
    assert found(program(layers), RULE, min_pause_ns=100_000) != ()


def within(*spans: Callable[[TraceBuilder], AbstractContextManager[object]]) -> Pause:
    def pause(b: TraceBuilder) -> None:
        with ExitStack() as stack:
            for span in spans:
                stack.enter_context(span(b))
            b.advance(3_000_000)

    return pause


@pytest.mark.parametrize(
    "pause",
    [
        within(lambda b: b.op("aten::sort")),
        within(lambda b: b.annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter")),
        within(lambda b: b.annotation("entire_frame_compile")),
        within(lambda b: b.frame("torch/serialization.py", 925, "save")),
        within(lambda b: b.frame("matplotlib/pyplot.py", 12, "plot")),
        lambda b: b.overhead("Buffer Flush", 3_000_000),
        lambda b: b.call("Malloc", 3_000_000),
    ],
    ids=["operator", "data", "compilation", "checkpoint", "plot", "profiler", "allocation"],
)
def test_time_with_another_cause_is_none_of_a_function(found: Found, pause: Pause) -> None:
    assert found(program(pause), RULE) == ()


def test_what_another_thread_launches_is_work_of_the_program(found: Found) -> None:
    def backward(b: TraceBuilder) -> None:
        with b.builtin("method run_backward of torch._C._EngineBase object"), b.thread(5):
            for _ in range(10):
                b.launch("aten::mm", kernel="gemm", host_ns=300_000, device_ns=5_000)

    assert found(program(backward), RULE) == ()


def test_without_python_calls_it_is_skipped(analyzed: Analyzed, device_alone: TraceBuilder) -> None:
    (unchecked,) = analyzed(device_alone, RULE).unchecked
    assert unchecked.rule == "CPU002"


def test_a_data_loader_is_suggested_where_there_is_one(found: Found) -> None:
    def load_and_augment(b: TraceBuilder) -> None:
        b.load(100_000)
        augment(b)

    (finding,) = found(program(load_and_augment), RULE)
    assert finding.fix.startswith("Do the work of `augment` in the data set, with `DataLoader(...,")


def test_what_prepares_no_data_is_called_less_often(found: Found) -> None:
    def simulate(b: TraceBuilder) -> None:
        with b.frame("world.py", 30, "simulate"):
            b.advance(5_000_000)

    (finding,) = found(program(simulate), RULE)
    assert finding.fix.startswith("Call `simulate` less often, or once before the loop")
    assert finding.fix.endswith("or compute it with tensors on the GPU.")


def test_a_pipeline_of_transformers_prepares_inputs_itself(found: Found) -> None:
    def prepare(b: TraceBuilder) -> None:
        with b.frame("transformers/pipelines/video.py", 129, "preprocess"):
            b.advance(5_000_000)

    (finding,) = found(program(prepare), RULE)
    assert "mostly `preprocess()` of transformers" in finding.message
    assert "`num_workers=1` or more to the pipeline" in finding.fix


def test_a_synchronization_that_returns_late_waits_for_another_thread(
    found: Found, tmp_path: Path
) -> None:
    def synchronize(b: TraceBuilder) -> None:
        with b.builtin("function _cuda_synchronize"):
            b.synchronize()
            b.advance(5_000_000)

    (finding,) = found(program(synchronize), RULE)
    assert finding.message.endswith("`_cuda_synchronize()`, after the driver's call has returned.")
    assert "global lock" in finding.fix
    text = headline(analyze(program(synchronize).write(tmp_path / "t.json")))
    assert "because the host waits for another thread of Python at train (train.py:10)." in text
