"""What recording may cost, by a clock and an amount spent that the test sets."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import torch

from profkit.capture.process.malloc_stats import Allocated, Heap
from profkit.capture.process.signals import Deadline
from profkit.capture.recording import current, profiler, session
from profkit.capture.recording.options import Options
from profkit.capture.recording.recording_budget import (
    COST_PER_STOP,
    EVENT_S,
    FREE_S,
    MAX_SHARE,
    SLOWDOWN_PER_STOP,
    Events,
    RecordingBudget,
)
from profkit.capture.recording.schedule import DEFAULT_SCHEDULE
from profkit.capture.recording.step_limit import StepLimit
from profkit.capture.run.plan import Plan
from profkit.capture.run.step_detection import StepFinder

STOP_NS = 50_000_000
MEASURED = (200_000_000 + round(SLOWDOWN_PER_STOP * STOP_NS), STOP_NS)
"""0.2 s of the program, which took 0.05 s to stop: each second costs 0.25 s to stop."""


@dataclass
class Process:
    """CPU time of a process, and what recording has cost it."""

    now_s: float = 2.0
    spent_s: float = 0.0
    budget: RecordingBudget = field(init=False)

    def __post_init__(self) -> None:
        self.budget = RecordingBudget(lambda: self.now_s, lambda: self.spent_s)

    def after(self, *steps_s: float) -> RecordingBudget:
        self.budget.recording_begins()
        for step_s in steps_s:
            self.now_s += step_s
            self.budget.step_ended()
        return self.budget


@pytest.mark.parametrize(("cost_s", "is_affordable"), [(FREE_S / 2.1, True), (FREE_S, False)])
def test_a_short_run_records_what_is_free(cost_s: float, *, is_affordable: bool) -> None:
    step_s = cost_s / COST_PER_STOP / 0.25
    assert Process().after(step_s).affords_steps(MEASURED) is is_affordable


def test_what_was_spent_is_not_free_any_more() -> None:
    process = Process()
    budget = process.after(FREE_S / 2.1 / COST_PER_STOP / 0.25)
    assert budget.affords_steps(MEASURED)
    process.spent_s = 0.1
    assert budget.left_s() == FREE_S - 0.1
    assert not budget.affords_steps(MEASURED)


def test_a_step_that_costs_more_waits_until_the_run_is_long_enough() -> None:
    process, step_s = Process(), 2.0
    cost_s = COST_PER_STOP * step_s * 0.25
    budget = process.after(step_s)
    while not budget.affords_steps(MEASURED):
        assert process.now_s < 1000
        process.now_s += step_s
        budget.step_ended()
    assert 2 * cost_s <= MAX_SHARE * process.now_s
    assert 2 * cost_s > MAX_SHARE * (process.now_s - step_s)


def test_a_first_step_that_takes_longer_is_forgotten() -> None:
    assert not Process().after(5.0).affords_steps(MEASURED)
    assert Process().after(5.0, 0.1, 0.1).affords_steps(MEASURED)


def test_without_a_measure_steps_are_recorded() -> None:
    assert Process().budget.affords_steps((0, 0))
    assert Process().after(1.0).affords_steps((1_000_000, 0))


def test_what_recording_slowed_down_took_the_program_less() -> None:
    stop_ns = 1_000_000_000
    slow_ns = round(2 * SLOWDOWN_PER_STOP * stop_ns)  # half of which is the program's
    step_s = FREE_S / 2 / COST_PER_STOP * SLOWDOWN_PER_STOP
    assert Process().after(step_s * 0.99).affords_steps((slow_ns, stop_ns))
    assert not Process().after(step_s * 1.01).affords_steps((slow_ns, stop_ns))


needs_heap = pytest.mark.skipif(Heap().allocated() is None, reason="the C library has no mallinfo2")


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
    assert recording.n_events() <= at_most <= 3 * recording.n_events()


@pytest.fixture
def heap(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """The heap's bytes, as the test sets them."""
    sizes = {"bytes": 10_000_000}
    monkeypatch.setattr(Heap, "allocated", lambda _: Allocated(sizes["bytes"], 0))
    return sizes


def limit_of(process: Process) -> StepLimit:
    return StepLimit(process.budget, is_measured=True, n_steps=3)


def test_after_the_step_with_stacks_as_many_are_recorded_as_are_affordable(
    heap: dict[str, int],
) -> None:
    process = Process()
    limit = limit_of(process)
    limit.recording_begins(lambda: None, lines=True)
    heap["bytes"] += 30_000_000
    limit.recording_ends()
    limit.step_with_stacks_cost(100_000_000)
    unpaid_s = (COST_PER_STOP / 2 - 1) * 0.1
    assert limit.affords(0)
    process.spent_s = FREE_S - unpaid_s - 0.99 * COST_PER_STOP * 0.1
    assert not limit.affords(0)
    process.spent_s = 0.2
    limit.recording_begins(lambda: None, lines=False)
    heap["bytes"] += 10_000_000  # a third of the events: two such steps cost 0.27 s
    assert limit.affords(1)
    heap["bytes"] += 50_000_000  # and the second one twice as many: three cost 1.2 s
    assert not limit.affords(2)
    limit.recording_ends()


@pytest.mark.parametrize("n_longer", [1, 2])
def test_a_step_is_cut_if_it_has_many_events_and_is_longer_than_usual(
    n_longer: int, heap: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    monkeypatch.setattr(
        "profkit.capture.recording.step_limit.Deadline",
        lambda _seconds, _act, is_early: asked.append(is_early),
    )
    process = Process()
    process.after(0.5)
    now_s = [0.0]
    monkeypatch.setattr("profkit.capture.recording.step_limit.time.process_time", lambda: now_s[0])
    limit_of(process).recording_begins(lambda: None, lines=n_longer == 1)
    is_steps, is_early = n_longer == 2, asked[0]
    assert not is_early()
    heap["bytes"] += round(2 * FREE_S / EVENT_S * 300)
    assert not is_early(), "the program may have allocated that"
    now_s[0] = 2.0
    assert is_early() is not is_steps, "three steps take longer than one"
    now_s[0] = 6.0
    assert is_early()
    heap["bytes"] = 10_000_000
    assert not is_early(), "it has few events"


def test_steps_are_as_long_as_the_one_with_stacks_where_no_other_is_known(
    heap: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, now_s = [], [0.0]

    class Asked(Deadline):
        def __init__(self, _seconds: float, _act: object, is_early: Callable[[], bool]) -> None:
            asked.append(is_early)

        def cancel(self) -> None:
            pass

    monkeypatch.setattr("profkit.capture.recording.step_limit.Deadline", Asked)
    monkeypatch.setattr("profkit.capture.recording.step_limit.time.process_time", lambda: now_s[0])
    limit = StepLimit(Process().budget, is_measured=False, n_steps=3)
    limit.recording_begins(lambda: None, lines=True)
    now_s[0] = 0.2
    limit.recording_ends()
    limit.step_with_stacks_cost(5_000_000)
    limit.recording_begins(lambda: None, lines=False)
    heap["bytes"] += 4_000_000_000  # activations
    now_s[0] += 0.6
    assert not asked[1]()
    now_s[0] += 0.1
    assert asked[1]()


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


def test_a_run_whose_steps_have_very_many_events_is_recorded_within_the_budget() -> None:
    finder = StepFinder(Plan("lbfgs", Options(quiet=True), DEFAULT_SCHEDULE, monitor_memory=False))
    spent_s, n_threads = session.spent_ns / 1e9, torch.get_num_threads()
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

        for _ in range(6):
            optimizer.step(closure)
    finally:
        finder.finish()
        torch.set_num_threads(n_threads)
    assert finder.path is not None
    assert current.session is None
    spent_s = session.spent_ns / 1e9 - spent_s
    assert spent_s < max(FREE_S, MAX_SHARE * time.process_time())
