"""Calls are counted exactly, and profile functions of the program come first."""

import cProfile
import os
import sys
from collections.abc import Callable, Iterator

import pytest

from profkit.capture.recording.call_counter import CallCounter


@pytest.fixture
def counter() -> Iterator[CallCounter]:
    counter = CallCounter()
    yield counter
    counter.stop()
    assert sys.getprofile() is None


def double(number: int) -> int:
    return abs(number) + abs(number)


def test_calls_of_functions_in_python_and_in_c_are_counted(counter: CallCounter) -> None:
    counter.start()
    for number in range(1000):
        double(number)
    n_calls = counter.stop()
    assert n_calls is not None
    assert 3000 < n_calls < 3010, "besides, only those of the counter itself"
    assert counter.stop() is None
    assert "profiler" not in repr(sys.getprofile()).lower()


def test_each_start_counts_from_zero(counter: CallCounter) -> None:
    counter.start()
    double(1)
    counter.start()
    double(1)
    n_calls = counter.stop()
    assert n_calls is not None
    assert 3 <= n_calls < 13


def set_profile_function() -> Callable[[], None]:
    sys.setprofile(lambda *_: None)
    return lambda: sys.setprofile(None)


def enable_cprofile() -> Callable[[], None]:
    profile = cProfile.Profile()
    profile.enable()
    return profile.disable


@pytest.mark.parametrize("begin", [set_profile_function, enable_cprofile])
def test_a_profile_function_of_the_program_is_neither_replaced_nor_hindered(
    counter: CallCounter, begin: Callable[[], Callable[[], None]]
) -> None:
    counter.start()
    end = begin()
    functions = sys.getprofile()
    assert counter.stop() is None, "what was counted until then is no whole step"
    assert sys.getprofile() is functions
    counter.start()
    assert sys.getprofile() is functions
    double(1)
    end()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_forked_child_can_stop_counting(counter: CallCounter) -> None:
    counter.start()
    child = os.fork()
    if child == 0:
        counter.stop()
        os._exit(0 if sys.getprofile() is None else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
