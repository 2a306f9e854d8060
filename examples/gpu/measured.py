"""What the programs of this folder share: their arguments, and how long their steps take.

A step's time is the wall time of many steps, from a device that is idle to one that is idle again,
divided by their number. Only at these two places does it wait for the device.
"""

import argparse
import time
from collections.abc import Iterator, Sequence

import torch

WARM_UP_SHARE = 0.25
MIN_WARM_UP = 12


def options(
    description: str | None, *, steps: int, arguments: Sequence[str] | None = None
) -> argparse.Namespace:
    """Read a program's arguments: ``cured``, ``steps``, ``device`` and ``scale``.

    Args:
        description: The program's docstring.
        steps: How many steps are timed if nobody says otherwise.
        arguments: The arguments, or None for those of the command line.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cured", action="store_true", help="run the cure instead of the fault")
    parser.add_argument("--steps", type=int, default=steps, help=f"steps to time ({steps})")
    parser.add_argument(
        "--scale", type=float, default=1.0, help="share of the work in each step, for small machines"
    )
    parser.add_argument(
        "--device", default="cuda" if torch.cuda.is_available() else "cpu", help="where to run"
    )
    return parser.parse_args(arguments)


def scaled(options: argparse.Namespace, size: int, multiple: int = 8) -> int:
    """A size, made smaller by ``--scale``.

    Args:
        options: The program's arguments.
        size: The size on a GPU.
        multiple: What it stays a multiple of, so that the same kernels can serve it.
    """
    return max(multiple, round(size * options.scale / multiple) * multiple)


def steps(options: argparse.Namespace) -> Iterator[int]:
    """Count steps, a few untimed ones first, and print what one took in the end.

    Args:
        options: The program's arguments.
    """
    warm_up = max(MIN_WARM_UP, int(options.steps * WARM_UP_SHARE))
    yield from range(warm_up)
    wait(options)
    began = time.perf_counter()
    yield from range(warm_up, warm_up + options.steps)
    wait(options)
    seconds = time.perf_counter() - began
    print(f"{seconds / options.steps * 1000:.4f} ms a step over {options.steps} steps")


def wait(options: argparse.Namespace) -> None:
    """Wait until the device has done all its work.

    Args:
        options: The program's arguments.
    """
    if options.device.startswith("cuda"):
        torch.cuda.synchronize()
