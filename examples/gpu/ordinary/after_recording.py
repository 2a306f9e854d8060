"""What a step costs after ``torch.profiler`` has stopped, compared with before.

Kineto leaves CUPTI attached when a recording stops, unless the variable ``TEARDOWN_CUPTI`` is 1:
calls of CUDA stay slower than they were. In one process, steps are timed before any profiler, after
one, and after one with the variable; and the same of a step that replays a CUDA graph, with a
recording of the replays at the end, which must have their kernels.

Run: ``python examples/gpu/ordinary/after_recording.py [--device cuda]``
"""

import argparse
import os
import time
from collections.abc import Callable
from typing import Final

import torch
from torch import nn

N_STEPS: Final = 60
N_FIRST: Final = 10
WIDTH: Final = 256
LAYERS: Final = 60
TEARDOWN: Final = "TEARDOWN_CUPTI"

Step = Callable[[], object]


def training_step(device: torch.device) -> Step:
    """Return a training step of many small layers: it is bound by the launches of its kernels."""
    torch.manual_seed(0)
    network = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))).to(device)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    batch = torch.randn(64, WIDTH, device=device)

    def step() -> None:
        optimizer.zero_grad()
        network(batch).square().mean().backward()
        optimizer.step()

    return step


def replayed(step: Step) -> Step:
    """Return a step as one CUDA graph.

    Args:
        step: Is run three times on another stream, and captured.
    """
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def timed_ms(step: Step, wait: Step) -> float:
    """Milliseconds of a step, the mean of many, from an idle device to an idle device."""
    for _ in range(N_FIRST):
        step()
    wait()
    began_s = time.perf_counter()
    for _ in range(N_STEPS):
        step()
    wait()
    return (time.perf_counter() - began_s) / N_STEPS * 1000


def n_device_events(step: Step) -> int:
    """Record three steps, and count their events of devices."""
    with torch.profiler.profile(record_shapes=True, profile_memory=True) as recording:
        for _ in range(3):
            step()
    return sum(event.device_type.name != "CPU" for event in recording.events())


def compare(name: str, step: Step, wait: Step) -> None:
    """Print what a step takes before and after recordings."""
    print(f"{name}, before: {timed_ms(step, wait):.3f} ms", flush=True)
    print(f"{name}, {n_device_events(step)} events of devices in a recording", flush=True)
    print(f"{name}, after it: {timed_ms(step, wait):.3f} ms", flush=True)
    os.environ[TEARDOWN] = "1"
    print(f"{name}, {n_device_events(step)} in one that detaches CUPTI", flush=True)
    print(f"{name}, after that: {timed_ms(step, wait):.3f} ms", flush=True)
    print(f"{name}, {n_device_events(step)} in another one", flush=True)
    del os.environ[TEARDOWN]
    print(f"{name}, {n_device_events(step)} in one that leaves it", flush=True)
    print(f"{name}, after that: {timed_ms(step, wait):.3f} ms", flush=True)


def main() -> None:
    """Compare a step and its replay."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    device = torch.device(options.device)
    is_on_gpu = device.type == "cuda"
    wait: Step = torch.cuda.synchronize if is_on_gpu else (lambda: None)

    step = training_step(device)
    compare("step", step, wait)
    if is_on_gpu:
        compare("replay", replayed(step), wait)


if __name__ == "__main__":
    main()
