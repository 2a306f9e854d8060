"""Recordings that stop inside a region of the program, which ends while another one runs."""

import threading
import time
from dataclasses import dataclass, field

import pytest
import torch
from torch._C._profiler import _EventType
from torch.profiler import record_function

from profkit.capture.recording import harmless_kinds
from profkit.capture.recording.event_tree import find_left_open
from profkit.capture.recording.harmless_kinds import RecordingKind
from profkit.capture.recording.options import Options
from profkit.capture.recording.profiler import ProfilerRecording
from profkit.capture.recording.region import Region
from profkit.errors import CaptureError
from tests.capture.needs import HAS_ALL_THREADS, needs_all_threads


def recording(*, stacks: bool = False, all_threads: bool = False) -> ProfilerRecording:
    return ProfilerRecording(Options(), stacks=stacks, all_threads=all_threads)


def can_record(*, all_threads: bool = False) -> bool:
    return harmless_kinds.find_harmless_kind(all_threads=all_threads) is not None


def kind(*, all_threads: bool) -> RecordingKind:
    is_of_all = all_threads and HAS_ALL_THREADS
    return RecordingKind.ALL_THREADS if is_of_all else RecordingKind.ONE_THREAD


def names(stopped: ProfilerRecording) -> set[str]:
    return {event.name() for event in stopped._profile.profiler.kineto_results.events()}


def work() -> None:
    with record_function("closed"):
        torch.ones(4).add(1)


@needs_all_threads
@pytest.mark.parametrize("stacks", [False, True])
@pytest.mark.parametrize("all_threads", [False, True])
def test_after_an_open_region_the_other_kind_records(*, stacks: bool, all_threads: bool) -> None:
    first = recording(stacks=stacks, all_threads=all_threads)
    first.start()
    work()
    region = record_function("open")
    region.__enter__()
    work()
    first.stop()
    assert harmless_kinds._find_open_kinds() == {kind(all_threads=all_threads)}

    second = recording(stacks=stacks)
    assert second.kind is kind(all_threads=not all_threads)
    second.start()
    region.__exit__(None, None, None)  # torch writes into the first one's memory, or nowhere
    work()
    second.stop()
    assert "closed" in names(first)  # torch 2.11 leaves out what is open
    assert "closed" in names(second)
    assert harmless_kinds._find_open_kinds() == {kind(all_threads=all_threads)}


@needs_all_threads
def test_recordings_of_all_threads_leave_the_other_kind_to_the_steps() -> None:
    harmless_kinds._left_open.add(RecordingKind.ALL_THREADS)
    assert not can_record(all_threads=True)
    with pytest.raises(CaptureError, match="open when earlier recordings stopped"):
        recording(all_threads=True)
    assert can_record()


@pytest.mark.parametrize("stacks", [False, True])
def test_regions_that_are_closed_leave_nothing_open(*, stacks: bool) -> None:
    with record_function("around"):
        recorder = recording(stacks=stacks)
        recorder.start()
        for _ in range(3):
            work()
        recorder.stop()
    assert not harmless_kinds._find_open_kinds()


def test_a_collective_whose_region_ends_after_the_step_is_not_left_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for is_initialized in (True, False):
        recorder = recording()
        recorder.start()
        region = record_function("gloo:all_reduce")
        region.__enter__()

        with monkeypatch.context() as during:
            during.setattr(torch.distributed, "is_initialized", lambda: is_initialized)  # noqa: B023
            during.setattr(
                time,
                "sleep",
                lambda _s: (region.__exit__(None, None, None), threading.Event().wait(0.005)),  # noqa: B023
            )
            recorder.stop()

        is_kind_open = RecordingKind.ONE_THREAD in harmless_kinds._find_open_kinds()
        assert is_kind_open is not is_initialized
        if not is_initialized:
            region.__exit__(None, None, None)  # while nothing is recorded


def test_what_was_left_open_is_known_after_the_events_are_freed() -> None:
    for is_last, is_open in ((False, False), (False, True), (True, False)):
        recorder = recording()
        recorder.start()
        region = record_function("around")
        region.__enter__()
        if is_open:
            recorder.stop()
        region.__exit__(None, None, None)
        recorder.stop()
        recorder.release(is_last=is_last)
        # Without a search nothing of the kind is recorded, which is safe.
        is_kind_open = RecordingKind.ONE_THREAD in harmless_kinds._find_open_kinds()
        assert is_kind_open is (is_open or is_last)
        harmless_kinds._left_open.clear()


def test_a_recording_in_which_nothing_of_the_program_runs_needs_no_search() -> None:
    first = recording()
    first.start()
    region = record_function("open")
    region.__enter__()
    first.stop()
    alone = ProfilerRecording(Options(), stacks=False, is_alone=True)
    assert alone.kind is RecordingKind.ALONE
    alone.start()
    work()
    alone.stop()
    region.__exit__(None, None, None)
    assert "closed" in names(alone)
    assert harmless_kinds._unexamined == [first]


@pytest.mark.parametrize("stacks", [False, True])
def test_a_region_is_open_although_the_one_around_it_was_ended(*, stacks: bool) -> None:
    recorder = recording(stacks=stacks)
    recorder.closed.add("around")
    around = Region("around")
    recorder.start()
    around.__enter__()
    work()
    region = record_function("open")
    region.__enter__()
    work()
    around.__exit__(None, None, None)
    recorder.stop()
    region.__exit__(None, None, None)
    assert harmless_kinds._find_open_kinds() == {RecordingKind.ONE_THREAD}


@dataclass
class Event:
    """An event of torch's tree, by microseconds from the stop on the system's clock."""

    name: str
    end_us: float
    children: list["Event"] = field(default_factory=list)
    tag: object = _EventType.TorchOp

    @property
    def end_time_ns(self) -> int:
        return 1_000_000_000 + round(1000 * self.end_us)


STOP_US = 3.0
"""When torch reads the system's clock, and gives that time to what is open."""


@pytest.mark.parametrize("clock_us", [-500, 0, 500])
def test_the_clock_of_events_may_differ_from_the_systems(clock_us: float) -> None:
    def is_open(*roots: Event) -> bool:
        return bool([*find_left_open(list(roots), 1_000_000_000, {"step"})])

    def call(end_us: float, *children: Event) -> Event:
        return Event("call", end_us, list(children), _EventType.PyCall)

    def step(*children: Event) -> Event:
        return Event("step", clock_us - 10, list(children))

    closed, left = Event("closed", clock_us - 20), Event("left", clock_us - 10)
    assert not is_open(step(closed, Event("outer", clock_us - 15, [Event("in", clock_us - 16)])))
    assert not is_open(call(STOP_US, step(call(clock_us - 12, closed))))
    assert is_open(step(closed, left))
    assert is_open(call(STOP_US, step(call(clock_us - 10, left))))
    assert is_open(Event("left", STOP_US, [step(closed)]))
    assert is_open(call(STOP_US, Event("left", STOP_US, [step(closed)])))
    assert is_open(step(closed), Event("of another thread", STOP_US))
    assert is_open(step(call(clock_us - 400, Event("left", clock_us - 400))))  # in __enter__


@needs_all_threads
def test_with_both_kinds_left_open_nothing_records() -> None:
    with record_function("around"):
        for all_threads in (False, True):
            recorder = recording(all_threads=all_threads)
            recorder.start()
            region = record_function("open")
            region.__enter__()
            recorder.stop()
            region.__exit__(None, None, None)
    assert not can_record()
    with pytest.raises(CaptureError, match="open when earlier recordings stopped"):
        recording()


def test_an_older_torch_without_the_other_kind_records_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(harmless_kinds, "all_threads_setting", lambda: None)
    assert recording(all_threads=True).kind is RecordingKind.ONE_THREAD
    harmless_kinds._left_open.add(RecordingKind.ONE_THREAD)
    assert not can_record()


class Stops(torch.optim.SGD):
    """An optimizer in whose step a recording stops and another one is wanted."""

    def __init__(self) -> None:
        super().__init__([torch.ones(1, requires_grad=True)], lr=0.1)
        self.region: record_function | None = None
        self.can_record: list[bool] = []

    def step(self, closure: object = None) -> None:  # type: ignore[override]
        del closure
        work()
        if self.region is not None:
            self.region.__enter__()
        self.recording.stop()
        self.can_record = [can_record(), can_record(all_threads=True)]

    recording: ProfilerRecording


@pytest.mark.parametrize("stacks", [False, True])
@pytest.mark.parametrize("all_threads", [False, True])
def test_a_region_of_an_optimizers_step_is_closed_once_it_has_returned(
    *, stacks: bool, all_threads: bool
) -> None:
    optimizer = Stops()
    optimizer.recording = recording(stacks=stacks, all_threads=all_threads)
    optimizer.recording.start()
    optimizer.step()
    # Meanwhile the other kind records: also what is of all threads, since both are free later.
    assert optimizer.can_record == [HAS_ALL_THREADS, HAS_ALL_THREADS]
    assert harmless_kinds._find_open_kinds() == set()
    again = recording(all_threads=all_threads)
    assert again.kind is kind(all_threads=all_threads)
    again.start()
    work()
    again.stop()
    assert "closed" in names(again)


@pytest.mark.parametrize("stacks", [False, True])
def test_a_region_of_the_program_within_an_optimizers_step_stays_open(*, stacks: bool) -> None:
    optimizer = Stops()
    optimizer.region = record_function("open")
    optimizer.recording = recording(stacks=stacks, all_threads=True)
    optimizer.recording.start()
    optimizer.step()
    assert optimizer.can_record == [HAS_ALL_THREADS, False]
    assert harmless_kinds._find_open_kinds() == {kind(all_threads=True)}
    optimizer.region.__exit__(None, None, None)


@needs_all_threads
def test_an_optimizer_of_another_thread_may_be_the_one() -> None:
    has_stopped, may_return = threading.Event(), threading.Event()

    class Waits(torch.optim.SGD):
        def step(self, closure: object = None) -> None:  # type: ignore[override]
            del closure
            work()
            has_stopped.set()
            may_return.wait(20)

    def train() -> None:
        Waits([torch.ones(1, requires_grad=True)], lr=0.1).step()

    recorder = recording(all_threads=True)
    recorder.start()
    worker = threading.Thread(target=train)
    worker.start()
    has_stopped.wait(20)
    recorder.stop()
    assert harmless_kinds._find_open_kinds() == {RecordingKind.ALL_THREADS}
    may_return.set()
    worker.join()
    assert harmless_kinds._find_open_kinds() == set()
