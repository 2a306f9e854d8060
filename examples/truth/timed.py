"""Runs a program, and prints the mean time of some of its steps: those that profkit records.

A step is from the end of an optimizer step to the end of the next one. Its CPU time is that of the
main thread, which these programs run on; without it, it is also what other programs took.

Run: ``python examples/truth/timed.py STEPS PROGRAM [ARGS…]``
"""

import json
import runpy
import sys
import time
from pathlib import Path
from typing import Any, Final

from torch.optim.optimizer import register_optimizer_step_post_hook

FIRST: Final = 4
"""Steps that do not count: ``profkit run`` skips two and warms up in two."""
PREFIX: Final = "step times: "


def main() -> None:
    """Run the program of the command line."""
    ends_ns: list[tuple[int, int]] = []

    def note(*_: Any) -> None:  # noqa: ANN401  (the hook's arguments)
        ends_ns.append((time.perf_counter_ns(), time.thread_time_ns()))

    register_optimizer_step_post_hook(note)
    n_steps, sys.argv = int(sys.argv[1]), sys.argv[2:]
    sys.path[0] = str(Path(sys.argv[0]).parent)
    runpy.run_path(sys.argv[0], run_name="__main__")
    first, last = ends_ns[FIRST - 1], ends_ns[FIRST - 1 + n_steps]
    wall_ms, cpu_ms = (
        round((end - begin) / n_steps / 1e6, 4) for begin, end in zip(first, last, strict=True)
    )
    print(PREFIX + json.dumps({"wall_ms": wall_ms, "cpu_ms": cpu_ms}), flush=True)


if __name__ == "__main__":
    main()
