"""Starts a program when it is its turn, with torch imported ahead.

Programs that are timed must not share the GPU. Importing torch takes longer than most of them run,
and needs no GPU: it is done while another one has its turn.

Run: ``python gate.py [--snapshot FILE] PROGRAM [ARGUMENT…]`` or ``… -m MODULE [ARGUMENT…]``. It
writes a line when it is ready, and begins when it has read one.

``--snapshot`` is for a program that runs within ``profkit run``, which keeps the history of CUDA's
memory: after the last step, when the program still has all that it holds, a snapshot is written.
"""

import argparse
import contextlib
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path

READY = "ready"
PROGRAMS = Path(__file__).resolve().parents[1]


def write_snapshot_after_the_steps(target: Path) -> None:
    """Have a snapshot written when the program's last step is through.

    Args:
        target: The file.
    """
    sys.path.insert(0, str(PROGRAMS))
    import measured  # noqa: PLC0415  (only now can it be found)

    from profkit.capture.memory.cuda import history  # noqa: PLC0415  (a bare run has no profkit)
    from profkit.errors import CaptureError  # noqa: PLC0415

    steps = measured.steps

    def steps_and_snapshot(options: argparse.Namespace) -> Iterator[int]:
        yield from steps(options)
        with contextlib.suppress(CaptureError):  # on a CPU there is none
            history.dump(target)

    measured.steps = steps_and_snapshot


def main() -> None:
    """Import torch, wait for the turn, run the program as python would."""
    import torch  # noqa: F401, PLC0415  (what takes long)

    del sys.argv[0]
    if sys.argv[0] == "--snapshot":
        write_snapshot_after_the_steps(Path(sys.argv[1]).absolute())
        del sys.argv[:2]
    print(READY, flush=True)
    if not sys.stdin.readline():
        return  # who gives the turns is gone
    if sys.argv[0] == "-m":
        del sys.argv[0]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = str(Path(sys.argv[0]).resolve().parent)
        runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
