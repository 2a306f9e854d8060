"""CMP002 graph-breaks: what is compiled falls into several graphs.

What it finds:
    Lines within what ``torch.compile`` compiles that it cannot put into a graph, and that run in
    the steps: there one graph ends, Python runs, and another graph begins. And functions that it
    therefore leaves uncompiled as a whole, as it does where such a line is in a loop. Breaks that
    the program asks for (``torch.compiler.disable``, ``torch._dynamo.graph_break``) are left alone
    as long as the rest is compiled, and so are those with no other graph behind them.

Why it matters:
    Nothing is fused across, values between two graphs go through memory, and a CUDA graph cannot
    hold both. How much that costs is in no recording: it takes one without the break. What is in it
    is the time that Python takes from one graph to the next, and that is the cost, no more than the
    device was idle for.

How to fix it:
    Move the line out of what is compiled, or write it so that it can be compiled:
    ``torch.where`` for an ``if`` on a tensor, a tensor instead of ``.item()``, the log outside.
    ``torch.compile(..., fullgraph=True)`` makes an error of every break.

Example:
    ::

        @torch.compile
        def forward(x):
            x = layer(x)
            log.info("rows: %d", len(x))
            return torch.tanh(x)

Use instead:
    ::

        @torch.compile
        def forward(x):
            return torch.tanh(layer(x))

        log.info("rows: %d", len(x))

Reads:
    Runs of what was compiled on the host and the operators in them (``ts_ns`` and ``dur_ns`` in
    nanoseconds), the devices' idle time in nanoseconds, and where graphs ended and why, which
    profkit writes into its traces. From other traces the lines come from their stacks.

When to ignore this:
    Where little is left to fuse, a break costs next to nothing. A line in a library that one cannot
    change has to be lived with. In traces that profkit did not record, breaks that the program asks
    for look like all others.

Source:
    "Working with graph breaks" in PyTorch's documentation on ``torch.compile``;
    ``torch/_dynamo/output_graph.py`` (``GraphCompileReason``) and ``symbolic_convert.py``
    (``torch_dynamo_resume_in_…``); ``torch/_dynamo/convert_frame.py`` (``Torch-Compiled Region``).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from profkit.engine import needs
from profkit.engine.context import Context
from profkit.engine.detector import RuleInfo
from profkit.engine.families.compile.functions import CompiledCode, location_of
from profkit.engine.families.compile.graph_breaks import Broken, broken_lines, uncompiled
from profkit.engine.families.compile.messages import cure_of_break, first_line
from profkit.engine.needs import Need
from profkit.engine.windows import event_ids, idle_in_windows, windows, windows_ns
from profkit.engine.wording import at, known_locations, time_per_step, times_per_step
from profkit.index.device.idle import blocking_cost
from profkit.index.intervals import Intervals, covered_within, take_from_start
from profkit.model.capture_info import Compiled
from profkit.model.finding import Finding
from profkit.units import format_count

COMPILED_REGIONS: Final = Need(
    name="compiled regions",
    reason="The calls of compiled functions were not recorded.",
    remedy="Record with torch 2.2 or newer.",
    is_met=lambda ctx: (
        len(ctx.compiled_runs.rows) > 0 or _AUTOGRAD_OF_GRAPH not in ctx.events.names
    ),
)
_AUTOGRAD_OF_GRAPH: Final = "CompiledFunction"
"""Source: ``torch/_functorch/_aot_autograd/runtime_wrappers.py``: what runs a compiled graph."""

INFO = RuleInfo(
    id="CMP002",
    name="graph-breaks",
    title="Graphs end in the middle",
    severity="warning",
    needs=(needs.OPERATORS, needs.STEPS, COMPILED_REGIONS),
    since="0.1.0",
)


@dataclass(frozen=True)
class Thresholds:
    """When the end of a graph is more than a note.

    Attributes:
        warning_share: Share of the steps that Python takes between the graphs: one percent is
            where a change pays for the edit.
        warning_breaks_count: Breaks of a line in a step from which it is a warning whatever Python
            takes: with one or two a graph is large all the same.
    """

    warning_share: float = 0.01
    warning_breaks_count: int = 4


def detect(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding for each line that ends graphs, and for each function left uncompiled."""
    code = CompiledCode(ctx)
    for broken in broken_lines(ctx, code):
        yield _finding(ctx, broken, thresholds)
    for one in uncompiled(code):
        yield _uncompiled(one)


def _finding(ctx: Context, broken: Broken, thresholds: Thresholds) -> Finding:
    total_ns, claims = _cost(ctx, broken.between)
    rows = ctx.compiled_runs.rows[broken.places]
    per_step = len(rows) / len(ctx.steps)
    heavy = total_ns >= thresholds.warning_share * windows_ns(ctx)
    return INFO.finding(
        severity="warning" if heavy or per_step >= thresholds.warning_breaks_count else "note",
        confidence="high" if broken.reason else "medium",
        message=_message(ctx, broken),
        fix=cure_of_break(broken.reason) if broken.reason else _UNKNOWN_CURE,
        locations=known_locations(broken.location, *broken.further),
        n=len(rows),
        cost=ctx.cost(total_ns, basis="upper-bound"),
        evidence={
            "n_graphs": broken.n_graphs,
            "n_calls": broken.n_calls,
            "python_ns": broken.between.total_ns,
            "reason": first_line(broken.reason),
            "events": event_ids(ctx, rows),
        },
        claims=claims,
    )


def _message(ctx: Context, broken: Broken) -> str:
    where = " in what is called" if broken.is_call else ""
    often = times_per_step(ctx, len(broken.places))
    python = time_per_step(ctx, broken.between.total_ns)
    return (
        f"A graph ends{where}{at(broken.location)}, {often}{_why(broken.reason)}. What is compiled "
        f"there runs as {_n_graphs(broken)} graphs instead of one, with {python} of Python between "
        "them; what could have been fused across is not in that."
    )


_UNKNOWN_CURE: Final = (
    "Move the line out of what is compiled. Why the graph ends there is told by recording with "
    "`profkit run` or `profkit.trace`, or by `TORCH_LOGS=graph_breaks`."
)


def _cost(ctx: Context, between: Intervals) -> tuple[int, tuple[tuple[int, int], ...]]:
    """How much of the time between graphs can be given back at most, and where it is."""
    starts, ends = windows(ctx)
    if ctx.has_device_work:
        wait = blocking_cost(between, idle_in_windows(ctx), starts, ends)
        return wait.saving_ns, wait.claims
    lost_ns = covered_within(between, starts, ends)
    return int(np.sum(lost_ns)), take_from_start(between, starts, ends, lost_ns)


def _n_graphs(broken: Broken) -> str:
    each = broken.n_graphs / broken.n_calls
    return format_count(round(each)) if each.is_integer() else f"about {each:.1f}"


def _why(reason: str) -> str:
    return f": “{first_line(reason)}”" if reason else ""


def _uncompiled(one: Compiled) -> Finding:
    """A function that PyTorch leaves to Python as a whole."""
    place = location_of(one.code)
    return INFO.finding(
        severity="warning",
        confidence="medium",
        message=(
            f"`{one.code[2]}`{at(place)} runs uncompiled as a whole: PyTorch gave up compiling it"
            f"{_why(one.failure)}."
        ),
        fix=cure_of_break(one.failure),
        locations=known_locations(*([location_of(one.caller)] if one.caller else []), place),
        evidence={"reason": first_line(one.failure)},
    )
