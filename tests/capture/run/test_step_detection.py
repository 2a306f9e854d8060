"""What ``profkit run`` adds to the steps of a program that steps thousands of times per second."""

import math
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import pytest
import torch

import profkit
from profkit.capture.memory.monitor.leak_monitor import LeakMonitor
from profkit.capture.memory.monitor.step_sources import MIN_EVENTS
from profkit.capture.process import module_calls, signals, stack_sampler
from profkit.capture.recording import step_samples
from profkit.capture.recording.options import Options
from profkit.capture.recording.recording_budget import RecordingBudget
from profkit.capture.recording.schedule import DEFAULT_SCHEDULE
from profkit.capture.run.plan import Plan
from profkit.capture.run.step_detection import StepFinder
from tests.step_counts import count_steps

PROFKIT = str(Path(profkit.__file__).parent)
MAX_IDLE_CALLS = 5
"""Calls of Python functions at the end of a step at which nothing is due."""

needs_samples = pytest.mark.skipif(
    sys.gettrace() is not None, reason="nothing is sampled in a program with a trace function"
)


@pytest.fixture(autouse=True)
def _ample_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Record all planned steps, whatever other tests have recorded in this process."""
    monkeypatch.setattr(RecordingBudget, "left_s", lambda _: math.inf)


@pytest.fixture
def call() -> Callable[[], None]:
    net = Net()
    inputs = torch.ones(1, 2)

    def call() -> None:
        with torch.no_grad():
            net(inputs)

    return call


@pytest.fixture
def step() -> Callable[[], None]:
    weight = torch.nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([weight], lr=0.1)

    def step() -> None:
        weight.sum().backward()
        optimizer.step()

    return step


class Net(torch.nn.Linear):
    """A class of its own, whose calls can be listened to alone."""

    def __init__(self) -> None:
        super().__init__(2, 2)


def started(tmp_path: Path, *, monitor_memory: bool) -> StepFinder:
    options = Options(folder=str(tmp_path), quiet=True)
    finder = StepFinder(Plan("tiny", options, DEFAULT_SCHEDULE, monitor_memory=monitor_memory))
    finder.on_torch_import()
    return finder


@pytest.fixture(params=[False, True], ids=["trace", "trace and memory"])
def finder(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[StepFinder]:
    made = started(tmp_path, monitor_memory=request.param)
    yield made
    made.memory()
    made.finish()


def calls_of_profkit(action: Callable[[], None]) -> list[str]:
    """Return the functions of profkit that this thread calls."""
    called: list[str] = []

    def note(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(PROFKIT):
            called.append(frame.f_code.co_qualname)

    sys.setprofile(note)
    try:
        action()
    finally:
        sys.setprofile(None)
    return called


@needs_samples
@pytest.mark.parametrize(("kind", "n_before"), [("step", 0), ("call", MIN_EVENTS["module"])])
def test_a_step_at_which_nothing_is_due_costs_a_few_calls(
    tmp_path: Path,
    kind: str,
    n_before: int,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(step_samples, "ENOUGH_SAMPLES", 1)
    finder = started(tmp_path, monitor_memory=True)
    end_step: Callable[[], None] = request.getfixturevalue(kind)
    n_steps = 0
    try:
        until_s = time.monotonic() + 20
        while not finder.recorder.is_over_for_good and time.monotonic() < until_s:
            end_step()
            n_steps += 1
        calls = sorted((calls_of_profkit(end_step) for _ in range(200)), key=len)
    finally:
        live = finder.memory()
        finder.finish()

    assert 0 < len(calls[100]) <= MAX_IDLE_CALLS, calls[100]
    assert live is not None
    assert live.n_steps == n_steps + 200 - n_before, "steps that are only counted are counted all"


def test_what_profkit_does_between_two_steps_is_in_none(
    tmp_path: Path, step: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(self: LeakMonitor) -> None:
        self.n_steps += 1
        time.sleep(0.05)

    monkeypatch.setattr(LeakMonitor, "skip", slow)
    finder = started(tmp_path, monitor_memory=True)
    try:
        for _ in range(14):
            step()
    finally:
        finder.memory()
        finder.finish()
    assert finder.recorder.path is not None
    summary = profkit.analyze(finder.recorder.path).summary
    assert count_steps(summary) == 3
    assert max(step.dur_ns for step in summary.steps) < 40_000_000


@needs_samples
def test_stacks_are_sampled_until_there_are_enough_and_no_longer(
    finder: StepFinder, step: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_samples, "ENOUGH_SAMPLES", 2)
    until_s = time.monotonic() + 20
    n_steps = 0
    while (not finder.recorder.is_over_for_good or n_steps < 20) and time.monotonic() < until_s:
        step()
        n_steps += 1
    assert finder.recorder.is_over_for_good
    assert not stack_sampler._running
    assert finder.recorder.path is not None, "it is written while the program goes on"


def test_a_layer_within_a_region_ends_no_step_of_the_model(
    finder: StepFinder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model's call waits for the end of the region: its layers are not called outside of it."""
    # With Dynamo in the process, the calls of all modules are listened to.
    monkeypatch.setattr(module_calls, "_DYNAMO", "torch")
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU(), torch.nn.Linear(2, 2))
    is_open, acted_within = [False], []
    monkeypatch.setattr(signals, "act_if_pending", lambda: acted_within.append(is_open[0]))
    for _ in range(2 * MIN_EVENTS["module"]):
        with torch.no_grad(), torch.profiler.record_function("forward"):
            is_open[0] = True
            model(torch.ones(1, 2))
            is_open[0] = False
    assert acted_within
    assert not any(acted_within)
    assert finder.recorder.has_steps
