"""Python allocations are attributed to source lines on request, but not while paused."""

import contextlib
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import torch

from profkit.capture.memory.monitor import own_tracing
from profkit.capture.memory.monitor.own_tracing import OwnTracing
from profkit.capture.memory.monitor.tracemalloc_lines import (
    COMPILER_LINE,
    NO_LINE,
    PROFKIT_LINE,
    GrowthSampler,
    TracemallocLines,
    lines_alive,
    user_line,
)
from profkit.capture.process import program, wrappers
from profkit.capture.source.user_code import UserCode


@pytest.fixture(autouse=True)
def _untraced() -> Iterator[None]:
    yield
    if tracemalloc.is_tracing():
        tracemalloc.stop()


def bytes_of(lines: TracemallocLines, code: str) -> int:
    source = Path(__file__).read_text(encoding="utf-8").splitlines()
    return sum(
        n_bytes
        for (file, line, _), n_bytes in lines.bytes_by_line.items()
        if file == __file__ and code in source[line - 1]
    )


def test_bytes_that_stay_alive_are_counted_by_line() -> None:
    lines = TracemallocLines(enabled=True)
    lines.begin()
    kept = [bytes(10_000) for _ in range(50)]  # stays
    for _ in range(50):
        bytes(10_000)  # goes
    with lines.paused():
        assert not tracemalloc.is_tracing()
        uncounted = [bytes(10_000) for _ in range(50)]  # while paused
    kept += [bytes(10_000) for _ in range(10)]  # stays too
    with lines.paused():
        pass
    lines.end()

    assert 500_000 <= bytes_of(lines, "# stays") - bytes_of(lines, "# stays too") < 510_000
    assert 100_000 <= bytes_of(lines, "# stays too") < 110_000
    assert bytes_of(lines, "# goes") < 20_000
    assert bytes_of(lines, "# while paused") == 0
    assert not tracemalloc.is_tracing()
    assert len(kept) + len(uncounted) == 110


def test_what_the_program_allocates_below_a_wrapper_of_profkit_is_its_own() -> None:
    kept: list[bytes] = []
    called = wrappers.before(lambda _self, n: kept.append(bytes(n)), lambda _self: None)
    lines = TracemallocLines(enabled=True)
    lines.begin()
    for _ in range(20):
        called(None, 10_000)
    with lines.paused():
        pass
    lines.end()
    assert 200_000 <= bytes_of(lines, "kept.append") < 210_000

    def in_library(place: str) -> tracemalloc.Traceback:
        return tracemalloc.Traceback([(place, 3), (wrappers.__file__, 2), (__file__, 1)])

    user_code = UserCode()
    library = "/lib/python3/site-packages/them.py"
    assert user_line(in_library(library), user_code) == (__file__, 1, "")
    assert user_line(in_library(own_tracing.__file__), user_code) == PROFKIT_LINE
    assert user_line(tracemalloc.Traceback([(program.__file__, 1)]), user_code) is None


def test_tracing_started_by_the_program_is_left_alone() -> None:
    tracemalloc.start(7)
    lines = TracemallocLines(enabled=True)
    lines.begin()
    with lines.paused():
        assert tracemalloc.is_tracing()
    lines.end()
    assert tracemalloc.get_traceback_limit() == 7
    assert tracemalloc.is_tracing()
    assert (lines.bytes_by_line, lines.own_bytes()) == ({}, 0)


def test_nothing_is_traced_by_default() -> None:
    lines = TracemallocLines()
    lines.begin()
    with lines.paused():
        assert not tracemalloc.is_tracing()
    lines.end()
    assert lines.bytes_by_line == {}


@pytest.mark.parametrize("use", ["start", "is_tracing", "get_traced_memory", "take_snapshot"])
def test_a_program_that_uses_tracemalloc_finds_it_as_without_profkit(use: str) -> None:
    functions = {name: getattr(tracemalloc, name) for name in dir(tracemalloc)}
    tracing = OwnTracing()
    assert tracing.begin(4)

    kept = bytes(10_000)
    for thing in (kept, torch.zeros(3), OwnTracing()):
        traceback = tracing.traceback_of(thing)
        assert traceback is not None
        assert traceback[-1].filename in {__file__, OwnTracing.__init__.__code__.co_filename}
    assert sum(n_bytes for _, n_bytes in tracing.statistics()) > 10_000

    with contextlib.suppress(RuntimeError):
        getattr(tracemalloc, use)(*[7] * (use == "start"))
    assert not tracing.is_on
    assert {name: getattr(tracemalloc, name) for name in dir(tracemalloc)} == functions

    tracing.end()
    assert tracemalloc.is_tracing() == (use == "start")
    assert tracing.begin(4) == (use != "start")

    tracing.end()
    assert (tracing.statistics(), tracing.traceback_of(kept), tracing.own_bytes()) == ([], None, 0)
    if use == "start":
        assert tracemalloc.get_traceback_limit() == 7


def test_growth_is_not_traced_over_the_program_s_own_tracing() -> None:
    growth = GrowthSampler()
    growth.begin(1)
    tracemalloc.start(7)
    growth.advance(growth.next_step)
    growth.end()
    assert (growth.next_step, growth.per_step) == (0, None)
    assert tracemalloc.get_traceback_limit() == 7


def test_what_a_compiler_allocates_below_library_code_alone_has_a_line_of_its_own() -> None:
    def traced(*files: str) -> tuple[tracemalloc.Traceback, int]:
        return tracemalloc.Traceback([(file, 1) for file in reversed(files)]), 100

    library = "/lib/python3/site-packages"
    tracing = SimpleNamespace(
        statistics=lambda: [
            traced(f"{library}/torch/_dynamo/guards.py", f"{library}/sympy/core.py"),
            traced(f"{library}/numpy/core.py"),
            traced(__file__, f"{library}/torch/fx/graph.py"),
        ]
    )
    lines = lines_alive(cast("OwnTracing", tracing), UserCode())
    assert lines == {COMPILER_LINE: 100, NO_LINE: 100, (__file__, 1, ""): 100}
