"""Steps of recordings with and without ``ProfilerStep``, and those that the window cut off."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from profkit.api import analyze
from profkit.index.host.steps import Steps
from profkit.model.capture_info import CaptureInfo
from profkit.testing import TraceBuilder
from tests.traces import read_context

MS = 1_000_000
Finder = Callable[[TraceBuilder], Steps]


@pytest.fixture
def steps_of(tmp_path: Path) -> Finder:
    return lambda b: read_context(b, tmp_path).steps


@contextmanager
def marked(b: TraceBuilder, name: str) -> Iterator[None]:
    with b.annotation(name):
        yield


def forward(b: TraceBuilder, n: int = 10, ns: int = MS) -> None:
    for _ in range(n):
        b.compute("aten::mm", ns)


def optimize(b: TraceBuilder, name: str = "Adam") -> None:
    with marked(b, f"Optimizer.step#{name}.step"):
        b.compute("aten::add_", MS)


def zero_grad(b: TraceBuilder) -> None:
    with marked(b, "Optimizer.zero_grad#Adam.zero_grad"):
        b.advance(1_000)


def lengths(steps: Steps) -> list[int]:
    return [round(ns / MS) for ns in (steps.ends_ns - steps.starts_ns).tolist()]


def test_a_loader_and_an_optimizer_delimit_every_step(steps_of: Finder) -> None:
    b = TraceBuilder()
    forward(b, 7)  # set-up before the loop
    for wait in (50, 2, 2, 2):
        b.load(wait * MS)
        forward(b)
        optimize(b)
    steps = steps_of(b)
    assert steps.origin == "loader"
    assert lengths(steps) == [61, 13, 13, 13]
    assert steps.names == ("step 1", "step 2", "step 3", "step 4")
    assert steps.n_incomplete == 0
    assert not len(steps.annotations)


def test_accumulated_gradients_are_one_step(steps_of: Finder) -> None:
    b = TraceBuilder()
    for _ in range(4):
        for _ in range(3):
            b.load(MS)
            forward(b)
        optimize(b)
    assert lengths(steps_of(b)) == [34] * 4


def test_both_optimizers_of_a_gan_are_of_one_step(steps_of: Finder) -> None:
    b = TraceBuilder()
    for _ in range(4):
        b.load(MS)
        forward(b, 10)
        optimize(b)
        forward(b, 20)
        optimize(b)
    assert lengths(steps_of(b)) == [33] * 4


def test_a_validation_between_epochs_is_not_a_step(steps_of: Finder) -> None:
    b = TraceBuilder()
    for _ in range(2):
        for _ in range(4):
            b.load(MS)
            forward(b)
            optimize(b)
        for _ in range(3):
            b.load(MS)
            forward(b, 5)
    steps = steps_of(b)
    assert lengths(steps) == [12] * 8
    assert steps.n_incomplete == 1  # the last batches have no optimizer yet


def test_the_ends_of_the_optimizer_delimit_steps_without_a_loader(steps_of: Finder) -> None:
    b = TraceBuilder()
    forward(b, 30)
    for _ in range(5):
        forward(b)
        zero_grad(b)
        forward(b)
        optimize(b)
    steps = steps_of(b)
    assert steps.origin == "optimizer"
    assert lengths(steps) == [21] * 4  # where the first began cannot be known


def test_a_first_step_that_begins_with_zero_grad_is_counted(steps_of: Finder) -> None:
    b = TraceBuilder()
    forward(b, 30)
    for _ in range(4):
        zero_grad(b)
        forward(b)
        optimize(b)
    assert lengths(steps_of(b)) == [11] * 4


def test_two_optimizers_in_turns_make_one_step_without_a_loader(steps_of: Finder) -> None:
    for names in (("Adam", "SGD"), ("Adam", "Adam")):
        b = TraceBuilder()
        for _ in range(6):
            forward(b, 10)
            optimize(b, names[0])
            forward(b, 20)
            optimize(b, names[1])
        assert lengths(steps_of(b)) == [32] * 5


def test_several_optimizers_in_a_row_end_one_step(steps_of: Finder) -> None:
    b = TraceBuilder()
    for _ in range(4):
        zero_grad(b)
        forward(b)
        optimize(b)
        optimize(b)
    assert lengths(steps_of(b)) == [12] * 4


def test_optimizer_steps_without_a_regular_order_are_not_a_loop(steps_of: Finder) -> None:
    b = TraceBuilder()
    for n in (3, 50, 9, 120, 1):
        forward(b, n)
        optimize(b)
    assert not len(steps_of(b))


def test_inference_has_a_step_from_batch_to_batch(steps_of: Finder) -> None:
    b = TraceBuilder()
    for _ in range(4):
        b.load(MS)
        forward(b)
    b.load(1_000)  # the end of the loader
    steps = steps_of(b)
    assert steps.origin == "loader"
    assert lengths(steps) == [11] * 4
    assert steps.n_incomplete == 0


def test_a_batch_that_the_window_cut_off_is_counted_as_incomplete(steps_of: Finder) -> None:
    b = TraceBuilder()
    for _ in range(4):
        b.load(MS)
        forward(b)
    b.load(MS)
    forward(b, 3)
    steps = steps_of(b)
    assert lengths(steps) == [11] * 4
    assert steps.n_incomplete == 1


def test_regions_that_repeat_are_steps(steps_of: Finder) -> None:
    b = TraceBuilder()
    for i in range(4):
        with marked(b, f"batch {i}"):
            with marked(b, "inner"):
                forward(b)
            with marked(b, "inner"):
                forward(b)
        with marked(b, "postprocess"):
            forward(b, 1)
        b.advance(MS)
    steps = steps_of(b)
    assert (steps.origin, steps.mark) == ("region", "batch 0")
    assert lengths(steps) == [22, 22, 22, 21]


def test_a_module_that_is_called_again_and_again_is_a_step(steps_of: Finder) -> None:
    b = TraceBuilder(stacks=True)
    for _ in range(4):
        with b.module("Net"):
            for _ in range(3):
                with b.module("Linear"):
                    forward(b, 2)
    steps = steps_of(b)
    assert (steps.origin, steps.mark) == ("module", "Net_0")
    assert len(steps) == 4


def test_layers_of_one_model_are_not_steps(steps_of: Finder) -> None:
    b = TraceBuilder(stacks=True)
    for _ in range(2):
        for _ in range(6):
            with b.module("Layer"):
                forward(b, 4)
        forward(b, 8)
    assert not len(steps_of(b))


def test_the_first_quarter_of_module_calls_may_differ(steps_of: Finder) -> None:
    # A service whose clients connect one after the other: then every call is like the others.
    b = TraceBuilder(stacks=True)
    for n_new in (9, 5, *[0] * 10):
        with b.module("Net"):
            forward(b, 4)
        forward(b, n_new)
    assert len(steps_of(b)) == 12


def test_two_repetitions_are_not_a_loop(steps_of: Finder) -> None:
    b = TraceBuilder()
    for _ in range(2):
        b.load(MS)
        with marked(b, "batch"):
            forward(b)
        optimize(b)
    assert not len(steps_of(b))


def test_loops_of_several_threads_at_the_same_time_have_no_steps(steps_of: Finder) -> None:
    b = TraceBuilder()
    for _ in range(6):
        with marked(b, "request"):
            forward(b)
        with b.thread(77), marked(b, "request"):
            forward(b)
    assert not len(steps_of(b))


def test_profiler_steps_come_before_every_mark(steps_of: Finder) -> None:
    b = TraceBuilder()
    with b.step():
        for _ in range(4):
            b.load(MS)
            forward(b)
            optimize(b)
    steps = steps_of(b)
    assert steps.names == ("ProfilerStep#0",)
    assert steps.origin == "profiler"
    assert len(steps.annotations) == 1


def test_a_remnant_after_the_loop_is_not_a_step(steps_of: Finder) -> None:
    b = TraceBuilder()
    for _ in range(3):
        with b.step():
            forward(b, 30)
    with b.step():
        b.compute("aten::add", 10_000)
    steps = steps_of(b)
    assert steps.names == ("ProfilerStep#0", "ProfilerStep#1", "ProfilerStep#2")
    assert steps.n_incomplete == 1


def test_a_step_in_which_nothing_ran_is_not_a_step(steps_of: Finder) -> None:
    b = TraceBuilder()
    forward(b)
    with b.step():
        b.advance(10_000)
    steps = steps_of(b)
    assert not len(steps)
    assert steps.n_incomplete == 1


def test_a_last_step_without_the_optimizer_that_all_others_call_was_cut_off(
    steps_of: Finder,
) -> None:
    b = TraceBuilder()
    for number in range(4):
        with b.step():
            forward(b)
            if number < 3:
                optimize(b)
    steps = steps_of(b)
    assert len(steps) == 3
    assert steps.n_incomplete == 1


def test_steps_that_differ_are_all_complete(steps_of: Finder) -> None:
    b = TraceBuilder()
    for n in (12, 30, 12, 25, 8):
        with b.step():
            forward(b, n)
    steps = steps_of(b)
    assert len(steps) == 5
    assert steps.n_incomplete == 0


def training(*left_out: str, n: int = 3) -> TraceBuilder:
    info = CaptureInfo(version="1", name="t", steps="user", left_out_steps=list(left_out))
    b = TraceBuilder(capture=info)
    for number in range(n):
        with b.step():
            forward(b, 10, 10 * MS if number == 1 else MS)
    return b


def test_disturbed_steps_are_left_out_of_all_figures(steps_of: Finder, tmp_path: Path) -> None:
    steps = steps_of(training("ProfilerStep#1"))
    assert steps.names == ("ProfilerStep#0", "ProfilerStep#2")
    assert lengths(steps) == [10, 10]
    assert (steps.n_disturbed, steps.n_incomplete) == (1, 0)

    report = analyze(training("ProfilerStep#1").write(tmp_path / "left_out.json"))
    assert report.summary.n_disturbed_steps == 1
    breakdown = report.summary.breakdown
    assert breakdown is not None
    assert breakdown.per_step_ns == pytest.approx(10 * MS, rel=0.01)


def test_steps_that_are_all_disturbed_are_kept(steps_of: Finder) -> None:
    names = ("ProfilerStep#0", "ProfilerStep#1", "ProfilerStep#2")
    assert steps_of(training(*names)).names == names
    assert steps_of(training("of another recording")).n_disturbed == 0
