"""MEM001 unfreed-tensors: tensors that every step allocates are never freed.

What it finds:
    Lines whose tensors stay allocated: every step of the recording leaves some of them unfreed at
    its end. Tensors that only the first step leaves (an optimizer's state) or only the last
    (those that variables still refer to) do not count.

Why it matters:
    Memory that grows with every step ends in an out-of-memory error hours later. The usual cause
    is a list, an attribute or a running sum that keeps tensors together with their autograd graph,
    and with it all that the graph saved for its backward pass.

How to fix it:
    Store values without their graph: ``.detach()`` them, or compute them under
    ``torch.no_grad()``; store numbers instead of tensors; clear the list after its values are used.

Example:
    ::

        losses.append(loss_fn(model(x), y))

Use instead:
    ::

        with torch.no_grad():
            losses.append(loss_fn(model(x), y))

Reads:
    ``[memory]`` events (``ts_ns`` in nanoseconds, ``n_bytes`` in bytes, ``address``), the steps,
    operators and source lines around them.

When to ignore this:
    The list is emptied regularly, but less often than the recording is long: the more steps are
    recorded, the surer the finding. Memory that PyTorch did not allocate is not found. Where the
    program's memory was monitored over at least as many steps, the rules on monitored memory
    report leaks instead of this one.

Source:
    "My model reports cuda runtime error: out of memory" in PyTorch's FAQ (history that is
    accumulated across the training loop); ``torch/csrc/profiler/collection.h`` (allocations).
"""

from collections.abc import Iterator
from typing import Final

import numpy as np

from profkit.index.distinct import are_among, distinct
from profkit.index.host.nesting import find_rows_open_at
from profkit.index.trace_memory.live_bytes import (
    UnfreedInSteps,
    device_label,
    growth_per_step_bytes,
    unfreed_in_steps,
)
from profkit.rule import (
    MAX_EVENT_IDS,
    NO_ROW,
    Context,
    Finding,
    Location,
    Rows,
    RuleInfo,
    at,
    dataclass,
    format_bytes,
    format_count,
    growth,
    needs,
)

INFO = RuleInfo(
    id="MEM001",
    name="unfreed-tensors",
    title="Memory grows with every step",
    severity="warning",
    needs=(needs.STEPS, needs.ALLOCATION_ADDRESSES),
    since="0.1.0",
)

MAX_OPS: Final = 2
"""Operators of a line that a message names."""


@dataclass(frozen=True)
class Thresholds:
    """When unfreed memory is a finding.

    Attributes:
        min_steps_count: Minimum steps. With two, every step is either the first or the last.
        sure_steps_count: Steps from which the confidence is high: caches of the last few batches
            are full by then.
        min_step_bytes: Minimum growth per step from one line. A program that stores its losses on
            purpose retains a block or two of 512 bytes: at most 40 MB in ten thousand steps.
        warning_step_bytes: Growth per step from which it is a warning: 64 KiB are 640 MB in ten
            thousand steps.
        max_lines_apart_count: More growing lines than this are one finding: they are the operators
            of one retained graph.
    """

    min_steps_count: int = 3
    sure_steps_count: int = 6
    min_step_bytes: int = 4096
    warning_step_bytes: int = 65536
    max_lines_apart_count: int = 3


@dataclass(frozen=True)
class _Growth:
    """Memory that one line leaves unfreed in every step, and the operators that allocated it."""

    location: Location
    ops: tuple[str, ...]
    device: str
    kept: UnfreedInSteps
    step_bytes: int


def detect(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding for each line whose memory grows, or one for a whole graph."""
    if len(ctx.all_steps) < thresholds.min_steps_count or _was_monitored(ctx):
        return

    growths = sorted(_find_growths(ctx), key=lambda line: -line.step_bytes)
    for device in sorted({line.device for line in growths}):
        on_device = [line for line in growths if line.device == device]
        if sum(line.step_bytes for line in on_device) < thresholds.min_step_bytes:
            continue
        # The operators of a retained graph grow together, and have one cause.
        if len(on_device) > thresholds.max_lines_apart_count:
            yield _build_finding(ctx, thresholds, on_device)
            continue
        for line in on_device:
            if line.step_bytes >= thresholds.min_step_bytes:
                yield _build_finding(ctx, thresholds, [line])


def _was_monitored(ctx: Context) -> bool:
    """Tell whether rules on monitored memory report the same leaks, with their holders."""
    return ctx.live is not None and ctx.live.n_evaluated_steps >= len(ctx.all_steps)


def _find_growths(ctx: Context) -> Iterator[_Growth]:
    table = ctx.allocations.table
    kept = unfreed_in_steps(ctx.allocations, ctx.all_steps)
    row = find_rows_open_at(ctx.events, ctx.tree, table.lane[kept.place], table.ts_ns[kept.place])
    kind, number = table.device_type[kept.place], table.device[kept.place]

    for device in sorted(set(zip(kind.tolist(), number.tolist(), strict=True))):
        on_device = (row != NO_ROW) & (kind == device[0]) & (number == device[1])
        for location, rows in ctx.by_line(distinct(row[on_device])):
            of_line = kept.select(on_device & are_among(row, rows))
            step_bytes = growth_per_step_bytes(of_line.bytes_by_step(len(ctx.all_steps)))
            if step_bytes:
                ops = _name_ops(ctx, rows)
                yield _Growth(location, ops, device_label(*device), of_line, step_bytes)


def _name_ops(ctx: Context, rows: Rows) -> tuple[str, ...]:
    ops = ctx.innermost_op[rows]
    return tuple(sorted({ctx.events.name_of(op) for op in ops[ops != NO_ROW].tolist()}))


def _build_finding(ctx: Context, thresholds: Thresholds, lines: list[_Growth]) -> Finding:
    step_bytes = sum(line.step_bytes for line in lines)
    n_blocks = sum(len(line.kept.place) for line in lines)
    n_by_step = np.bincount(
        np.concatenate([line.kept.step for line in lines]), minlength=len(ctx.all_steps)
    )
    by_step = np.sum([line.kept.bytes_by_step(len(ctx.all_steps)) for line in lines], axis=0)

    return INFO.finding(
        severity="warning" if step_bytes >= thresholds.warning_step_bytes else "note",
        confidence="high" if len(ctx.all_steps) >= thresholds.sure_steps_count else "medium",
        message=_build_message(ctx, lines, step_bytes, n_blocks),
        fix=(
            "Find the list, attribute or running sum that keeps them, and store `.detach()`ed "
            "values or numbers, or clear it after use."
        ),
        locations=tuple(line.location for line in lines),
        n=n_blocks,
        # A total: its cost per step is divided by the steps that figures are of.
        cost=ctx.cost(n_bytes=step_bytes * len(ctx.steps)),
        growth=growth(range(1, len(by_step) + 1), np.cumsum(by_step), np.cumsum(n_by_step)),
        evidence={
            "device": lines[0].device,
            "bytes_by_step": by_step.tolist(),
            "events": ctx.allocations.table.position[lines[0].kept.place[:MAX_EVENT_IDS]].tolist(),
        },
    )


def _build_message(ctx: Context, lines: list[_Growth], step_bytes: int, n_blocks: int) -> str:
    where = "in host memory" if lines[0].device == "cpu" else f"on {lines[0].device}"
    growth_text = f"{format_bytes(step_bytes)} per step {where}"
    left = f"{format_count(n_blocks)} blocks are left from {format_count(len(ctx.all_steps))} steps"

    if len(lines) == 1:
        ops = lines[0].ops
        named = " and ".join(f"`{op}`" for op in ops[:MAX_OPS])
        more = f" and {len(ops) - MAX_OPS} more" if len(ops) > MAX_OPS else ""
        by_ops = f" by {named}{more}" if named else ""
        return f"{growth_text}, allocated{at(lines[0].location)}{by_ops}, are never freed: {left}."

    # A reference to the last tensor of a graph, such as a loss, holds all the others.
    last = max(lines, key=lambda line: int(line.kept.place.max())).location
    return (
        f"{growth_text}, allocated by {len(lines)} lines, are never freed: {left}. So many lines "
        f"are one retained autograd graph, whose last tensor is allocated at {last.place}."
    )
