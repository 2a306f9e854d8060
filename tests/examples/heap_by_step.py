"""Runs programs and prints the size of the C heap after each step: an independent leak check.

It does not use profkit. glibc reports how many bytes are allocated: on a CPU that is every tensor
and every graph node, and Python objects above 512 bytes. Each line of stdin is a program and its
arguments, as a JSON list; the reply is a line with a JSON list of bytes, one per step, or null if
the program failed. With ``HEAP_OF=workers`` in the environment the values are, at every tenth step,
the private bytes of the program's child processes. Each program runs in a fork, so that torch is
imported once.

Run: ``echo '["examples/leaks/losses_kept.py", "50"]' | python tests/examples/heap_by_step.py``
"""

import ctypes
import itertools
import json
import multiprocessing
import os
import runpy
import sys
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import dataloader


class HeapFigures(ctypes.Structure):
    """glibc's ``struct mallinfo2``.

    Source: https://man7.org/linux/man-pages/man3/mallinfo.3.html
    """

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        )
    )


C = ctypes.CDLL(None)
C.mallinfo2.restype = HeapFigures


def bytes_in_use() -> int:
    """Bytes allocated on the C heap, in small and in mapped blocks."""
    figures = C.mallinfo2()
    return int(figures.uordblks) + int(figures.hblkhd)


def bytes_in_workers() -> int:
    """Private bytes of the program's child processes."""
    maps = [
        Path(f"/proc/{process.pid}/smaps").read_text().splitlines()
        for process in multiprocessing.active_children()
    ]
    return 1024 * sum(
        int(line.split()[1]) for lines in maps for line in lines if line.startswith("Private_")
    )


def run(program: Sequence[str]) -> list[int]:
    """Run a program; bytes after each optimizer step, or else at each batch."""
    steps: list[int | None] = []
    batches: list[int] = []
    figure = _of_workers() if os.environ.get("HEAP_OF") == "workers" else iter(bytes_in_use, None)
    loader: Any = dataloader._BaseDataLoaderIter
    original = loader.__next__

    def next_batch(one: Any) -> Any:  # noqa: ANN401
        batches.append(bytes_in_use())
        return original(one)

    loader.__next__ = next_batch
    register_optimizer_step_post_hook(lambda *_: steps.append(next(figure)))
    sys.argv = list(program)
    try:
        runpy.run_path(program[0], run_name="__main__")
    except SystemExit as end:
        if end.code:
            raise
    return [step for step in steps if step is not None] or batches


def _of_workers() -> Iterator[int | None]:
    """Bytes at every tenth step, as measuring takes as long as ten steps."""
    for step in itertools.count(1):
        yield None if step % 10 else bytes_in_workers()


def run_in_fork(program: Sequence[str]) -> str:
    """Run a program in a fork; the reply."""
    source, sink = os.pipe()
    child = os.fork()

    if child == 0:
        reply = "null"
        os.dup2(2, 1)
        try:
            reply = json.dumps(run(program))
        except BaseException:  # noqa: BLE001  (any error of the program)
            traceback.print_exc()
        with os.fdopen(sink, "w") as out:
            out.write(reply)
        os._exit(0)

    os.close(sink)
    with os.fdopen(source) as pipe:
        reply = pipe.read()
    os.waitpid(child, 0)
    return reply or "null"


if __name__ == "__main__":
    for line in sys.stdin:
        sys.stdout.write(run_in_fork(json.loads(line)) + "\n")
        sys.stdout.flush()
