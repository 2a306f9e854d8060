"""Limits on the recording of a run without known steps."""

import importlib
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from profkit.capture.process import program_profilers, signals
from profkit.capture.process.signals import Deadline
from profkit.capture.process.torch_import import TorchImport
from profkit.capture.recording import current
from profkit.capture.recording.options import Options
from profkit.capture.recording.recording_budget import RecordingBudget
from profkit.capture.recording.schedule import DEFAULT_SCHEDULE, Schedule
from profkit.capture.recording.session import Session
from profkit.capture.recording.step_limit import StepLimit
from profkit.capture.run.plan import Plan
from profkit.capture.run.run_window import RunWindow, Window
from profkit.capture.run.step_detection import StepFinder
from tests.processes import start

has_spare_signal = pytest.mark.skipif(
    not hasattr(signal, "SIGRTMAX"), reason="this system has no real-time signals"
)
ENDLESS = Window(3600, 0.0, 0.0)
Opened = Callable[[str | None], dict[str, Any]]


def opened_session(options: Options) -> Session:
    session = current.enter("whole", 1, options, None, "whole")
    assert isinstance(session, Session)
    return session


@has_spare_signal
def test_a_deadline_acts_on_the_main_thread_and_restores_the_signal() -> None:
    acted: list[threading.Thread] = []
    Deadline(0.001, lambda: acted.append(threading.current_thread()))
    while not acted:
        pass
    assert acted == [threading.main_thread()]
    assert signal.getsignal(signal.SIGRTMAX) is signal.SIG_DFL


@has_spare_signal
def test_a_cancelled_deadline_never_acts() -> None:
    acted: list[int] = []
    deadline = Deadline(3600, lambda: acted.append(1))
    deadline.cancel()
    deadline.cancel()
    deadline._thread.join(20)
    assert not deadline._thread.is_alive()
    assert acted == []


@has_spare_signal
def test_a_deadline_interrupts_a_main_thread_that_waits_for_another() -> None:
    acted: list[threading.Thread] = []
    is_free = threading.Event()

    def act() -> None:
        acted.append(threading.current_thread())
        is_free.set()

    Deadline(0.01, act)
    assert is_free.wait(20)
    assert acted == [threading.main_thread()]


@has_spare_signal
def test_a_program_that_waits_for_a_signal_waits_for_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[str] = []
    original = signal.pause
    has_acted = threading.Event()

    def act() -> None:
        seen.append("deadline")
        has_acted.set()

    def send() -> None:
        assert has_acted.wait(20)
        time.sleep(0.1)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, lambda *_: seen.append("own"))
    monkeypatch.setattr(signals, "_GRACE_S", 0.0)
    deadline = Deadline(0.05, act)
    sender = threading.Thread(target=send)
    sender.start()
    try:
        signal.pause()
        seen.append("returned")
    finally:
        sender.join()
        deadline.cancel()
        signal.signal(signal.SIGUSR1, before)
    assert seen == ["deadline", "own", "returned"]
    assert signal.pause is original
    assert signal.set_wakeup_fd(-1) == -1


@has_spare_signal
def test_a_deadline_waits_for_cpu_time_but_not_for_ever() -> None:
    acted: list[float] = []
    began_s = time.process_time()
    Deadline(0.0, lambda: acted.append(time.process_time() - began_s), cpu_s=0.2, at_most_s=60)
    while not acted:
        pass
    assert acted[0] >= 0.2
    acted.clear()
    Deadline(0.0, lambda: acted.append(0.0), cpu_s=1e6, at_most_s=0.05)
    while not acted:
        pass


@has_spare_signal
def test_a_deadline_comes_early_where_it_is_asked_for() -> None:
    acted: list[threading.Thread] = []
    asked_by: set[threading.Thread] = set()

    def is_early() -> bool:
        asked_by.add(threading.current_thread())
        return time.process_time() - began_s > 0.05

    began_s = time.process_time()
    deadline = Deadline(3600, lambda: acted.append(threading.current_thread()), is_early=is_early)
    while not acted:
        pass
    assert acted == [threading.main_thread()]
    assert asked_by == {deadline._thread}


def test_nothing_is_recorded_after_a_freeze(opened: Opened) -> None:
    session = opened_session(Options(quiet=True))
    torch.ones(3).exp()
    session.freeze()
    torch.ones(3).cos()
    current.leave(session)
    names = {event["name"] for event in opened(session.path)["traceEvents"]}
    assert "aten::exp" in names
    assert "aten::cos" not in names


def test_an_abandoned_session_writes_no_file_and_the_next_one_records(
    opened: Opened,
) -> None:
    session = opened_session(Options(quiet=True))
    session.abandon()
    current.leave(session)
    assert session.path is None
    current.n_recorded.clear()
    again = opened_session(Options(quiet=True))
    torch.ones(3).exp()
    current.leave(again)
    assert again.path is not None
    assert opened(again.path)["profkit"]["steps"] == "whole"


def test_an_earlier_import_of_torch_is_reported_at_once() -> None:
    calls: list[bool] = []
    TorchImport(lambda: calls.append("torch" in sys.modules)).watch()
    assert calls == [True]


def test_other_imports_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch")
    watcher = TorchImport(lambda: None)
    watcher.watch()
    try:
        assert watcher.find_spec("json") is None
        assert watcher in sys.meta_path
    finally:
        watcher.stop()
    assert watcher not in sys.meta_path


@has_spare_signal
def test_a_deadline_comes_at_once_when_any_thread_says_so() -> None:
    acted: list[threading.Thread] = []
    deadline = Deadline(3600, lambda: acted.append(threading.current_thread()))
    caller = threading.Thread(target=deadline.come)
    caller.start()
    caller.join()
    end_s = time.monotonic() + 20
    while not acted and time.monotonic() < end_s:
        pass
    assert acted == [threading.main_thread()]
    deadline._thread.join(20)
    assert not deadline._thread.is_alive()


@pytest.mark.parametrize(("n_before", "n_after"), [(40, 0), (40, 2), (1, 40)])
def test_of_a_block_recorded_anew_the_later_one_with_much_in_it_is_written(
    n_before: int, n_after: int, opened: Opened
) -> None:
    session = opened_session(Options(quiet=True, stacks=False))
    for _ in range(n_before):
        torch.ones(3).exp()
    session.freeze()
    assert session.cost[0] > 0
    assert session.stop_ns > 0
    session.record_anew()
    assert session.is_recording
    for _ in range(n_after):
        torch.ones(3).cos()
    session.freeze()
    current.leave(session)
    names = [event["name"] for event in opened(session.path)["traceEvents"]]
    is_later = n_after > n_before
    assert names.count("aten::exp") == (0 if is_later else n_before)
    assert names.count("aten::cos") == (n_after if is_later else 0)


def window_of(session: Session, window: Window = ENDLESS) -> RunWindow:
    return RunWindow(session, window, RecordingBudget())


def window_after(calls: list[torch.nn.Module]) -> list[str]:
    """Whether a deadline came, by call, in a window of 6 calls, 20 at most."""
    came: list[str] = []
    session = Session("whole", Options(), None, "whole")
    window = RunWindow(
        session, Window(3600, 0.0, 0.0, n_calls=6, n_calls_at_most=20), RecordingBudget()
    )
    window.cancel()
    assert not window.is_open
    window.is_open = True
    for number, module in enumerate(calls):
        window._deadline = SimpleNamespace(  # type: ignore[assignment]
            come=lambda number=number: came.append(str(number))
        )
        window.count_call(module)
    return came


@pytest.fixture
def imports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Callable[[], None]], None]:
    """Calls a function within an import."""
    (tmp_path / "imported_late.py").write_text("from builtins import within_import as f\nf()\n")
    monkeypatch.syspath_prepend(tmp_path)

    def call(function: Callable[[], None]) -> None:
        monkeypatch.setattr("builtins.within_import", function, raising=False)
        monkeypatch.delitem(sys.modules, "imported_late", raising=False)
        importlib.import_module("imported_late")

    return call


@pytest.mark.parametrize("calls_again", [True, False])
def test_a_window_that_ends_within_an_import_begins_anew_with_the_next_call(
    imports: Callable[[Callable[[], None]], None],
    opened: Opened,
    *,
    calls_again: bool,
) -> None:
    finder = StepFinder(Plan("whole", Options(), DEFAULT_SCHEDULE))
    finder._kind, finder._saw_module = "whole", True
    session = finder._session = opened_session(Options(quiet=True, stacks=False))
    has_ended: list[bool] = []
    window = finder._window = RunWindow(
        session,
        Window(3600, 0.0, 0.0, with_modules=True),
        RecordingBudget(),
        lambda: has_ended.append(True),
    )
    for _ in range(40):
        torch.ones(3).exp()
    imports(window._deadline._on_time)
    assert has_ended, "nothing samples the functions of the import"
    assert window.awaits_call
    assert not window.is_measure
    assert not finder._is_recording_over(), "the hook of modules is removed"
    if calls_again:
        finder._on_call(torch.nn.ReLU())
        assert window.is_open
        assert session.is_recording
        torch.ones(3).cos()
    window.cancel()
    current.leave(session)
    names = [event["name"] for event in opened(session.path)["traceEvents"]]
    assert names.count("aten::exp") == (0 if calls_again else 40)
    assert names.count("aten::cos") == calls_again


@has_spare_signal
def test_a_window_whose_time_is_up_within_a_backward_pass_ends_with_the_next_call() -> None:
    session = opened_session(Options(quiet=True, stacks=False))
    window = window_of(session)
    weight = torch.ones(2, requires_grad=True)
    module = torch.nn.ReLU()

    def within(_gradient: torch.Tensor) -> None:
        window._deadline._on_time()
        window._deadline.cancel()  # the next one, which comes soon

    weight.register_hook(within)
    weight.sum().backward()

    def has_ended() -> bool:
        return window._is_later  # there was little in it, so that it has begun anew

    assert not has_ended()
    window._deadline = Deadline(3600, window._on_deadline)
    window.count_call(module)
    deadline_s = time.monotonic() + 20
    while not has_ended() and time.monotonic() < deadline_s:
        pass
    assert has_ended()
    window.cancel()
    session.abandon()
    current.leave(session)


def test_a_program_that_does_all_of_its_work_within_an_import_is_recorded(
    imports: Callable[[Callable[[], None]], None],
) -> None:
    session = opened_session(Options(quiet=True, stacks=False))
    window = window_of(session, Window(3600, 0.0, 0.0, with_modules=True))
    module = torch.nn.ReLU()

    def work() -> None:
        for _ in range(3):
            window._deadline._on_time()
            assert window.awaits_call
            window.begin_with_call()
        window._deadline._on_time()
        assert not window.awaits_call

    imports(work)
    window._n_imports = 0
    for _ in range(4):
        window.count_call(module)
    window.is_open = True
    imports(window._deadline._on_time)
    assert not window.awaits_call, "it has whole calls"
    window.cancel()
    session.abandon()
    current.leave(session)


def test_a_window_ends_after_enough_calls_of_which_three_are_whole() -> None:
    first, other = torch.nn.ReLU(), torch.nn.Linear(1, 1)
    # The first call begins the window; three more of its module end three whole ones.
    assert window_after([first, other] * 5)[0] == "6"
    assert window_after([first, other, other, other] * 4)[0] == "12"
    assert window_after([first] + [other] * 30)[0] == "20"


@has_spare_signal
def test_the_steps_in_the_first_window_of_a_run_are_recorded_and_not_monitored() -> None:
    finder = StepFinder(Plan("whole", Options(), DEFAULT_SCHEDULE))
    finder._kind = "whole"
    assert not finder._is_step_recorded()
    window = RunWindow(
        Session("whole", Options(), None, "whole"), Window(3600, 0.0, 0.0), RecordingBudget()
    )
    finder._window = window
    assert finder._is_step_recorded()
    window._is_later = True  # the windows of a run that waits may take seconds
    assert not finder._is_step_recorded()
    window._is_later = False
    window.cancel()
    assert not finder._is_step_recorded()


@has_spare_signal
def test_a_window_does_not_end_within_a_method_of_its_session(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("profkit.capture.run.run_window.COMPILING_SECONDS", 3600)
    session = Session("whole", Options(), None, "whole")
    window = window_of(session)
    try:
        session.is_busy = True
        window._on_deadline()
        assert window.is_open, "it is tried again later"
        session.is_busy = False
        window._on_deadline()
        assert not window.is_open
    finally:
        window.cancel()


def test_without_a_signal_a_window_has_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signals, "_spare_signal", lambda: None)
    window = RunWindow(
        Session("whole", Options(), None, "whole"), Window(3600, 0.0, 0.0), RecordingBudget()
    )
    assert window.is_open
    assert not window.ends_soon
    window.cancel()


def test_a_subscription_from_the_import_of_torch_knows_that_no_profiler_was_made() -> None:
    def listener(_name: str) -> None:
        pass

    program_profilers.subscribe(listener, from_import=True)
    try:
        users = torch.profiler.profile()
        users.prepare_trace()
        assert program_profilers.is_open(), "one that was made since"
        users.start_trace()
        users.stop_trace()
    finally:
        program_profilers.unsubscribe(listener)
    assert not program_profilers._is_none_made


class Limit(StepLimit):
    """Affords any number of steps, and has them cut by hand."""

    def __init__(self) -> None:
        super().__init__(RecordingBudget(), is_measured=True, n_steps=3)
        self.affordable = 100
        self.cut: Callable[[], None] = lambda: None

    def recording_begins(self, cut: Callable[[], None], *, lines: bool) -> None:  # noqa: ARG002
        self.cut = cut

    def affords(self, n_recorded: int) -> bool:
        return n_recorded < self.affordable


def opened_steps(limit: Limit) -> Session:
    session = current.enter("steps", 1, Options(quiet=True), Schedule(0, 1, 3), "optimizer")
    assert isinstance(session, Session)
    session.limit = limit
    session._limit_recording(lines=True)  # the first step has begun
    return session


@pytest.mark.parametrize("n_whole", [0, 1, 2])
def test_a_recording_that_is_cut_has_the_whole_steps_before(n_whole: int, opened: Opened) -> None:
    limit = Limit()
    session = opened_steps(limit)
    torch.ones(3).exp()
    if n_whole:
        for _ in range(n_whole):
            session.step()
            torch.ones(3).sin()
    limit.cut()
    assert session.is_done
    for _ in range(3):
        torch.ones(3).cos()
        session.step()
    current.leave(session)
    trace = opened(session.path)
    names = [event["name"] for event in trace["traceEvents"]]
    # Without a whole step beside the one with stacks, that one is written.
    written = ["aten::exp", f"ProfilerStep#{n_whole}"] if n_whole == 0 else []
    written += ["ProfilerStep#0"] if n_whole == 1 else []
    written += ["aten::sin", "ProfilerStep#1", "ProfilerStep#2"] if n_whole == 2 else []
    assert {name for name in names if name.startswith(("aten::sin", "Prof"))} <= set(written)
    assert set(written) <= set(names)
    assert "aten::cos" not in names
    assert trace["profkit"]["open_step"] == f"ProfilerStep#{n_whole}"


def test_a_recording_waits_for_an_affordable_step_and_ends_with_the_last(opened: Opened) -> None:
    limit = Limit()
    limit.affordable = 0
    session = opened_steps(limit)
    finder = StepFinder(Plan("test", Options(), DEFAULT_SCHEDULE))
    finder._session, finder._kind = session, "optimizer"
    monitor = finder._leak_monitor("optimizer")
    is_monitored = []
    for step in range(8):
        torch.ones(3).sin()
        limit.affordable = (0, 0, 2, 2, 2, 2, 2, 2)[step]
        session.step()
        is_monitored.append(monitor._may_sample_sites() and not monitor._is_tracing())
    # While it waits, which may be for ever, memory is monitored as after it.
    assert is_monitored == [True, True, False, False, True, True, True, True]
    assert session.is_done
    current.leave(session)
    names = {event["name"] for event in opened(session.path)["traceEvents"]}
    assert {name for name in names if name.startswith("Prof")} == {
        "ProfilerStep#3",
        "ProfilerStep#4",
    }


STOPS_IN_A_COLLECTION = """\
import gc, time, weakref
import torch
from profkit.capture.recording.options import Options
from profkit.capture.recording.session import Session
from profkit.capture.process.signals import Interrupt

class Garbage:
    pass

def stop():
    interrupt.cancel()
    session.freeze()
    session.record_anew()
    print("stopped")

def collected(_):
    interrupt.request()

def call():
    pass

session = Session("whole", Options(quiet=True), None, "whole")
interrupt = Interrupt(stop)
session.begin()
gc.set_threshold(1, 1000, 1000)
for _ in range(200):
    garbage = Garbage()
    garbage.itself, seen = garbage, weakref.ref(garbage, collected)
    del garbage
    call(), call(), call()
gc.set_threshold(700, 10, 10)
time.sleep(0.1)
session.abandon()
"""
"""Frames are made for torch's profile function, which collects, which calls a weak reference's
callback, in which a signal arrives."""


@has_spare_signal
@pytest.mark.skipif(
    sys.version_info >= (3, 12), reason="collections run between two instructions from 3.12 on"
)
def test_no_recording_is_stopped_in_a_garbage_collection(tmp_path: Path) -> None:
    ended = start(tmp_path, "-c", STOPS_IN_A_COLLECTION)
    assert (ended.code, ended.out) == (0, "stopped\n"), ended.err
