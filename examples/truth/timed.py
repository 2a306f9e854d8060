"""Runs a program without profkit, and prints the median time between its optimizer steps.

Run: ``python examples/truth/timed.py PROGRAM [ARGS…]``
"""

import json
import runpy
import statistics
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from torch.optim.optimizer import register_optimizer_step_post_hook

FIRST: Final = 4
"""Steps that do not count, as under ``profkit run``."""
PREFIX: Final = "step times: "


def main() -> None:
    """Run the program of the command line."""
    ends_ns: list[int] = []

    def note(*_: Any) -> None:  # noqa: ANN401  (the hook's arguments)
        ends_ns.append(time.perf_counter_ns())

    register_optimizer_step_post_hook(note)
    sys.argv = sys.argv[1:]
    sys.path[0] = str(Path(sys.argv[0]).parent)
    runpy.run_path(sys.argv[0], run_name="__main__")
    steps = [end - begin for begin, end in pairwise(ends_ns)][FIRST - 1 :]
    facts = {"n": len(steps), "median_ms": round(statistics.median(steps) / 1e6, 4)}
    print(PREFIX + json.dumps(facts), flush=True)


if __name__ == "__main__":
    main()
