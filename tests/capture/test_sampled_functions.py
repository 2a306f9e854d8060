"""Sampled stacks become functions of user code."""

import json
import selectors
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from profkit.capture.process.stack_counts import StackCount
from profkit.capture.process.stack_sampler import StackSampler
from profkit.capture.process.thread_stacks import Call
from profkit.capture.recording.options import Options
from profkit.capture.recording.sampled_functions import summarize_samples
from profkit.capture.recording.schedule import DEFAULT_SCHEDULE
from profkit.capture.run.plan import Plan
from profkit.capture.run.step_detection import StepFinder
from tests.capture.needs import needs_all_threads
from tests.traces import load_trace

JSON = json.decoder.__file__
MAIN: Call = (__file__, 90, "<module>")


class Counted(StackSampler):
    """A sampler that has sampled these stacks."""

    def __init__(self, *stacks: tuple[Call, ...]) -> None:
        super().__init__()
        self.n_samples, self.sampled_ns = 10, 200
        self._stacks_counted = stacks

    def counts(self) -> list[StackCount]:
        return [StackCount(1, calls, 2, 40) for calls in self._stacks_counted]


def test_what_a_function_calls_in_libraries_is_its_own() -> None:
    sampled = summarize_samples(
        Counted(
            (MAIN, (__file__, 31, "load"), (json.__file__, 346, "loads"), (JSON, 337, "decode")),
            (MAIN, (__file__, 31, "load"), (JSON, 337, "decode")),
            (MAIN, (__file__, 32, "load")),
            (MAIN,),
        )
    )
    assert sampled is not None
    assert (sampled.interval_ns, sampled.n_samples, sampled.running_ns) == (20, 10, 160)
    load, module = sampled.functions
    assert (load.place, load.n, load.ns, load.library) == ((__file__, 31, "load"), 6, 120, "json")
    assert (module.place, module.library) == (MAIN, "")


def test_comprehensions_belong_to_the_function_around_them() -> None:
    calls = (
        MAIN,
        (__file__, 20, "encode"),
        (__file__, 21, "<listcomp>"),
        (__file__, 22, "<genexpr>"),
    )
    sampled = summarize_samples(Counted(calls, (*calls[:2], (__file__, 22, "<genexpr>"))))
    assert sampled is not None
    (function,) = sampled.functions
    assert function.place == (__file__, 22, "encode")


@pytest.mark.parametrize(("function", "part"), [("reset_parameters", "build"), ("forward", "")])
def test_constructors_of_modules_are_known_from_their_calls(function: str, part: str) -> None:
    linear = (torch.nn.Linear.__init__.__code__.co_filename, 110, function)
    sampled = summarize_samples(Counted((MAIN, (__file__, 31, "load"), linear), (MAIN,)))
    assert sampled is not None
    parts = {place.place[2]: place.part for place in sampled.functions}
    assert parts == {"load": part, "<module>": ""}


def test_threads_without_user_code_are_named_by_their_library() -> None:
    sampled = summarize_samples(Counted(((selectors.__file__, 468, "select"),)))
    assert sampled is not None
    (function,) = sampled.functions
    assert (function.place, function.library) == (("", 0, ""), "selectors")


def test_nothing_is_known_where_no_thread_ran() -> None:
    sampler = StackSampler()
    assert summarize_samples(sampler) is None


def tokenize(seconds: float) -> int:
    end_s, n = time.thread_time() + seconds, 0
    while time.thread_time() < end_s:
        n += sum(len(word) for word in ["the", "quick", "brown", "fox"] * 10)
    return n


@pytest.fixture
def finder(tmp_path: Path) -> Iterator[StepFinder]:
    options = Options(folder=str(tmp_path), quiet=True)
    made = StepFinder(Plan("service", options, DEFAULT_SCHEDULE, monitor_memory=False))
    made.on_torch_import()
    yield made
    made.finish()


@needs_all_threads
@pytest.mark.skipif(sys.gettrace() is not None, reason="coverage sets a trace function")
def test_a_run_without_steps_has_its_functions_in_its_trace(finder: StepFinder) -> None:
    tokenize(1.0)
    finder.finish()
    assert finder.recorder.path is not None
    capture = load_trace(finder.recorder.path).capture
    assert capture is not None
    assert capture.sampled is not None
    first = capture.sampled.functions[0]
    assert (first.place[0], first.place[2]) == (__file__, "tokenize")
    assert first.ns > 0.5 * capture.sampled.running_ns


@pytest.mark.skipif(sys.gettrace() is not None, reason="coverage sets a trace function")
def test_nothing_is_sampled_once_the_steps_are_known(finder: StepFinder) -> None:
    was_on = finder.recorder._prelude._sampler.is_on
    weight = torch.nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for _ in range(12):
        weight.sum().backward()
        optimizer.step()
    assert (was_on, finder.recorder._prelude._sampler.is_on) == (True, False)
    finder.finish()
    assert finder.recorder.path is not None
    capture = load_trace(finder.recorder.path).capture
    assert capture is not None
    assert capture.steps == "optimizer"
    # What there may be is of the steps, and not of the run before them.
    assert capture.sampled is None or capture.sampled.n_steps > 0


def test_nothing_is_sampled_once_the_program_profiles_itself(finder: StepFinder) -> None:
    with torch.profiler.profile():
        assert not finder.recorder._prelude._sampler.is_on
    assert not finder.recorder._prelude._sampler.is_on
