"""Programs that leak, each in another way, and programs that only seem to.

Their growth is measured here on the C heap, without profkit; ``test_leaks.py`` checks that profkit
reports the same.
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

from tests.examples.leak_cures import EXPECTED, LEAKS, PROGRAMS, write_cured

CLEAN: dict[str, dict[str, Any]] = EXPECTED["clean"]

IN_WORKERS = [name for name, facts in LEAKS.items() if facts.get("in_workers")]
"""Programs whose DataLoader workers leak."""

needs_glibc = pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="needs mallinfo2 of glibc"
)

needs_smaps = pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="needs smaps")

Figures = np.ndarray[Any, np.dtype[np.float64]]
Heap = Callable[[str, dict[str, Any]], Figures]


@pytest.fixture(scope="module")
def heap() -> Iterator[Heap]:
    """Bytes allocated on the C heap after each step of a program."""
    # By default Python takes small blocks from the heap one megabyte at a time.
    with _measuring({}) as usual, _measuring({"PYTHONMALLOC": "malloc"}) as in_pieces:

        def after_each_step(name: str, facts: dict[str, Any]) -> Figures:
            measuring = in_pieces if facts.get("in_small_pieces") else usual
            # A cured copy of a program has a path of its own.
            program = [facts.get("path", str(PROGRAMS / f"{name}.py")), *facts["arguments"]]
            return np.array(measuring(program), np.float64)

        yield after_each_step


@contextlib.contextmanager
def _measuring(environment: dict[str, str]) -> Iterator[Callable[[list[str]], list[int]]]:
    """Yield a process that measures programs, started with the first one."""
    processes: list[subprocess.Popen[str]] = []

    def measure(program: list[str]) -> list[int]:
        if not processes:
            process = subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("heap_by_step.py"))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={
                    **os.environ,
                    "OMP_NUM_THREADS": "1",
                    # On some processors MKL keeps buffers as large as its largest product.
                    "MKL_DISABLE_FAST_MM": "1",
                    "CUDA_VISIBLE_DEVICES": "",
                    **environment,
                },
                text=True,
            )
            processes.append(process)
        stdin, stdout = processes[0].stdin, processes[0].stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(json.dumps(program) + "\n")
        stdin.flush()

        figures: list[int] = json.loads(stdout.readline())
        assert figures, f"{program} failed"
        return figures

    try:
        yield measure
    finally:
        for process in processes:
            process.communicate()


def test_programs_and_expected_results_correspond() -> None:
    programs = sorted(path.stem for path in PROGRAMS.glob("*.py"))
    assert programs == sorted([*LEAKS, *CLEAN])
    assert len(LEAKS) >= 16
    assert len(CLEAN) >= 13
    assert all(name.startswith("clean_") for name in CLEAN)


@pytest.mark.parametrize("name", [*LEAKS, *CLEAN])
def test_a_program_does_not_import_profkit_and_marks_its_fault(name: str) -> None:
    program = (PROGRAMS / f"{name}.py").read_text()
    assert "profkit" not in program
    assert program.startswith('"""')
    assert program.splitlines()[0].endswith(".")
    assert program.count("# fault:") == (name in LEAKS)
    assert name in LEAKS or "allocated here" not in program
    assert f"Run: ``python examples/leaks/{name}.py" in program


def measure_workers(program: Path, facts: dict[str, Any]) -> float:
    """Return by how many bytes a program's DataLoader workers grow per step."""
    with _measuring({"HEAP_OF": "workers"}) as measured:
        n_bytes = np.array(measured([str(program), *facts["arguments"]]), np.float64)
    assert len(n_bytes) >= 20
    return float(np.median(np.diff(n_bytes[5:])) * len(n_bytes) / facts["steps"])


@needs_smaps
@pytest.mark.parametrize("name", IN_WORKERS)
def test_leaking_workers_grow_by_the_expected_bytes(name: str) -> None:
    per_step = measure_workers(PROGRAMS / f"{name}.py", LEAKS[name])
    assert per_step == pytest.approx(LEAKS[name]["per_step_bytes"], rel=0.15)


@needs_smaps
@pytest.mark.parametrize("name", IN_WORKERS)
def test_workers_of_a_cured_program_do_not_grow(name: str, tmp_path: Path) -> None:
    per_step = measure_workers(write_cured(name, tmp_path), LEAKS[name])
    assert per_step < 0.05 * LEAKS[name]["per_step_bytes"]


@pytest.mark.slow
@needs_glibc
@pytest.mark.parametrize("name", [name for name in LEAKS if name not in IN_WORKERS])
def test_the_heap_of_a_leaking_program_grows_by_the_expected_bytes(name: str, heap: Heap) -> None:
    n_bytes = heap(name, LEAKS[name])
    late = n_bytes[len(n_bytes) // 2 :]
    first, second = np.triu_indices(len(late), 1)
    slope = np.median((late[second] - late[first]) / (second - first))
    per_step = slope * len(n_bytes) / LEAKS[name]["steps"]
    assert per_step == pytest.approx(LEAKS[name]["per_step_bytes"], rel=0.1)


@pytest.mark.slow
@needs_glibc
@pytest.mark.parametrize("name", [name for name in LEAKS if name not in IN_WORKERS])
def test_the_heap_of_a_cured_program_is_stable(name: str, heap: Heap, tmp_path: Path) -> None:
    n_bytes = heap(name, {**LEAKS[name], "path": str(write_cured(name, tmp_path))})
    n_per_epoch = 16
    middle = n_bytes[len(n_bytes) // 2 :][:n_per_epoch].min()
    end = n_bytes[-n_per_epoch:].min()
    leaked = LEAKS[name]["per_step_bytes"] * LEAKS[name]["steps"] / 2
    assert end - middle < 0.05 * leaked


@pytest.mark.slow
@needs_glibc
@pytest.mark.parametrize("name", CLEAN)
def test_the_heap_of_a_clean_program_is_stable(name: str, heap: Heap) -> None:
    n_bytes = heap(name, CLEAN[name])
    n = len(n_bytes)
    middle = n_bytes[n * 45 // 100 : n * 65 // 100].min()
    end = n_bytes[n * 80 // 100 :].min()
    fluctuation = np.ptp(n_bytes[n * 45 // 100 :])
    assert end - middle < 64 * 1024 + 0.35 * n * 1024 + fluctuation / 3
