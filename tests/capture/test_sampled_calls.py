"""Sampled stacks become lines of user code, and what these call."""

import linecache
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import profkit
from profkit.capture.process.thread_stacks import Call, Calls
from profkit.capture.recording.sampled_calls import (
    StackTime,
    find_callee,
    find_callee_of_frames,
    find_sampled_calls,
    is_own,
)
from profkit.capture.source.files import SourceFiles

MS = 1_000_000
HERE: Call = (__file__, 1, "main")
TORCH = str(Path(torch.__file__).parent)
PROFKIT = str(Path(profkit.__file__).parent)
SOURCE = """\
import gc
def main(rows, é):
    gc.collect(); x = 1
    y = float(torch.tensor(
        [é for é in rows]).to("cpu").sum())
    z = rows[0] + 1
    torch.save(y, open("f"))
    return [int(row) for row in rows]
"""


@pytest.fixture
def program(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.write_text(SOURCE, encoding="utf-8")
    linecache.clearcache()
    return str(path)


def find_instruction(program: str, function: str, text: str) -> int:
    """Find the place in the bytecode of the call whose source ends with a text."""
    code = compile(SOURCE, program, "exec")
    every: list[Any] = [code]
    for nested_code in every:
        every += [constant for constant in nested_code.co_consts if hasattr(constant, "co_code")]
    code = next(code for code in every if code.co_name == function)
    lines = [line.encode() for line in SOURCE.splitlines()]

    for number, (first, last, begin, end) in enumerate(code.co_positions()):
        if first is None or last is None or begin is None or end is None:
            continue
        own_lines = [*lines[first - 1 : last]]
        own_lines[-1] = own_lines[-1][:end]
        own_lines[0] = own_lines[0][begin:]
        if b"\n".join(own_lines).decode().endswith(text):
            return number * 2

    raise AssertionError(text)


@pytest.mark.parametrize(
    ("line", "text", "callee"),
    [
        (3, "gc.collect()", "gc.collect"),
        (4, "[é for é in rows])", "torch.tensor"),
        (5, 'to("cpu")', "to"),
        (4, ".sum())", "float"),
        (6, "rows[0] + 1", ""),
    ],
)
def test_a_place_in_the_bytecode_is_the_call_there(
    program: str, line: int, text: str, callee: str
) -> None:
    instruction = find_instruction(program, "main", text)
    assert find_callee(program, line, "main", instruction) == callee


def test_another_line_than_compiled_is_not_a_call(program: str) -> None:
    instruction = find_instruction(program, "main", "gc.collect()")
    assert find_callee(program, 5, "main", instruction) == ""
    assert find_callee("/nowhere.py", 3, "main", instruction) == ""
    assert find_callee(program, 3, "main", 100_000) == ""


@pytest.mark.parametrize(
    ("line", "frames", "callee"),
    [
        (7, ["save", "_save"], "torch.save"),
        (7, ["__call__"], ""),
        (3, ["wrapper"], "gc.collect"),
        (6, ["__add__"], ""),
    ],
)
def test_a_function_below_a_line_is_the_call_of_its_name(
    program: str, line: int, frames: list[str], callee: str
) -> None:
    assert find_callee_of_frames(program, line, frames) == callee


@pytest.mark.parametrize(
    ("below", "expected"),
    [
        ([(f"{PROFKIT}/capture/recording/session.py", 3, "stop")], True),
        ([(f"{PROFKIT}/capture/x.py", 3, "write"), (f"{sys.prefix}/x/gzip.py", 1, "write")], False),
        (
            [
                (f"{PROFKIT}/capture/recording/session.py", 3, "stop"),
                (f"{TORCH}/profiler/profiler.py", 3, "stop"),
            ],
            True,
        ),
        (
            [
                (f"{PROFKIT}/capture/x.py", 3, "wrapper"),
                (f"{TORCH}/optim/adam.py", 3, "step"),
            ],
            False,
        ),
        ([], False),
    ],
)
def test_profkits_own_functions_are_told_from_what_its_wrappers_call(
    below: Calls,
    expected: bool,  # noqa: FBT001
) -> None:
    assert is_own((HERE, *below), SourceFiles()) is expected


def sampled(calls: Calls, *spent: StackTime) -> list[tuple[str, str, str, int]]:
    stacks = {(calls, 2 * number): seconds for number, seconds in enumerate(spent)}
    lines = find_sampled_calls(stacks, SourceFiles(), max_waiting_ns=50 * MS)
    return [(line.callee, line.library, line.part, line.waiting_ns) for line in lines]


def test_the_library_is_the_one_that_the_line_calls() -> None:
    calls = (
        HERE,
        (f"{TORCH}/optim/adam.py", 3, "step"),
        (f"{TORCH}/_ops.py", 3, "__call__"),
    )
    assert sampled(calls, StackTime(1, 20 * MS))[0][1] == "torch"


def test_waits_are_at_most_those_that_the_system_counts() -> None:
    lines = sampled((HERE,), StackTime(5, 100 * MS, waiting_ns=100 * MS))
    assert lines[0][3] == 50 * MS


def test_backward_passes_and_loaders_are_parts_of_their_own() -> None:
    backward = (HERE, (f"{TORCH}/autograd/graph.py", 1, "_engine_run_backward"), HERE)
    loader = (HERE, (f"{TORCH}/utils/data/dataloader.py", 1, "__next__"), HERE)
    assert sampled(backward, StackTime(1, MS))[0][2] == "backward"
    assert sampled(loader, StackTime(1, MS))[0][2] == "data"


@pytest.mark.parametrize(
    ("spent", "is_named"),
    [
        (StackTime(3, 60 * MS, in_call_ns=60 * MS), True),
        (StackTime(3, 60 * MS, in_call_ns=20 * MS), False),
        (StackTime(1, 20 * MS, in_call_ns=20 * MS), False),
        (StackTime(1, 700 * MS, in_call_ns=700 * MS), True),
    ],
)
def test_a_call_without_frame_is_named_only_where_the_time_is_known_to_be_in_it(
    program: str,
    spent: StackTime,
    is_named: bool,  # noqa: FBT001
) -> None:
    instruction = find_instruction(program, "main", "gc.collect()")
    stacks: dict[tuple[Calls, int], StackTime] = {(((program, 3, "main"),), instruction): spent}
    (line,) = find_sampled_calls(stacks, SourceFiles(), 0)
    assert line.callee == ("gc.collect" if is_named else "")
