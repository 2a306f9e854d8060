"""Limits on the recording of a run without known steps."""

import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

from profkit.capture import current
from profkit.capture.options import Options
from profkit.capture.run import TorchImport
from profkit.capture.session import Session
from profkit.capture.signals import Deadline

has_spare_signal = pytest.mark.skipif(
    not hasattr(signal, "SIGRTMAX"), reason="this system has no real-time signals"
)
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
