"""Libraries that run the program's loop or its model, whose options a fix has to name.

What such a library makes itself, such as an optimizer or a loader, the program cannot construct
with other arguments.
"""

from enum import StrEnum
from typing import Final

import numpy as np

from profkit.engine.context import Context
from profkit.engine.families.python_calls import TRANSFORMERS_TRAINER, are_within
from profkit.engine.families.sampled_python import step_samples
from profkit.index.runtime_calls import are_optimizer_steps
from profkit.patterns import regex

_LIGHTNING: Final = regex(r"(^|[/\\])(lightning[/\\]pytorch|pytorch_lightning)[/\\]trainer[/\\]")
_VLLM: Final = regex(r"(^|[/\\])vllm[/\\]")


class Trainer(StrEnum):
    """Libraries that run loops of training steps, by the names of their packages."""

    TRANSFORMERS = "transformers"
    LIGHTNING = "lightning"


_PACKAGES: Final = {
    "transformers": Trainer.TRANSFORMERS,
    "lightning": Trainer.LIGHTNING,
    "pytorch_lightning": Trainer.LIGHTNING,
}
_PATTERNS: Final = {
    Trainer.TRANSFORMERS: TRANSFORMERS_TRAINER,
    Trainer.LIGHTNING: _LIGHTNING,
}


def find_trainer(ctx: Context) -> Trainer | None:
    """Find the library that calls the optimizer; None if the program does, or if that is unknown.

    By the recorded calls of Python functions, or by samples at the line that steps the optimizer:
    the package that it calls is the one that runs the loop.
    """
    steps = np.flatnonzero(are_optimizer_steps(ctx.events))
    if not len(steps):
        return None
    for trainer, pattern in _PATTERNS.items():
        if are_within(ctx, steps, pattern):
            return trainer

    samples = step_samples(ctx)
    if samples is None:
        return None
    (loop,) = ctx.costliest_lines(steps, 1)
    packages = {
        function.library
        for function in samples.functions
        if function.place[:2] == (loop.file, loop.line)
    }
    trainers = {_PACKAGES[package] for package in packages if package in _PACKAGES}
    return trainers.pop() if len(trainers) == 1 else None


def is_run_by_vllm(ctx: Context) -> bool:
    """Return whether vLLM runs the model: most operators that launch work are within its code."""
    ops = np.unique(ctx.launches.op[ctx.launches.op >= 0])
    return len(ops) > 0 and are_within(ctx, ops, _VLLM)
