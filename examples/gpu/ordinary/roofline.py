"""Runs a large matrix product, a copy and a softmax, and prints what each of them reaches.

Bytes count what is read and what is written. The times are those of CUDA events around twenty
calls, so they are independent of any profiler.

Run: ``python examples/gpu/ordinary/roofline.py [--device cuda] [--size N]``
"""

import argparse
import time
from collections.abc import Callable

import torch

N_CALLS = 20
N_ROUNDS = 8


def seconds_of(work: Callable[[], object], device: torch.device) -> float:
    """Seconds of one call, from an idle device to an idle device, the mean of twenty.

    Args:
        work: What is measured.
        device: Where it runs.
    """
    work()
    if device.type != "cuda":
        began_s = time.perf_counter()
        for _ in range(N_CALLS):
            work()
        return (time.perf_counter() - began_s) / N_CALLS
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(N_CALLS):
        work()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1000 / N_CALLS


def main() -> None:
    """Measure, print, and repeat it as the steps of a program would."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--size", type=int, default=8192)
    options = parser.parse_args()
    device, size = torch.device(options.device), options.size

    a, b = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    values = torch.randn(size, 4 * size, device=device)
    target = torch.empty_like(values)

    def product() -> None:
        a @ b

    def copy() -> None:
        target.copy_(values)

    def softmax() -> None:
        torch.softmax(values, -1)

    moved_bytes = 2 * values.nbytes
    for _ in range(N_ROUNDS):
        product_s, copy_s = seconds_of(product, device), seconds_of(copy, device)
        softmax_s = seconds_of(softmax, device)
    print(f"product {2 * size**3 / product_s / 1e12:.4g} TFLOP/s")
    print(f"copy {moved_bytes / copy_s / 1e9:.5g} GB/s")
    print(f"softmax {moved_bytes / softmax_s / 1e9:.5g} GB/s")


if __name__ == "__main__":
    main()
