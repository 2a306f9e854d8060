"""A pause of a loop, such as a validation, is in no step and in no recording."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import profkit
from profkit.capture.recording.trace import TraceCapture
from tests.step_counts import count_steps

Opened = Callable[[str | None], dict[str, Any]]

EPOCHS = {
    "as many steps as planned end before the pause": (7, [4, 5, 6]),
    "the recording would begin with the pause": (4, [4, 5, 6]),
    "the pause comes after one step, and so many follow it": (5, [5, 6, 7]),
    "the pause comes after each step": (1, [4]),
    "the pause comes after every second step": (2, [4, 5]),
    "the pause comes after the second step, and three follow it": (3, [6, 7, 8]),
}


def recorded_steps(trace: dict[str, Any]) -> list[int]:
    """Return the numbers of the complete steps in a trace."""
    begun = [
        event["name"]
        for event in trace["traceEvents"]
        if event.get("cat") == "user_annotation" and event["name"].startswith("ProfilerStep#")
    ]
    open_step = trace["profkit"]["open_step"]
    return sorted(int(name.partition("#")[2]) for name in begun if name != open_step)


@pytest.mark.parametrize(("n_steps", "expected"), EPOCHS.values(), ids=EPOCHS)
def test_the_recorded_steps_follow_each_other(
    n_steps: int, expected: list[int], opened: Opened
) -> None:
    with profkit.trace("train", wait=2, warmup=2, active=3, stacks=n_steps in {3, 5}) as block:
        assert isinstance(block, TraceCapture)
        for step in range(12):
            torch.ones(2).neg_()
            block.step()
            if (step + 1) % n_steps == 0:
                block.pause()
                assert not block.is_recording
                torch.ones(2).sinh_()
                block.resume()

    trace = opened(block.path)
    assert recorded_steps(trace) == expected

    names = [event["name"] for event in trace["traceEvents"]]
    assert "aten::neg_" in names
    assert "aten::sinh_" not in names
    assert block.report is not None
    assert count_steps(block.report.summary) == len(expected)


def test_every_cycle_has_its_steps(opened: Opened) -> None:
    paths = []
    with profkit.trace("train", warmup=1, active=2, repeat=2, stacks=False) as block:
        assert isinstance(block, TraceCapture)
        for _ in range(9):
            block.step()
            block.pause()
            block.pause()
            block.resume()
            block.resume()
            paths.append(block._session.path if block._session else None)
    steps_of_each = [
        recorded_steps(opened(path)) for path in dict.fromkeys(paths) if path is not None
    ]
    assert steps_of_each == [[1], [3]]


def test_what_is_paused_to_the_end_is_written() -> None:
    with profkit.trace("train", wait=0, warmup=1, active=None, stacks=False) as block:
        for _ in range(4):
            block.step()
        block.pause()
        torch.ones(2).sinh_()
    assert block.report is not None
    assert count_steps(block.report.summary) == 3


def test_nothing_is_paused_outside_of_a_recording() -> None:
    block = profkit.trace("train", limit=0)
    with block:
        block.pause()
        block.resume()
    block.pause()
    block.resume()
    assert block.path is None
