"""The overhead of memory monitoring per step, as a share of the program's time.

Programs that do not leak, with 100,000 Python objects alive beside those of torch: steps of 20 ms,
for a second and for longer, and of 0.2 ms; each makes tensors and drops them. Only the
calls that end a step are timed, in CPU time of this thread, so that neither noise of the steps nor
other processes count. Two more programs leak, which adds inspections. In a run of one second most
of the overhead is the first scan of all objects, which is always made.

Run it with ``python benchmarks/watch_overhead.py``.
"""

import statistics
import time

import torch
from torch import Tensor, nn

from profkit.capture.memory.monitor.leak_monitor import LeakMonitor

N_OBJECTS = 100_000
TARGET_SHARE = 0.05
PROGRAMS = (
    ("20 ms, a second", 0.02, 50, False),
    ("20 ms", 0.02, 400, False),
    ("0.2 ms", 0.0002, 20_000, False),
    ("a second, leaking", 0.02, 50, True),
    ("20 ms, leaking", 0.02, 400, True),
)


def ballast() -> list[dict[str, list[int]]]:
    """Objects that the garbage collector tracks: dicts with a list each."""
    return [{"one": [place]} for place in range(N_OBJECTS // 2)]


def monitored(step_s: float, n_steps: int, *, leaks: bool) -> tuple[list[float], float]:
    """Seconds spent by the monitor at the end of each step, and of the whole run."""
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batch = torch.ones(4, 16)
    kept: list[Tensor] = []
    monitor = LeakMonitor("benchmark", "user")
    took = []
    began = time.perf_counter()
    for _ in range(n_steps):
        until = time.perf_counter() + step_s
        loss = model(batch).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if leaks:
            kept.append(torch.zeros(4096))
        time.sleep(max(until - time.perf_counter(), 0))
        ended = time.thread_time()
        monitor.step()
        took.append(time.thread_time() - ended)
    whole = time.perf_counter() - began
    monitor.finish()
    return took, whole


def main() -> None:
    """Print one line per program."""
    kept = ballast()
    print(
        f"{N_OBJECTS:,} objects beside torch's; the target is {TARGET_SHARE:.0%} of a step of 20 ms"
    )
    print(f"{'step':18} {'share':>7} {'median':>10} {'99th':>10} {'first scan':>11}")
    for name, step_s, n_steps, leaks in PROGRAMS:
        took, whole = monitored(step_s, n_steps, leaks=leaks)
        after = sorted(took[1:])
        print(
            f"{name:18} {sum(took) / whole:7.1%} {statistics.median(after) * 1e6:7.1f} µs "
            f"{after[int(len(after) * 0.99)] * 1e6:7.0f} µs {took[0] * 1e3:8.0f} ms"
        )
    del kept


if __name__ == "__main__":
    main()
