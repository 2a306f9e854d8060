"""What the programs of this folder share: their arguments, what they train, how long steps take.

A step's time is the wall time of many steps, from a device that is idle to one that is idle again,
divided by their number. Only at these two places does it wait for the device, and neither lies
among the first twelve steps, unless it is told so.

The network and its batches are large enough for a GPU to be busy longer than the host needs to
launch them: a program whose kernels are too small has a second fault.
"""

import argparse
import time
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn

WARM_UP_SHARE = 0.25
MIN_WARM_UP = 12
WIDTH = 2048
ROWS = 4096
KINDS = 10


def options(
    description: str | None,
    *,
    steps: int,
    arguments: Sequence[str] | None = None,
    more: Callable[[argparse.ArgumentParser], object] | None = None,
) -> argparse.Namespace:
    """Read a program's arguments, and set what all programs begin with.

    That is the seed, and matrix products in TF32: a program that does them in full float32 has a
    second fault.

    Args:
        description: The program's docstring.
        steps: How many steps are timed if nobody says otherwise.
        arguments: The arguments, or None for those of the command line.
        more: Adds the program's own arguments.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cured", action="store_true", help="run the cure instead of the fault")
    parser.add_argument("--steps", type=int, default=steps, help=f"steps to time ({steps})")
    parser.add_argument(
        "--warm-up", type=int, metavar="N", help="steps before those (a quarter, at least 12)"
    )
    parser.add_argument(
        "--scale", type=float, default=1.0, help="share of the work in a step, for small machines"
    )
    parser.add_argument(
        "--device", default="cuda" if torch.cuda.is_available() else "cpu", help="where to run"
    )
    if more is not None:
        more(parser)
    torch.manual_seed(1)
    torch.set_float32_matmul_precision("high")
    return parser.parse_args(arguments)


def on_cuda(options: argparse.Namespace) -> bool:
    """Whether the program runs on a GPU of CUDA."""
    return bool(options.device.startswith("cuda"))


def scaled(options: argparse.Namespace, size: int, multiple: int = 8) -> int:
    """A size, made smaller by ``--scale``.

    Args:
        options: The program's arguments.
        size: The size on a GPU.
        multiple: What it stays a multiple of, so that the same kernels can serve it.
    """
    return max(multiple, round(size * options.scale / multiple) * multiple)


def network(
    options: argparse.Namespace, *, layers: int = 4, width: int = WIDTH, kinds: int = KINDS
) -> nn.Sequential:
    """Layers of one width, and a last one that scores kinds, on the device.

    Args:
        options: The program's arguments.
        layers: Layers but for the last.
        width: Their width on a GPU.
        kinds: Outputs.
    """
    width = scaled(options, width)
    parts = [part for _ in range(layers) for part in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(*parts, nn.Linear(width, kinds)).to(options.device)


def batch(
    options: argparse.Namespace, *, rows: int = ROWS, width: int = WIDTH, kinds: int = KINDS
) -> tuple[Tensor, Tensor]:
    """A batch of noise and its kinds, made on the device.

    Args:
        options: The program's arguments.
        rows: Rows on a GPU.
        width: The network's width on a GPU.
        kinds: The network's outputs.
    """
    rows, width = scaled(options, rows), scaled(options, width)
    x = torch.randn(rows, width, device=options.device)
    return x, torch.randint(kinds, (rows,), device=options.device)


def count(options: argparse.Namespace) -> int:
    """How many steps :func:`steps` will count."""
    return warm_up(options) + int(options.steps)


def warm_up(options: argparse.Namespace) -> int:
    """How many of them come before those that are timed."""
    if options.warm_up is not None:
        return int(options.warm_up)
    return max(MIN_WARM_UP, int(options.steps * WARM_UP_SHARE))


def steps(options: argparse.Namespace) -> Iterator[int]:
    """Count steps, a few untimed ones first, and print what one took in the end.

    Args:
        options: The program's arguments.
    """
    first = warm_up(options)
    yield from range(first)
    wait(options)
    began = time.perf_counter()
    yield from range(first, count(options))
    wait(options)
    seconds = time.perf_counter() - began
    print(f"{seconds / options.steps * 1000:.4f} ms a step over {options.steps} steps")


def wait(options: argparse.Namespace) -> None:
    """Wait until the device has done all its work.

    Args:
        options: The program's arguments.
    """
    if on_cuda(options):
        torch.cuda.synchronize()


def told(what: str, value: Tensor | float) -> float:
    """Print what came of it all, which a cure must not change, and return it.

    Args:
        what: What it is.
        value: The number.
    """
    number = float(value)
    print(f"{what} {number:.6g}")
    return number
