"""Blocks per SM and occupancy of kernels are read; values that cannot be right are missing."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from profkit.model.events import EventTable
from tests.traces import load_events

OCCUPANCY = "est. achieved occupancy %"
FULL = {"blocks per SM": 2.5, "warps per SM": 20.0, OCCUPANCY: 37}


def kernel(number: int, **args: Any) -> dict[str, Any]:  # noqa: ANN401  (any JSON value)
    given = {"device": 0, "stream": 7, "correlation": number, **args}
    return {
        "ph": "X",
        "cat": "kernel",
        "name": "gemm",
        "pid": 0,
        "tid": 7,
        "ts": 10.0 * number,
        "dur": 5,
        "args": given,
    }


def figures(events: EventTable) -> tuple[list[float | None], list[float | None]]:
    rows = np.arange(len(events))
    blocks, occupancy = (
        [None if math.isnan(figure) else figure for figure in column.figures_at(rows).tolist()]
        for column in (events.blocks_per_sm, events.occupancy_percent)
    )
    return blocks, occupancy


def test_blocks_and_occupancy_of_kernels_are_read(tmp_path: Path) -> None:
    copy = kernel(2, **FULL) | {"cat": "gpu_memcpy"}
    occupancy = load_events(tmp_path, [kernel(1, **FULL), copy, kernel(3)]).events
    assert figures(occupancy) == ([2.5, None, None], [37.0, None, None])


@pytest.mark.parametrize(
    ("warps", "recorded", "read_as"),
    [(0.3, 0, 0.0), (0.4, 0, None), (8, 0, None), (8, 12.5, 12.5), (8, -99, None)],
)
def test_an_occupancy_that_contradicts_the_number_of_warps_is_missing(
    tmp_path: Path, warps: float, recorded: float, read_as: float | None
) -> None:
    given = {"blocks per SM": warps / 8, "warps per SM": warps, OCCUPANCY: recorded}
    _, occupancy = figures(load_events(tmp_path, [kernel(1, **given)]).events)
    assert occupancy == [read_as]


def test_blocks_of_an_unknown_device_are_missing(tmp_path: Path) -> None:
    events = [
        kernel(1, **FULL | {"blocks per SM": n_blocks}) for n_blocks in (math.inf, -1.0, 0.25)
    ]
    blocks, occupancy = figures(load_events(tmp_path, events).events)
    assert (blocks, occupancy) == ([None, None, 0.25], [37.0, 37.0, 37.0])


def test_an_occupancy_that_is_not_a_number_does_not_drop_the_event(tmp_path: Path) -> None:
    events = [kernel(1, **FULL | {OCCUPANCY: None}), kernel(2, **FULL | {OCCUPANCY: "25"})]
    assert figures(load_events(tmp_path, events).events) == ([2.5, 2.5], [None, 25.0])


def test_kernels_written_as_begin_and_end_events_have_both(tmp_path: Path) -> None:
    begin = kernel(1, **FULL) | {"ph": "B"}
    end = {"ph": "E", "pid": 0, "tid": 7, "ts": 40.0}
    assert figures(load_events(tmp_path, [begin, end]).events) == ([2.5], [37.0])
