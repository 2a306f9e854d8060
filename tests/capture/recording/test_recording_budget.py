"""What recording may cost, by a clock, a heap and an amount spent that the test sets."""

import sys
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import profkit
from profkit.capture.process.malloc_stats import Heap
from profkit.capture.recording import current, profiler
from profkit.capture.recording.options import Options
from profkit.capture.recording.recording_budget import (
    CALL_S,
    CALLS_PER_S,
    EVENT_BYTES,
    EVENT_S,
    EVENTS_PER_S,
    FREE_S,
    MAX_SHARE,
    STOP_EVENT_S,
    Events,
    RecordingBudget,
    StepBudget,
)
from profkit.capture.recording.schedule import DEFAULT_SCHEDULE
from profkit.capture.run.plan import Plan
from profkit.capture.run.step_detection import StepFinder

needs_heap = pytest.mark.skipif(Heap().allocated() is None, reason="the C library has no mallinfo2")


@dataclass
class Process:
    """CPU time of a process and of its thread, and what recording has cost it."""

    now_s: float = 2.0
    thread_s: float = 1.0
    spent_s: float = 0.0
    slowness: float = 1.0
    budget: RecordingBudget = field(init=False)

    def __post_init__(self) -> None:
        self.budget = RecordingBudget(lambda: self.now_s, lambda: self.spent_s, self.slowness)

    def steps(self) -> StepBudget:
        limit = StepBudget(self.budget, lambda: self.thread_s)
        limit.recording_begins()
        return limit


@pytest.mark.parametrize(
    ("now_s", "spent_s", "left_s"),
    [(2.0, 0.0, FREE_S), (2.0, 0.4, FREE_S - 0.4), (100.0, 3.0, 100 * MAX_SHARE - 3.0)],
)
def test_a_short_run_may_cost_what_is_free_and_a_long_one_a_share(
    now_s: float, spent_s: float, left_s: float
) -> None:
    assert Process(now_s, spent_s=spent_s).budget.left_s() == pytest.approx(left_s)


@needs_heap
@pytest.mark.parametrize("stacks", [False, True])
def test_the_heap_shows_how_many_events_there_are_at_most(*, stacks: bool) -> None:
    recording = profiler.ProfilerRecording(Options(), stacks=stacks)
    recording.start()
    events = Events()
    values = torch.ones(4)
    for _ in range(3000):
        values = values + 1
    at_most = events.at_most()
    recording.stop()
    assert recording.count_events() <= at_most <= 3 * recording.count_events()


@pytest.fixture
def heap(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Return the heap's bytes, as the test sets them."""
    sizes = {"bytes": 10_000_000}
    monkeypatch.setattr(Heap, "in_use", lambda _: (sizes["bytes"], 0, 0))
    return sizes


def test_a_large_block_is_no_more_than_a_thousand_events(monkeypatch: pytest.MonkeyPatch) -> None:
    in_use = iter([(1000, 0, 0), (1000, 4 << 30, 1)])
    monkeypatch.setattr(Heap, "in_use", lambda _: next(in_use))
    assert Events().at_most() == 2048


def test_another_step_is_affordable_if_all_of_them_are(heap: dict[str, int]) -> None:
    process = Process()
    steps = process.steps()
    process.thread_s += 10.0
    n_events = 0.99 * FREE_S / EVENT_S / 2
    heap["bytes"] += round(n_events * EVENT_BYTES)
    assert steps.affords_step(1), "two such steps cost what is free"
    assert steps.affords_step(2)
    heap["bytes"] += round(0.1 * n_events * EVENT_BYTES)
    assert not steps.affords_step(1)
    process.spent_s = FREE_S
    assert not steps.affords_step(2)


def test_what_the_program_allocates_is_not_an_event_that_its_time_was_too_short_for(
    heap: dict[str, int],
) -> None:
    process = Process()
    steps = process.steps()
    heap["bytes"] += 8 << 30
    process.thread_s += FREE_S / EVENT_S / EVENTS_PER_S / 2
    assert steps.affords_step(1)
    process.thread_s += 0.2
    assert not steps.affords_step(1)


def recorded(
    *,
    stop_s: float,
    thread_s: float,
    operators_s: float,
    n_exported: int = 0,
    n_events: float | None = None,
) -> Any:  # noqa: ANN401  (a stand-in)
    """Recorded steps of which only their times are known, and their number of events."""
    n_stopped = stop_s / STOP_EVENT_S
    return SimpleNamespace(
        count_events=lambda: n_stopped if n_events is None else n_events,
        cost=SimpleNamespace(stop_cpu_ns=round(stop_s * 1e9), n_exported=n_exported),
        cpu=SimpleNamespace(thread_ns=round(thread_s * 1e9)),
        operators_ns=lambda: round(operators_s * 1e9),
    )


def test_calls_are_not_counted_where_they_are_affordable_by_any_number() -> None:
    python_s = FREE_S / CALLS_PER_S / CALL_S
    steps = Process().steps()
    steps.recording_ended(recorded(stop_s=0.0, thread_s=1.0 + 0.9 * python_s, operators_s=1.0), 1)
    assert sys.getprofile() is None
    assert steps.affords_lines()
    steps.recording_ended(recorded(stop_s=0.0, thread_s=1.0 + 2.7 * python_s, operators_s=1.0), 3)
    assert sys.getprofile() is None, "that was the time of three steps"


def call_often(n_calls: int) -> None:
    for _ in range(n_calls):
        abs(1)


def test_a_step_with_stacks_costs_what_the_calls_of_the_step_before_do() -> None:
    process = Process()
    python = recorded(stop_s=0.0, thread_s=2.0, operators_s=1.0)
    steps = process.steps()
    steps.recording_ended(python, 1)
    call_often(100)
    assert steps.affords_lines()

    steps = process.steps()
    steps.recording_ended(python, 1)
    call_often(round(1.1 * FREE_S / CALL_S))
    assert not steps.affords_lines()
    process.now_s = 1.2 * FREE_S / MAX_SHARE
    assert steps.affords_lines(), "the run has become longer"


def test_without_a_count_a_step_with_stacks_costs_what_the_thread_can_call() -> None:
    steps = Process().steps()
    sys.setprofile(lambda *_: None)
    try:
        steps.recording_ended(recorded(stop_s=0.0, thread_s=2.0, operators_s=1.0), 1)
        assert not steps.affords_lines()
    finally:
        sys.setprofile(None)


def test_a_step_with_stacks_costs_what_the_recorded_ones_did_besides() -> None:
    steps = Process().steps()
    steps.recording_ended(recorded(stop_s=0.4, thread_s=1.0, operators_s=1.0), 1)
    assert not steps.affords_lines()
    # As many events were recorded on an H100: they took long to collect, and are known.
    slow = recorded(stop_s=0.19, thread_s=0.08, operators_s=0.08, n_exported=12_030)
    steps = Process(spent_s=0.3).steps()
    steps.recording_ended(slow, 3)
    assert steps.affords_lines()


@pytest.mark.parametrize("slowness", [1.0, 3.0])
def test_a_slow_processor_affords_as_much_as_a_quick_one(
    heap: dict[str, int], slowness: float
) -> None:
    process = Process(spent_s=0.3 * slowness, slowness=slowness)
    assert process.budget.left_s() == pytest.approx(FREE_S - 0.3)

    steps = process.steps()
    heap["bytes"] += 8 << 30
    process.thread_s += 0.99 * slowness * (FREE_S - 0.3) / EVENT_S / EVENTS_PER_S / 2
    assert steps.affords_step(1)
    process.thread_s *= 1.1
    assert not steps.affords_step(1)

    # 30,000 events cost 0.5 s, if one step of three has them.
    for stop_s, is_affordable in ((0.1, True), (0.2, False)):
        busy = recorded(stop_s=stop_s * slowness, thread_s=slowness, operators_s=slowness)
        steps.recording_ended(busy, 3)
        assert steps.affords_lines() == is_affordable


def test_events_are_counted_where_the_time_of_stopping_says_too_many() -> None:
    steps = Process().steps()
    slow = recorded(stop_s=0.4, thread_s=1.0, operators_s=1.0, n_events=15_000)
    steps.recording_ended(slow, 3)
    assert steps.affords_lines(), "stopping them took four times as long as usual"
    steps.end()


def test_calls_are_counted_though_the_events_are_too_dear_yet() -> None:
    process = Process()
    steps = process.steps()
    steps.recording_ended(recorded(stop_s=0.4, thread_s=2.0, operators_s=1.0), 1)
    call_often(100)
    assert not steps.affords_lines()
    process.now_s = 1.2 * FREE_S / MAX_SHARE * 0.4 / STOP_EVENT_S * EVENT_S * 2
    assert steps.affords_lines(), "the most calls of a second would cost far more"


class Cell(torch.nn.Module):
    """Many small operators."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = torch.nn.LSTMCell(1, 8)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        state = None
        for value in values.split(1, dim=1):
            state = self.cell(value, state)
        assert state is not None
        return state[0].mean()


def test_at_least_one_step_with_very_many_events_is_recorded_whole() -> None:
    finder = StepFinder(Plan("lbfgs", Options(quiet=True), DEFAULT_SCHEDULE, monitor_memory=False))
    n_threads = torch.get_num_threads()
    finder.on_torch_import()
    torch.set_num_threads(1)  # threads that wait for work use processor time
    try:
        model, values = Cell(), torch.rand(4, 60)
        optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4, tolerance_change=0.0)

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = model(values)
            loss.backward()
            return loss

        for _ in range(10):
            optimizer.step(closure)
    finally:
        finder.finish()
        torch.set_num_threads(n_threads)
    assert finder.recorder.path is not None
    assert current.state.session is None
    report = profkit.analyze(finder.recorder.path)
    first = report.summary.steps[0].name
    assert first == "ProfilerStep#4" or report.summary.n_disturbed_steps
    assert report.summary.n_incomplete_steps == 0
