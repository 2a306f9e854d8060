"""Garbage collections are noted without a trace of it in the program."""

import gc
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from profkit.capture.process.garbage_collections import (
    CollectionTimes,
    CollectorCallback,
    before_collections,
)


@pytest.fixture(autouse=True)
def program() -> Iterator[None]:
    """Keep objects that a collection passes over in some 20 ms, and callbacks of others away.

    Hypothesis adds one in Python, in which an exception of a handler is lost.
    """
    kept = [{"id": i, "tokens": [i, i + 1]} for i in range(100_000)]
    before = gc.callbacks[:]
    gc.callbacks.clear()
    yield
    gc.callbacks[:] = before
    del kept


@contextmanager
def called(callback: CollectorCallback | CollectionTimes) -> Iterator[None]:
    before = list(gc.callbacks)
    callback.begin()
    try:
        yield
    finally:
        callback.end()
    assert gc.callbacks == before


class TimeUpError(Exception):
    """What the program's handler raises."""


def collect_for(seconds: float) -> None:
    ends_s = time.monotonic() + seconds
    while time.monotonic() < ends_s:
        gc.collect()


@pytest.mark.parametrize(
    "callback",
    [
        lambda: before_collections(lambda _: None),
        lambda: CollectionTimes(threading.get_ident()),
    ],
)
def test_a_handler_of_the_program_ends_a_loop_of_collections(
    callback: Callable[[], CollectorCallback | CollectionTimes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.unraisablehook", pytest.fail)

    def handle(_number: int, _frame: object) -> None:
        raise TimeUpError

    before = signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, 0.01)
    try:
        with called(callback()), pytest.raises(TimeUpError):
            collect_for(10)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_function_is_called_with_the_generation_before_each_collection() -> None:
    generations: list[int] = []
    gc.disable()
    try:
        with called(before_collections(generations.append)):
            gc.collect(0)
            gc.collect()
        gc.collect()
    finally:
        gc.enable()
    assert generations == [0, 2]


def test_times_are_of_collections_of_one_thread() -> None:
    times = CollectionTimes(threading.get_ident())
    with called(times):
        began_ns = time.time_ns()
        gc.collect()
        ended_ns = time.time_ns()
        other = threading.Thread(target=gc.collect)
        other.start()
        other.join()
    gc.collect()

    longest = max(times.take(time.time_ns()), key=lambda span: span[1] - span[0])
    assert began_ns <= longest[0] < longest[1] <= ended_ns
    assert longest[1] - longest[0] > 0.5 * (ended_ns - began_ns)
    assert not [*times.take(time.time_ns())]


def test_a_collection_that_began_before_is_no_time() -> None:
    times = CollectionTimes(threading.get_ident())
    times._stops.append((5, threading.get_ident()))
    times._starts.append((7, threading.get_ident()))
    times._stops.append((9, threading.get_ident()))
    assert [*times.take(8)] == []
    assert [*times.take(10)] == [(7, 9)]


def test_a_program_that_empties_the_list_of_callbacks_is_left_alone() -> None:
    before = list(gc.callbacks)
    callback = before_collections(lambda _: None)
    callback.begin()
    gc.callbacks.clear()
    callback.end()
    assert gc.callbacks == []
    gc.callbacks[:] = before
