"""What the programs of this folder share: arguments, network and batch, and timing of steps.

A step's time is the wall time of many steps, from an idle device to an idle device, divided by
their number. The program synchronizes at these two places only, and both are after the first
twelve steps, unless the arguments say otherwise.

The network and its batches are large enough for a GPU to be busy longer than the host needs to
launch them: a program whose kernels are too small has a second problem.
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
    """Parse a program's arguments, set the seed, and allow TF32 matrix products.

    A program with float32 matrix products has a second problem.

    Args:
        description: The program's docstring.
        steps: The default number of timed steps.
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
    """Return whether the program runs on a CUDA device."""
    return bool(options.device.startswith("cuda"))


def scaled(options: argparse.Namespace, size: int, multiple: int = 8) -> int:
    """Return a size, reduced by ``--scale``.

    Args:
        size: The size on a GPU.
        multiple: The result is a multiple of this, so that the same kernels can be used.
    """
    return max(multiple, round(size * options.scale / multiple) * multiple)


def network(
    options: argparse.Namespace, *, layers: int = 4, width: int = WIDTH, kinds: int = KINDS
) -> nn.Sequential:
    """Layers of one width, and a last one for the scores of the classes, on the device.

    Args:
        layers: Layers except the last one.
        width: Their width on a GPU.
        kinds: Outputs.
    """
    width = scaled(options, width)
    parts = [part for _ in range(layers) for part in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(*parts, nn.Linear(width, kinds)).to(options.device)


def batch(
    options: argparse.Namespace, *, rows: int = ROWS, width: int = WIDTH, kinds: int = KINDS
) -> tuple[Tensor, Tensor]:
    """Return a batch of noise with random classes, created on the device.

    Args:
        rows: Rows on a GPU.
        width: The network's width on a GPU.
        kinds: The network's outputs.
    """
    rows, width = scaled(options, rows), scaled(options, width)
    x = torch.randn(rows, width, device=options.device)
    return x, torch.randint(kinds, (rows,), device=options.device)


def count(options: argparse.Namespace) -> int:
    """Return the number of steps that :func:`steps` counts."""
    return warm_up(options) + int(options.steps)


def warm_up(options: argparse.Namespace) -> int:
    """Return the number of untimed steps before the timed ones."""
    if options.warm_up is not None:
        return int(options.warm_up)
    return max(MIN_WARM_UP, int(options.steps * WARM_UP_SHARE))


def steps(options: argparse.Namespace) -> Iterator[int]:
    """Count steps, some untimed ones first, and print the step time at the end."""
    first = warm_up(options)
    yield from range(first)
    wait(options)
    began = time.perf_counter()
    yield from range(first, count(options))
    wait(options)
    seconds = time.perf_counter() - began
    print(f"{seconds / options.steps * 1000:.4f} ms per step over {options.steps} steps")


def wait(options: argparse.Namespace) -> None:
    """Wait until the device has finished all its work."""
    if on_cuda(options):
        torch.cuda.synchronize()


def told(what: str, value: Tensor | float) -> float:
    """Print a result, which the fix must not change, and return it.

    Args:
        what: Its name.
        value: The number.
    """
    number = float(value)
    print(f"{what} {number:.6g}")
    return number
