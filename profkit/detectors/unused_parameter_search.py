"""COM008 unused-parameter-search: DDP searches the graph for unused parameters.

What it finds:
    Steps in which ``DistributedDataParallel`` traverses the autograd graph after the forward pass,
    as it does with ``find_unused_parameters=True``.

Why it matters:
    The search visits every node of the graph in each step before the backward pass can begin, and
    the ranks reduce a map of used parameters besides. It is only needed if some parameters get no
    gradient in some steps. The cost is what the steps take less in a replay without the search.

How to fix it:
    Leave ``find_unused_parameters`` out. Where parameters are never used, freeze them with
    ``requires_grad_(False)`` before the model is wrapped. Where the unused ones are the same in all
    steps, ``static_graph=True`` searches only once.

Example:
    ::

        model = DistributedDataParallel(model, find_unused_parameters=True)

Use instead:
    ::

        model = DistributedDataParallel(model)

Reads:
    Operators named ``torch.distributed.ddp.reducer::search_unused_parameters`` (``ts_ns`` and
    ``dur_ns`` in nanoseconds), the steps, source lines.

When to ignore this:
    The parameters that a step uses differ, such as with layers that are skipped at random or
    experts that get no token. DDP itself warns where all were used.

Source:
    ``torch/csrc/distributed/c10d/reducer.cpp`` (the operator and the warning), and "Distributed
    data parallel" in PyTorch's notes (its internal design).
"""

from collections.abc import Iterator
from typing import Final

from profkit.index.distinct import distinct
from profkit.rule import (
    Category,
    Context,
    Finding,
    ProgramChange,
    RuleInfo,
    at,
    dataclass,
    find_rows,
    known_locations,
    measure_saving,
    needs,
    regex,
    time_per_step,
    times_per_step,
)

INFO = RuleInfo(
    id="COM008",
    name="unused-parameter-search",
    title="DDP searches for unused parameters",
    severity="note",
    needs=(needs.OPERATORS,),
    since="0.1.0",
)

# Earlier versions of torch wrote `torch::distributed::reducer::`.
_SEARCH: Final = regex(
    r"^torch(\.distributed\.ddp\.|::distributed::)reducer::search_unused_parameters$"
)


@dataclass(frozen=True)
class Thresholds:
    """When it is a warning.

    Attributes:
        warning_share: Share of the steps that a fix can save from which it is a warning: from one
            percent on, a change is worth the edit.
    """

    warning_share: float = 0.01


def detect(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding if steps search for unused parameters."""
    rows = find_rows(ctx, _SEARCH, Category.OP, Category.ANNOTATION)
    # With static_graph=True the first step alone searches.
    if not len(rows) or (len(ctx.steps) > 1 and len(distinct(ctx.step_of(rows))) == 1):
        return

    saving = measure_saving(ctx, ProgramChange(scaled=((rows, 0.0),)))
    location = ctx.location(int(rows[0]))
    spent_ns = int(ctx.events.dur_ns[rows].sum())

    yield saving.finding(
        INFO,
        severity=saving.severity(thresholds.warning_share),
        confidence="high",
        message=(
            f"`DistributedDataParallel`{at(location)} searches the autograd graph for unused "
            f"parameters {times_per_step(ctx, len(rows))}: {time_per_step(ctx, spent_ns)}."
        ),
        fix=(
            "Leave `find_unused_parameters=True` out if each step uses all parameters; if the same "
            "ones are unused in all steps, set `static_graph=True`."
        ),
        locations=known_locations(location),
        rows=rows,
        evidence={"search_ns": spent_ns},
    )
