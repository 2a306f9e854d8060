"""Recordings that stop inside a region of the program, which ends while another one runs."""

import pytest
import torch
from torch.profiler import record_function

from profkit.capture import profiler
from profkit.capture.options import Options
from profkit.capture.profiler import ProfilerRecording
from profkit.errors import CaptureError


def recording(*, stacks: bool = False, all_threads: bool = False) -> ProfilerRecording:
    return ProfilerRecording(Options(), stacks=stacks, all_threads=all_threads)


def names(stopped: ProfilerRecording) -> set[str]:
    return {event.name() for event in stopped._profile.profiler.kineto_results.events()}


def work() -> None:
    with record_function("closed"):
        torch.ones(4).add(1)


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
    assert profiler._left_open == {all_threads}
    second = recording(stacks=stacks, all_threads=all_threads)
    assert second._is_of_all is not all_threads
    second.start()
    region.__exit__(None, None, None)  # torch writes into the first one's memory, or nowhere
    work()
    second.stop()
    assert {"open", "closed"} <= names(first)
    assert "closed" in names(second)
    assert profiler._left_open == {all_threads}


@pytest.mark.parametrize("stacks", [False, True])
def test_regions_that_are_closed_leave_nothing_open(*, stacks: bool) -> None:
    with record_function("around"):
        one = recording(stacks=stacks)
        one.start()
        for _ in range(3):
            work()
        one.stop()
    assert not profiler._left_open
    assert profiler.can_record()


def test_with_both_kinds_left_open_nothing_records() -> None:
    with record_function("around"):
        for all_threads in (False, True):
            one = recording(all_threads=all_threads)
            one.start()
            region = record_function("open")
            region.__enter__()
            one.stop()
            region.__exit__(None, None, None)
    assert not profiler.can_record()
    with pytest.raises(CaptureError, match="open when earlier recordings stopped"):
        recording()


def test_an_older_torch_without_the_other_kind_records_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(profiler, "_all_threads", lambda: None)
    assert recording(all_threads=True)._is_of_all is False
    profiler._left_open.update({False})
    assert not profiler.can_record()
