"""Limits on the recording of a run without known steps."""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from profkit.capture.process import program_profilers
from profkit.capture.process.torch_import import TorchImport
from profkit.capture.recording import current
from profkit.capture.recording.options import Options
from profkit.capture.recording.session import Session
from profkit.capture.run import prelude
from profkit.capture.run.prelude import Prelude
from tests.capture.needs import needs_all_threads
from tests.processes import start_forked

Opened = Callable[[str | None], dict[str, Any]]


def opened_session(options: Options) -> Session:
    session = current.enter("whole", 1, options, None, "whole")
    assert isinstance(session, Session)
    return session


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
    assert not program_profilers.state.is_none_made


def names_in(trace: dict[str, Any]) -> list[str]:
    return [event["name"] for event in trace["traceEvents"]]


@pytest.fixture
def soon_full(monkeypatch: pytest.MonkeyPatch) -> Prelude:
    """Return a prelude that has enough events at once."""
    monkeypatch.setattr(prelude, "MIN_CPU_S", 0.0)
    monkeypatch.setattr(prelude, "MAX_EVENTS", -1)
    return Prelude("whole", Options(quiet=True, stacks=False, memory=False))


def wait_until_muted(begun: Prelude) -> None:
    began_s = time.monotonic()
    while begun.session is not None and not begun.session.is_muted:
        assert time.monotonic() - began_s < 20
        time.sleep(0.01)


@needs_all_threads
def test_a_prelude_begins_again_at_the_first_module_alone(
    opened: Opened, soon_full: Prelude
) -> None:
    soon_full.begin()
    torch.ones(3).exp()
    wait_until_muted(soon_full)
    soon_full.module_called()
    torch.ones(3).cos()
    wait_until_muted(soon_full)
    # A step that begins here may never end, and this is what there is of the run.
    soon_full.module_called()
    soon_full.finish()
    assert soon_full.session is not None
    names = names_in(opened(soon_full.session.path))
    assert "aten::exp" not in names
    assert "aten::cos" in names


@needs_all_threads
def test_a_prelude_with_enough_events_collects_no_more_and_ends_there(
    opened: Opened, soon_full: Prelude
) -> None:
    begin = soon_full
    begin.begin()
    assert begin.is_recording

    torch.ones(3).exp()
    began_s = time.monotonic()
    wait_until_muted(begin)
    torch.ones(3).cos()
    time.sleep(0.3)
    begin.finish()
    assert begin.session is not None
    trace = opened(begin.session.path)
    assert "aten::exp" in names_in(trace)
    assert "aten::cos" not in names_in(trace)

    (span,) = (event for event in trace["traceEvents"] if event.get("cat") == "Trace")
    (end,) = (event for event in trace["traceEvents"] if event["name"] == "Record Window End")
    assert span["dur"] < (time.monotonic() - began_s - 0.3) * 1e6, "nothing is known of the rest"
    assert end["ts"] == pytest.approx(span["ts"] + span["dur"], abs=1)


MANY_OPERATORS = """\
import torch
x = torch.ones(8)
for _ in range(60_000):
    x = x + 1
big = [torch.ones(100_000) for _ in range(200)]
print(x.sum().item(), len(big))
"""


@needs_all_threads
def test_a_program_without_steps_has_its_first_operators_and_a_bounded_cost(
    tmp_path: Path, opened: Opened
) -> None:
    ended = start_forked(tmp_path, "-m", "profkit", "run", "-c", MANY_OPERATORS)
    assert (ended.code, ended.out) == (0, "480008.0 200\n")
    assert "profiler_kineto.cpp" not in ended.err, "torch warns of muting"
    (path,) = tmp_path.glob("traces/command/*.trace.json.gz")
    n_adds = names_in(opened(str(path))).count("aten::add")
    assert 1000 < n_adds < 60_000
