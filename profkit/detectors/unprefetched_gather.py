"""COM011 unprefetched-gather: parameters are gathered only when they are needed.

What it finds:
    Training with sharded parameters (FSDP, DeepSpeed ZeRO stage 3) in which all-gathers start only
    when the module that needs them is reached, so that the GPU waits for them, although it could
    have computed the module before meanwhile.

Why it matters:
    An all-gather that is issued before the computation of the module before overlaps it, and costs
    nothing as long as it is the shorter one. The cost is what the steps take less in a replay in
    which each of these all-gathers is issued one module earlier, as soon as the collectives before
    it have ended. It is an upper bound, since an all-gather also waits for slower ranks. What is
    longer than the module before cannot overlap; that part is exposed-communication.

How to fix it:
    FSDP2 (``fully_shard``): ``set_modules_to_forward_prefetch`` and
    ``set_modules_to_backward_prefetch`` of each module, with the modules that follow it in that
    pass. FSDP1 (``FullyShardedDataParallel``): ``forward_prefetch=True``,
    ``backward_prefetch=BackwardPrefetch.BACKWARD_PRE``, and ``limit_all_gathers=False`` where the
    host waits in the rate limiter. DeepSpeed: a larger ``stage3_prefetch_bucket_size``.

Example:
    ::

        for block in model.blocks:
            fully_shard(block)
        fully_shard(model)

Use instead:
    ::

        for block in model.blocks:
            fully_shard(block)
        fully_shard(model)
        for block, following in itertools.pairwise(model.blocks):
            block.set_modules_to_forward_prefetch([following])
            following.set_modules_to_backward_prefetch([block])

Reads:
    All-gathers on a device that FSDP's annotations are around, or of a program with ZeRO's autograd
    functions; the kernels launched after them, other collectives, and the launches (``ts_ns`` and
    ``dur_ns`` in nanoseconds).

When to ignore this:
    One more module's parameters are in memory at a time. FSDP prefetches in the order of the first
    step, which does not fit a model that runs its modules in another order each time.

Source:
    "FSDP Prefetch Nuances" in PyTorch's notes; ``FSDPModule.set_modules_to_forward_prefetch``,
    ``FullyShardedDataParallel`` (``forward_prefetch``, ``backward_prefetch``,
    ``limit_all_gathers``) in its documentation; "ZeRO Optimizations" in DeepSpeed's documentation
    of its configuration; ``_fsdp_param_group.py`` and ``_runtime_utils.py`` for the annotations.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import numpy as np

from profkit.engine.families.collectives.gathers import (
    LateGathers,
    Sharding,
    earlier,
    find_late_gathers,
)
from profkit.engine.families.collectives.waits import (
    CollectiveWaits,
    find_collective_sites,
    find_device_waits,
)
from profkit.index.intervals import covered_by
from profkit.index.runtime_calls import rows_named
from profkit.rule import (
    MAX_LINES,
    Category,
    Context,
    Finding,
    RuleInfo,
    dataclass,
    known_locations,
    measure_saving,
    needs,
    time_per_step,
    times_per_step,
    torch_names,
    visible,
)

INFO = RuleInfo(
    id="COM011",
    name="unprefetched-gather",
    title="Parameters are gathered only when they are needed",
    severity="warning",
    needs=(needs.OPERATORS, needs.DEVICE_WORK),
    since="0.1.0",
    no_example="It takes several processes with a GPU each.",
)

_MAX_MODULES: Final = 2
_WHO: Final[dict[Sharding, str]] = {"fsdp1": "FSDP", "fsdp2": "FSDP", "zero": "ZeRO"}
_FIXES: Final[dict[Sharding, tuple[str, str]]] = {
    "fsdp2": (
        "`module.set_modules_to_forward_prefetch([next_module])`",
        "`module.set_modules_to_backward_prefetch([previous_module])`",
    ),
    "fsdp1": ("`forward_prefetch=True`", "`backward_prefetch=BackwardPrefetch.BACKWARD_PRE`"),
}
"""Arguments that issue all-gathers earlier, in the forward pass and in the backward pass."""
_IN_ZERO: Final = (
    "Raise `stage3_prefetch_bucket_size` in DeepSpeed's `zero_optimization`: so many elements of "
    "parameters are gathered before they are needed."
)
_MIN_LIMITED_SHARE: Final = 0.1
"""Minimum wait in the rate limiter, as a share of the cost, for the fix to name it."""


@dataclass(frozen=True)
class Thresholds:
    """When late all-gathers are a finding.

    Attributes:
        min_saving_share: Minimum share of the steps that they cost: from one percent on, a change
            is worth the edit.
    """

    min_saving_share: float = 0.01


def detect(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding if all-gathers of parameters could be issued earlier."""
    waits = find_device_waits(ctx)
    if waits is None or ctx.trace.world_size == 1:
        return
    gathers = find_late_gathers(ctx, waits)
    if gathers is None:
        return

    saving = measure_saving(ctx, earlier(ctx, waits, gathers), "upper-bound")
    if not saving.reaches(thresholds.min_saving_share):
        return

    # The lines are ordered by the time that could overlap, not by the whole wait.
    share_ns = np.zeros_like(waits.share_ns)
    share_ns[gathers.place] = gathers.hidden_ns
    sites = find_collective_sites(ctx, replace(waits, share_ns=share_ns))
    rows = waits.rows[gathers.place]

    yield saving.finding(
        INFO,
        confidence="medium" if gathers.sharding == "zero" or len(ctx.steps) < 2 else "high",  # noqa: PLR2004  (one step may differ)
        message=_build_message(ctx, waits, gathers),
        fix=_suggest_fix(ctx, gathers),
        locations=known_locations(*(site.location for site in sites[:MAX_LINES])),
        rows=rows,
        evidence={
            "hidden_ns": int(gathers.hidden_ns.sum()),
            "waited_ns": int(waits.share_ns[gathers.place].sum()),
            "n_in_backward": int(gathers.in_backward.sum()),
            "modules": list(gathers.modules),
        },
        spans=covered_by(ctx.events, rows).pairs(),
    )


def _build_message(ctx: Context, waits: CollectiveWaits, gathers: LateGathers) -> str:
    named = [f"`{visible(name)}`" for name in gathers.modules[:_MAX_MODULES]]
    more = len(gathers.modules) - len(named)
    modules = " and ".join(filter(None, (", ".join(named), f"{more} more" if more else "")))
    whose = f" of {modules}" if modules else ""

    waited = time_per_step(ctx, int(waits.share_ns[gathers.place].sum()))
    hidden = time_per_step(ctx, int(gathers.hidden_ns.sum()))
    return (
        f"{_WHO[gathers.sharding]} gathers the parameters{whose} only when they are needed, "
        f"{times_per_step(ctx, len(gathers.place))}: the GPU waits {waited} for them, of which "
        f"{hidden} could overlap the module before."
    )


def _suggest_fix(ctx: Context, gathers: LateGathers) -> str:
    if gathers.sharding == "zero":
        return _IN_ZERO

    in_forward, in_backward = _FIXES[gathers.sharding]
    # Only a pass with late gathers needs an argument: prefetching takes memory.
    arguments = [] if gathers.in_backward.all() else [in_forward]
    if gathers.in_backward.any():
        arguments.append(in_backward)
    if gathers.sharding == "fsdp2":
        return f"Issue them one module earlier: {' and '.join(arguments)}, for each module."

    is_limiter = rows_named(ctx.events, torch_names.RATE_LIMITER, Category.OP, Category.ANNOTATION)
    limited_ns = covered_by(ctx.events, np.flatnonzero(is_limiter)).total_ns
    if limited_ns >= _MIN_LIMITED_SHARE * gathers.hidden_ns.sum():
        arguments.append("`limit_all_gathers=False` if memory allows")
    return f"Wrap the model with {' and '.join(arguments)}."
