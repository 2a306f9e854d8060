"""Starts a program when it may use the GPU, with torch imported ahead.

Timed programs must not share the GPU. Importing torch takes longer than most of them run, and does
not need the GPU: it is done while another program uses it.

Run: ``python gate.py [--snapshot FILE] PROGRAM [ARGUMENT…]`` or ``… -m MODULE [ARGUMENT…]``. It
writes a line when it is ready, and begins when it has read one.

``--snapshot`` records the history of CUDA memory, and writes a snapshot after the last step, while
the program still has its tensors.
"""

import argparse
import contextlib
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path

READY = "ready"
PROGRAMS = Path(__file__).resolve().parents[1]
N_ENTRIES = 100_000
"""Entries of the history: all of a program of this folder."""


def write_snapshot_after_the_steps(target: Path) -> None:
    """Write a snapshot to a file when the program's last step has ended."""
    sys.path.insert(0, str(PROGRAMS))
    import measured  # noqa: PLC0415  (the path is set just now)
    import torch  # noqa: PLC0415  (see main)

    from profkit.capture.memory.cuda import history  # noqa: PLC0415  (a bare run has no profkit)
    from profkit.errors import CaptureError  # noqa: PLC0415

    if torch.cuda.is_available():
        # profkit leaves a history alone that the program records.
        torch.cuda.memory._record_memory_history(max_entries=N_ENTRIES)  # noqa: SLF001
    steps = measured.steps

    def steps_and_snapshot(options: argparse.Namespace) -> Iterator[int]:
        yield from steps(options)
        with contextlib.suppress(CaptureError):  # on a CPU there is none
            history.dump(target)

    measured.steps = steps_and_snapshot


def main() -> None:
    """Import torch, wait for the GPU, run the program as python would."""
    import torch  # noqa: F401, PLC0415  (takes long)

    del sys.argv[0]
    print(READY, flush=True)
    if not sys.stdin.readline():
        return  # the parent has exited
    if sys.argv[0] == "--snapshot":
        write_snapshot_after_the_steps(Path(sys.argv[1]).absolute())
        del sys.argv[:2]
    if sys.argv[0] == "-m":
        del sys.argv[0]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = str(Path(sys.argv[0]).resolve().parent)
        runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
