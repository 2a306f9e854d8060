"""A step that ends within a region of the program ends where that region does."""

import threading
from collections.abc import Iterator
from functools import partial

import pytest
from torch.profiler import record_function

from profkit.capture.process.open_regions import OpenRegions


@pytest.fixture
def regions() -> Iterator[OpenRegions]:
    followed = OpenRegions()
    stop = followed.follow()
    yield followed
    stop()


def test_outside_of_regions_it_is_called_at_once(regions: OpenRegions) -> None:
    seen: list[str] = []
    with record_function("forward"):
        pass
    regions.call_outside(lambda: seen.append("step"))
    assert seen == ["step"]


def test_within_regions_it_is_called_where_the_last_of_them_ends(regions: OpenRegions) -> None:
    seen: list[str] = []
    for step in range(3):
        with record_function("iteration"):
            with record_function("update"):
                regions.call_outside(partial(seen.append, f"step {step}"))
            seen.append("iteration goes on")
        seen.append("iteration ends")
        assert seen[-3:] == ["iteration goes on", f"step {step}", "iteration ends"]


def test_a_region_around_the_loop_delays_the_first_step_alone(regions: OpenRegions) -> None:
    seen: list[int] = []
    with record_function("epoch"):
        for step in range(4):
            regions.call_outside(partial(seen.append, step))
        assert seen == [1, 2, 3]
    assert seen == [1, 2, 3], "the first one is a part of the second"


def test_regions_of_other_threads_are_not_waited_for(regions: OpenRegions) -> None:
    is_open, may_end = threading.Event(), threading.Event()

    def other() -> None:
        with record_function("other"):
            is_open.set()
            may_end.wait(20)

    thread = threading.Thread(target=other)
    thread.start()
    is_open.wait(20)
    seen: list[str] = []
    regions.call_outside(lambda: seen.append("step"))
    may_end.set()
    thread.join()
    assert seen == ["step"]


def test_a_region_that_is_never_ended_is_not_an_obstacle(regions: OpenRegions) -> None:
    seen: list[int] = []
    record_function("lost").__enter__()
    for step in range(3):
        regions.call_outside(partial(seen.append, step))
    assert seen == [1, 2]


def test_afterwards_the_methods_are_torchs_own() -> None:
    before = record_function.__enter__, record_function.__exit__
    stop = OpenRegions().follow()
    assert record_function.__enter__ is not before[0]
    stop()
    assert (record_function.__enter__, record_function.__exit__) == before
