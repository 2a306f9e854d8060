"""Runs programs in turn, and prints the mean time of some of their steps: those profkit records.

A step is from the end of an optimizer step to the end of the next one, or with ``--calls`` from a
call of the model to the next one. Its CPU time is that of the main thread, which these programs run
on; without it, it is also what other programs took.

Run: ``python examples/truth/timed.py [--calls] STEPS PROGRAM [ARGS…] [-- PROGRAM [ARGS…]]``
"""

import json
import runpy
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook

FIRST: Final = 4
"""Steps that do not count: ``profkit run`` skips two and warms up in two."""
ORDER: Final[Sequence[int]] = (0, 1, 1, 0)
"""In which order two programs run: what drifts with time is the same for both."""
PREFIX: Final = "step times: "


def step_times(n_steps: int, command: Sequence[str], ends_ns: list[tuple[int, int]]) -> list[float]:
    """Run a program in this process.

    Args:
        n_steps: Steps that count.
        command: Its path and arguments.
        ends_ns: Takes wall and CPU time at the end of each step; is emptied first.

    Returns:
        The mean wall time and the mean CPU time of a step, in milliseconds.
    """
    if compiler := sys.modules.get("torch._dynamo"):
        compiler.reset()  # what another run has compiled
    ends_ns.clear()
    sys.argv = list(command)
    sys.path[0] = str(Path(sys.argv[0]).parent)
    runpy.run_path(sys.argv[0], run_name="__main__")
    first, last = ends_ns[FIRST - 1], ends_ns[FIRST - 1 + n_steps]
    return [round((end - begin) / n_steps / 1e6, 4) for begin, end in zip(first, last, strict=True)]


def main() -> None:
    """Run the programs of the command line."""
    ends_ns: list[tuple[int, int]] = []
    # Of several optimizers, and of modules in modules, the first one's calls are the steps.
    first: list[object] = []

    def note(caller: object, *_: Any) -> None:  # noqa: ANN401  (the hook's arguments)
        if not ends_ns:
            first[:] = [caller]
        if caller is first[0]:
            ends_ns.append((time.perf_counter_ns(), time.thread_time_ns()))

    if sys.argv[1] == "--calls":
        del sys.argv[1]
        register_module_forward_pre_hook(note)
    else:
        register_optimizer_step_post_hook(note)
    n_steps, words = int(sys.argv[1]), sys.argv[2:]
    commands, order = [words], ORDER[:1]
    if "--" in words:
        middle = words.index("--")
        commands, order = [words[:middle], words[middle + 1 :]], ORDER
    times: list[list[list[float]]] = [[] for _ in commands]
    for number in order:
        times[number].append(step_times(n_steps, commands[number], ends_ns))
    print(PREFIX + json.dumps(times), flush=True)


if __name__ == "__main__":
    main()
