"""PRF003 no-stacks: the recording has no source lines of the program.

What it finds:
    Recordings without Python stacks, and without source lines that profkit recorded in another
    step.

Why it matters:
    Without stacks a finding can name the operator that costs time, but not the line to change.

How to fix it:
    Record with ``profkit.trace``, which records stacks in a separate step where steps repeat, so
    that they slow down none of the measured ones; or with ``with_stack=True``.

Example:
    ::

        with torch.profiler.profile() as prof:

Use instead:
    ::

        with profkit.trace("step"):

Reads:
    Python calls, ``Call stack`` of operators, lines that profkit recorded.

When to ignore this:
    Only kernels are of interest.

Source:
    ``torch.profiler.profile`` (``with_stack``) in PyTorch's documentation.
"""

from collections.abc import Iterator

from profkit.engine.families.recording_advice import is_of_run
from profkit.rule import Context, Finding, RuleInfo, dataclass, needs

INFO = RuleInfo(
    id="PRF003",
    name="no-stacks",
    title="No source lines were recorded",
    severity="note",
    needs=(needs.OPERATORS,),
    since="0.1.0",
    no_example="It is about the recording, and its tests build one with and without the fault.",
)


@dataclass(frozen=True)
class Thresholds:
    """None: a recording has source lines or not."""


def detect(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding if no source line is known."""
    # Lines may also come from another step that was recorded with stacks.
    if ctx.has_lines:
        return
    capture = ctx.trace.capture
    reason = capture.no_stacks_reason if capture is not None else ""
    why = f", as {reason}" if reason else ""
    yield INFO.finding(
        confidence="high",
        message=(
            f"No Python stacks were recorded{why}: findings name operators and no source lines."
        ),
        fix="For source lines, record a run without it." if reason else _suggest_fix(ctx),
    )


def _suggest_fix(ctx: Context) -> str:
    if ctx.trace.capture is None:
        return "Record with `profkit run`, or with `with_stack=True`."
    if not ctx.steps:
        # `profkit run` looks at memory between steps, of which it has found none.
        is_run = ctx.trace.capture.steps == "whole"
        memory = ", and memory is monitored over all of them" if is_run else ""
        return (
            f"Mark the steps with `profkit.steps`: one of them is recorded with stacks{memory}. "
            "Of a service, decorate what handles a request with `@profkit.trace`."
        )

    # The loop ended before that step, or it was expected to cost too much.
    if is_of_run(ctx):
        return (
            "Use `profkit run --wait 3`: then one step is recorded with stacks, whatever that "
            "costs. A longer run can afford it without."
        )
    return "Record a step more: with `wait=3`, one has stacks whatever it costs."
