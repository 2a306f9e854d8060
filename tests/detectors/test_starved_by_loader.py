"""starved-by-loader finds steps that wait for data, and what the wait costs."""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from profkit.api import analyze
from profkit.model.capture_info import CaptureInfo
from profkit.model.finding import Finding
from profkit.model.live_memory import WorkerRestarts
from profkit.model.location import Frame
from profkit.model.report import Report
from profkit.testing import LiveBuilder, TraceBuilder

RULE = "starved-by-loader"
Found = Callable[..., tuple[Finding, ...]]
Analyzed = Callable[..., Report]


def training(
    waits_ns: list[int], *, workers: bool = False, device_ns: int = 100_000, stacks: bool = False
) -> TraceBuilder:
    """Build a wait for data and a kernel a step; the host goes on while the kernel runs."""
    b = TraceBuilder(stacks=stacks)
    for wait_ns in waits_ns:
        with b.step(), b.frame("train.py", 5, "main"):
            b.load(wait_ns, workers=workers)
            b.launch("aten::mm", kernel="gemm", host_ns=10_000, device_ns=device_ns)
    return b


def test_it_costs_the_time_in_the_loader(found: Found) -> None:
    (finding,) = found(training([400_000, 500_000, 600_000]), RULE)
    # The steps last 410, 510 and 610 µs, and the last kernel 100 more. Without the waits the
    # kernels follow each other after a switch of 1 µs: 10 + 3 x 100 + 2 x 1.
    assert finding.cost.ns == 1_630_000 - 312_000
    assert finding.severity == "warning"
    assert finding.confidence == "high"
    assert finding.n == 3
    assert finding.evidence["loader_ns"] == [400_000, 500_000, 600_000]
    # The kernel of each step runs on into the loader of the next for all of its 100 µs.
    assert finding.evidence["device_idle_ns"] == [400_000, 400_000, 500_000]


def test_the_evidence_shows_the_first_of_any_number_of_steps(found: Found) -> None:
    (finding,) = found(training([400_000] * 50), RULE)
    # 50 x 410 + 100 µs, and without the waits 10 + 50 x 100 + 49 x 1.
    assert finding.cost.ns == 20_600_000 - 5_059_000
    assert finding.evidence["loader_ns"] == [400_000] * 20
    assert finding.evidence["device_idle_ns"] == [400_000] + [300_000] * 19


def test_it_names_the_loop_and_what_to_write(found: Found) -> None:
    (finding,) = found(training([500_000] * 2, stacks=True), RULE)
    assert (finding.locations[0].file, finding.locations[0].line) == ("train.py", 5)
    assert finding.message == (
        "The loop in main (train.py:5) waits 500 µs per step (98%) for its next batch. The GPU is "
        "idle for 450 µs (88%) of it."
    )
    assert "num_workers=4" in finding.fix


def build_inference(*frames: tuple[str, str], begins: bool) -> TraceBuilder:
    """Steps that load two batches each, within some functions."""
    b = TraceBuilder(stacks=True)
    for _ in range(3):
        with b.step(), ExitStack() as stack:
            stack.enter_context(b.frame("serve.py", 5, "main"))
            for file, function in frames:
                stack.enter_context(b.frame(file, 9, function))
            if begins:
                with b.frame("torch/utils/data/dataloader.py", 419, "_get_iterator"):
                    b.advance(10_000)
            for number in range(2):
                with (
                    b.annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"),
                    b.frame("torch/utils/data/_utils/fetch.py", 25, "fetch"),
                    b.frame("data.py", 30 + number, "images"),  # the line of a generator's yield
                ):
                    b.advance(20_000)
                    with b.frame("scipy/ndimage/_interpolation.py", 739, "zoom"):
                        b.advance(380_000)
                b.launch("aten::mm", kernel="gemm", host_ns=10_000, device_ns=100_000)
            b.synchronize()

    return b


def test_it_names_the_function_that_prepares_batches_in_the_loops_own_process(
    found: Found,
) -> None:
    (finding,) = found(build_inference(begins=False), RULE)
    assert "for its next batch, mostly `zoom()` of scipy. The GPU" in finding.message
    assert finding.cost.basis == "replay"


def test_a_loader_that_each_step_begins_anew_cannot_have_its_first_batch_ready(
    found: Found,
) -> None:
    (finding,) = found(build_inference(begins=True), RULE)
    assert finding.cost.basis == "upper-bound"


@pytest.mark.parametrize(
    ("workers", "fix"), [(False, "DataLoader(..., num_workers=4"), (True, "Raise `num_workers`")]
)
def test_a_loader_within_the_wait_that_profkit_measures_decides_the_fix(
    found: Found,
    workers: bool,  # noqa: FBT001
    fix: str,
) -> None:
    b = TraceBuilder(stacks=True)
    for _ in range(3):
        with b.step(), b.frame("train.py", 5, "main"):
            with b.annotation("profkit.data_wait"), b.frame("tqdm/std.py", 9, "__iter__"):
                b.load(400_000, workers=workers)
            b.launch("aten::mm", kernel="gemm", host_ns=10_000, device_ns=100_000)
    (finding,) = found(b, RULE)
    assert finding.n == 3
    assert finding.cost.ns == 3 * 410_000 + 100_000 - 312_000
    assert fix in finding.fix


@pytest.mark.parametrize(
    ("frame", "fix"),
    [
        (("transformers/pipelines/pt_utils.py", "__next__"), "pipeline of Transformers"),
        (("transformers/trainer.py", "get_batch_samples"), "dataloader_num_workers=4"),
        (("lightning/fabric/utilities/data.py", "__next__"), "DataLoader(..., num_workers=4"),
    ],
)
def test_the_fix_is_an_argument_of_the_library_that_makes_the_loader(
    found: Found, frame: tuple[str, str], fix: str
) -> None:
    (finding,) = found(build_inference(frame, begins=False), RULE)
    assert fix in finding.fix


def test_without_a_gpu_nothing_is_pinned(found: Found) -> None:
    # torch warns of pin_memory there, and of more workers than cores.
    b = TraceBuilder(device_names=())
    for _ in range(3):
        with b.step():
            b.load(400_000)
            b.compute("aten::mm", 100_000)
    (finding,) = found(b, RULE)
    assert "num_workers=2" in finding.fix
    assert "pin_memory" not in finding.fix


def test_workers_that_are_too_slow_get_another_advice(found: Found) -> None:
    (finding,) = found(training([500_000] * 3, workers=True), RULE)
    assert "prefetch_factor" in finding.fix
    assert "num_workers=4" not in finding.fix


def test_one_step_alone_is_little_to_go_by(found: Found) -> None:
    (finding,) = found(training([500_000]), RULE)
    assert finding.confidence == "low"


def test_a_loader_that_is_ready_is_not_reported(found: Found) -> None:
    assert found(training([1_000] * 4, workers=True), RULE) == ()


def test_workers_that_start_in_the_first_step_are_not_reported(found: Found) -> None:
    assert found(training([900_000, 500, 500, 500], workers=True), RULE) == ()
    assert found(training([900_000, 500], workers=True), RULE) == ()


def test_a_wait_that_the_device_does_not_notice_is_not_reported(found: Found) -> None:
    b = TraceBuilder()
    for _ in range(4):
        with b.step():
            b.launch("aten::mm", kernel="gemm", host_ns=10_000, device_ns=510_000)
            b.load(500_000)
    assert found(b, RULE) == ()


def test_on_a_cpu_the_wait_is_measured(found: Found) -> None:
    b = TraceBuilder(device_names=())
    for _ in range(3):
        with b.step():
            b.load(300_000)
            b.compute("aten::mm", 700_000)
    (finding,) = found(b, RULE)
    assert finding.cost.per_step_ns == 300_000
    assert finding.cost.basis == "replay"
    assert finding.evidence["device_idle_ns"] is None
    assert "GPU" not in finding.message


@pytest.mark.parametrize(("wait_ns", "n"), [(90_000, 0), (110_000, 1)])
def test_up_to_a_tenth_of_the_step_is_what_a_good_loader_takes(
    found: Found, wait_ns: int, n: int
) -> None:
    b = TraceBuilder(device_names=())
    for _ in range(3):
        with b.step():
            b.load(wait_ns)
            b.compute("aten::mm", 1_000_000 - wait_ns)
    assert len(found(b, RULE)) == n
    assert len(found(b, RULE, min_step_share=0.05)) == 1


def test_the_wait_that_profkit_measures_counts_too(found: Found) -> None:
    b = TraceBuilder(device_names=(), capture=CaptureInfo(version="1", name="train"))
    for _ in range(3):
        with b.step():
            with b.annotation("profkit.data_wait"):
                b.advance(500_000)
            b.compute("aten::mm", 500_000)
    (finding,) = found(b, RULE)
    assert "num_workers" in finding.fix
    assert "main process" not in finding.fix


def test_without_steps_it_is_skipped(analyzed: Analyzed) -> None:
    b = TraceBuilder()
    b.load(500_000)
    (unchecked,) = analyzed(b, RULE).unchecked
    assert unchecked.rule == "DAT001"
    assert "step" in unchecked.remedy


def test_workers_that_make_some_later_steps_wait_for_long_are_found(found: Found) -> None:
    often = [50_000, 50_000, 900_000, 50_000, 50_000, 50_000, 900_000]
    (finding,) = found(training(often, workers=True, device_ns=55_000), RULE)
    # The last kernel ends 55 µs after seven waits and launches. Without the waits seven kernels
    # follow each other, 1 µs apart, from the end of the first launch.
    assert finding.cost.ns == sum(often) + 70_000 + 55_000 - (10_000 + 7 * 55_000 + 6 * 1_000)
    once = [900_000, 50_000, 50_000, 50_000, 900_000, 50_000, 50_000]
    assert not found(training(once, workers=True, device_ns=55_000), RULE)


@pytest.mark.parametrize(
    ("n_rows", "other", "is_by_index"),
    [(64, "", True), (64, "aten::mul", False), (16, "", False)],
)
def test_rows_of_tensors_in_memory_are_to_be_taken_by_one_index(
    found: Found, n_rows: int, other: str, *, is_by_index: bool
) -> None:
    b = TraceBuilder(device_names=())
    for _ in range(3):
        with b.step():
            with b.annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"):
                for _ in range(n_rows):
                    b.compute("aten::select", 3_000)
                    b.advance(3_000)
                    if other:
                        b.compute(other, 3_000)
                b.compute("aten::stack", 30_000)
            b.compute("aten::mm", 400_000)
    (finding,) = found(b, RULE)
    assert ("features[index]" in finding.fix) == is_by_index
    assert ("num_workers=" in finding.fix) != is_by_index


@pytest.mark.parametrize(("restart_ns", "n_found"), [(500_000, 0), (399_000, 1)])
def test_new_workers_in_each_epoch_are_another_finding(
    tmp_path: Path, restart_ns: int, n_found: int
) -> None:
    n_steps = 399
    restarts = WorkerRestarts(Frame("/work/train.py", 5, "main"), 19, restart_ns * n_steps)
    live = LiveBuilder(n_steps=n_steps + 1, n_samples=100, worker_restarts=restarts)
    live.write(tmp_path / "run.memory.json.gz")
    b = training([400_000] * 3, workers=True)
    b.capture = CaptureInfo(version="0", name="train", steps="optimizer")

    report = analyze(b.write(tmp_path / "run.pt.trace.json.gz"), select=[RULE], strict=True)
    assert len(report.findings) == n_found
