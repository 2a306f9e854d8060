"""Programs that leak, each in another way, and programs that look like it and do not.

That they do is measured here by the C heap, apart from profkit; ``test_leaks.py`` demands the same
of profkit.
"""

import contextlib
import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

PROGRAMS = Path(__file__).parents[2] / "examples" / "leaks"
EXPECTED = json.loads((PROGRAMS / "expected.json").read_text())
LEAKS: dict[str, dict[str, Any]] = EXPECTED["leaks"]
CLEAN: dict[str, dict[str, Any]] = EXPECTED["clean"]

IN_WORKERS = [name for name, facts in LEAKS.items() if facts.get("in_workers")]
"""Programs whose leak is in processes of their own."""

needs_glibc = pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="only glibc tells what its heap holds"
)

Figures = np.ndarray[Any, np.dtype[np.float64]]
Heap = Callable[[str, dict[str, Any]], Figures]


@pytest.fixture(scope="module")
def heap() -> Iterator[Heap]:
    """What the C heap held after each step of a program, in bytes."""
    # Python takes small pieces from the heap a megabyte at a time, unless it is told not to.
    with _measuring({}) as usual, _measuring({"PYTHONMALLOC": "malloc"}) as in_pieces:

        def after_each_step(name: str, facts: dict[str, Any]) -> Figures:
            measuring = in_pieces if facts.get("in_small_pieces") else usual
            program = [str(PROGRAMS / f"{name}.py"), *facts["arguments"]]
            return np.array(measuring(program), np.float64)

        yield after_each_step


@contextlib.contextmanager
def _measuring(environment: dict[str, str]) -> Iterator[Callable[[list[str]], list[int]]]:
    """A process that measures programs, begun with the first of them."""
    processes: list[subprocess.Popen[str]] = []

    def ask(program: list[str]) -> list[int]:
        if not processes:
            process = subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("heap_by_step.py"))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "",
                     **environment},
                text=True,
            )  # fmt: skip
            processes.append(process)
        asked, answered = processes[0].stdin, processes[0].stdout
        assert asked is not None
        assert answered is not None
        asked.write(json.dumps(program) + "\n")
        asked.flush()
        figures: list[int] = json.loads(answered.readline())
        assert figures, f"{program} failed"
        return figures

    try:
        yield ask
    finally:
        for process in processes:
            process.communicate()


def test_every_program_is_in_the_table_and_the_other_way_round() -> None:
    programs = sorted(path.stem for path in PROGRAMS.glob("*.py"))
    assert programs == sorted([*LEAKS, *CLEAN])
    assert len(LEAKS) >= 16
    assert len(CLEAN) >= 13
    assert all(name.startswith("clean_") for name in CLEAN)


@pytest.mark.parametrize("name", [*LEAKS, *CLEAN])
def test_a_program_knows_nothing_of_profkit_and_marks_its_fault(name: str) -> None:
    program = (PROGRAMS / f"{name}.py").read_text()
    assert "profkit" not in program
    assert program.startswith('"""')
    assert program.splitlines()[0].endswith(".")
    assert program.count("# fault:") == (name in LEAKS)
    assert name in LEAKS or "made here" not in program
    assert f"Run: ``python examples/leaks/{name}.py" in program


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="only Linux tells")
@pytest.mark.parametrize("name", IN_WORKERS)
def test_the_workers_of_a_program_that_leaks_there_grow_by_what_the_table_says(name: str) -> None:
    with _measuring({"HEAP_OF": "workers"}) as measured:
        program = [str(PROGRAMS / f"{name}.py"), *LEAKS[name]["arguments"]]
        bytes_held = np.array(measured(program), np.float64)
    assert len(bytes_held) >= 20
    slope = np.median(np.diff(bytes_held[5:]))
    per_step = slope * len(bytes_held) / LEAKS[name]["steps"]
    assert per_step == pytest.approx(LEAKS[name]["per_step_bytes"], rel=0.15)


@needs_glibc
@pytest.mark.parametrize("name", [name for name in LEAKS if name not in IN_WORKERS])
def test_the_heap_of_a_program_that_leaks_grows_by_what_the_table_says(
    name: str, heap: Heap
) -> None:
    bytes_held = heap(name, LEAKS[name])
    late = bytes_held[len(bytes_held) // 2 :]
    first, second = np.triu_indices(len(late), 1)
    slope = np.median((late[second] - late[first]) / (second - first))
    per_step = slope * len(bytes_held) / LEAKS[name]["steps"]
    assert per_step == pytest.approx(LEAKS[name]["per_step_bytes"], rel=0.1)


@needs_glibc
@pytest.mark.parametrize("name", CLEAN)
def test_the_heap_of_a_program_that_does_not_leak_stands_still(name: str, heap: Heap) -> None:
    bytes_held = heap(name, CLEAN[name])
    n = len(bytes_held)
    middle = bytes_held[n * 45 // 100 : n * 65 // 100].min()
    end = bytes_held[n * 80 // 100 :].min()
    up_and_down = np.ptp(bytes_held[n * 45 // 100 :])
    assert end - middle < 64 * 1024 + 0.35 * n * 1024 + up_and_down / 3
