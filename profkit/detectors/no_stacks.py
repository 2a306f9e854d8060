"""PRF003 no-stacks: the recording does not know the lines of the program.

What it finds:
    Recordings without Python stacks, and without lines that profkit lends from another step.

Why it matters:
    Without stacks a finding can name the operator that costs time, but not the line to change.

How to fix it:
    Record with ``profkit.trace``, which records stacks in a step of its own where steps repeat, so
    that they slow none of the measured ones; or with ``with_stack=True``.

Example:
    ::

        with torch.profiler.profile() as prof:

Use instead:
    ::

        with profkit.trace("step"):

Reads:
    Python calls, ``Call stack`` of operators, lines that profkit recorded.

When to ignore this:
    Where only kernels are of interest, lines are not needed.

Source:
    ``torch.profiler.profile`` (``with_stack``) in PyTorch's documentation.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from profkit.engine import needs
from profkit.engine.context import Context
from profkit.engine.detector import RuleInfo
from profkit.model.finding import Finding

INFO = RuleInfo(
    id="PRF003",
    name="no-stacks",
    title="The recording has no lines of your code",
    severity="note",
    needs=(needs.OPERATORS,),
    since="0.1.0",
)


@dataclass(frozen=True)
class Thresholds:
    """There is nothing to adjust: a recording knows lines or it does not."""


def detect(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield one finding if no line is known."""
    if ctx.has_lines:
        return
    yield INFO.finding(
        severity="note",
        confidence="high",
        message="The recording has no Python stacks: findings name operators instead of lines.",
        fix='Record with `with profkit.trace("step"):`, or with `with_stack=True`.',
    )
