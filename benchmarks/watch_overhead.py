"""What watching memory costs a step, as a share of the program's time.

Programs that do not leak, with 100,000 Python objects alive beside those of torch: steps of 20 ms,
for a second and for longer, and of 0.2 ms; each makes tensors and drops them. What is timed is each
call that tells the watcher of a step's end, in the processor's time of this thread: neither the
step's own noise nor other programs count. Then some that leak, where the closer looks come on top.
In a second the first look at all objects is most of it, and there can be no less than one.

Run it with ``python benchmarks/watch_overhead.py``.
"""

import statistics
import time

import torch
from torch import Tensor, nn

from profkit.capture.memory.monitor.leak_monitor import LeakMonitor

N_OBJECTS = 100_000
AIM_SHARE = 0.05
PROGRAMS = (
    ("20 ms, a second", 0.02, 50, False),
    ("20 ms", 0.02, 400, False),
    ("0.2 ms", 0.0002, 20_000, False),
    ("a second, leaking", 0.02, 50, True),
    ("20 ms, leaking", 0.02, 400, True),
)


def ballast() -> list[dict[str, list[int]]]:
    """Objects that the collector has to know of: a dict and a list each."""
    return [{"one": [place]} for place in range(N_OBJECTS // 2)]


def watched(step_s: float, n_steps: int, *, leaks: bool) -> tuple[list[float], float]:
    """Seconds that the watcher took at the end of each step, and of the whole run."""
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batch = torch.ones(4, 16)
    kept: list[Tensor] = []
    watcher = LeakMonitor("benchmark", "user")
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
        watcher.step()
        took.append(time.thread_time() - ended)
    whole = time.perf_counter() - began
    watcher.finish()
    return took, whole


def main() -> None:
    """Print one line a program."""
    kept = ballast()
    print(f"{N_OBJECTS:,} objects beside torch's; the aim is {AIM_SHARE:.0%} of a step of 20 ms")
    print(f"{'a step':18} {'share':>7} {'median':>10} {'99th':>10} {'first look':>11}")
    for name, step_s, n_steps, leaks in PROGRAMS:
        took, whole = watched(step_s, n_steps, leaks=leaks)
        after = sorted(took[1:])
        print(
            f"{name:18} {sum(took) / whole:7.1%} {statistics.median(after) * 1e6:7.1f} µs "
            f"{after[int(len(after) * 0.99)] * 1e6:7.0f} µs {took[0] * 1e3:8.0f} ms"
        )
    del kept


if __name__ == "__main__":
    main()
