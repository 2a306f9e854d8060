"""Data that rules need, and how to record what is missing.

A rule lists its needs in its ``INFO``. What several rules need of a recording is defined here, and
what the rules of one family need in that family; a rule with a need that no other rule has defines
a :class:`Need` in its own file.
"""

from collections.abc import Callable, Iterable
from typing import Any, Final

from profkit.dataclass import dataclass
from profkit.engine.context import Context
from profkit.engine.job_context import JobContext
from profkit.index.runtime_calls import CUDA as CUDA_CALLS
from profkit.index.runtime_calls import HIP
from profkit.model.torch_names import RECORD_SHAPES


@dataclass(frozen=True)
class Need:
    """Data without which a rule is skipped.

    Attributes:
        name: Shown on the rule's page.
        reason: Why the rule was skipped: what is missing, as a sentence.
        remedy: How to record it, as a sentence.
        is_met: Whether a recording has the data: a :class:`~profkit.engine.context.Context` or,
            of a need that requires :data:`RANKS`, a
            :class:`~profkit.engine.job_context.JobContext`.
        requires: Needs that are checked first, and reported instead where they are not met.
    """

    name: str
    reason: str
    remedy: str
    is_met: Callable[[Any], bool]
    requires: tuple["Need", ...] = ()


def _knows_compute_capability(ctx: Context) -> bool:
    """Return whether a device's compute capability is known. ROCm writes other numbers there."""
    is_written = any(device.compute_capability for device in ctx.trace.devices.values())
    return is_written and not len(HIP.rows(ctx.events))


TRACE: Final = Need(
    name="trace",
    reason="There is no trace.",
    remedy="Record a trace with `profkit.trace` or `torch.profiler`.",
    is_met=lambda ctx: ctx.has_trace,
)
OPERATORS: Final = Need(
    name="operators",
    reason="No operators were recorded.",
    remedy="Record a part of the program that runs operators, with `ProfilerActivity.CPU`.",
    is_met=lambda ctx: bool((ctx.innermost_op >= 0).any()),
    requires=(TRACE,),
)
DEVICE_WORK: Final = Need(
    name="device work",
    reason="No kernels or copies of a GPU were recorded.",
    remedy="Record on a machine with a GPU, with `ProfilerActivity.CUDA`.",
    is_met=lambda ctx: ctx.has_device_work,
    requires=(TRACE,),
)
SHAPES: Final = Need(
    name="input shapes",
    reason="The shapes of operators' inputs were not recorded.",
    remedy=f"Record with `profkit.trace` or `{RECORD_SHAPES}`.",
    is_met=lambda ctx: len(ctx.events.input_dims.rows) > 0,
    requires=(OPERATORS,),
)
CUDA: Final = Need(
    name="CUDA",
    reason="No CUDA calls were recorded, and kernels of other devices have other names.",
    remedy="Record on an NVIDIA GPU, with `ProfilerActivity.CUDA`.",
    is_met=lambda ctx: len(CUDA_CALLS.rows(ctx.events)) > 0,
    requires=(TRACE,),
)
COMPUTE_CAPABILITY: Final = Need(
    name="compute capability",
    reason="The compute capability of an NVIDIA GPU was not recorded.",
    remedy="Record with torch 1.9 or newer on an NVIDIA GPU.",
    is_met=_knows_compute_capability,
)
STEPS: Final = Need(
    name="steps",
    reason="No steps were recorded.",
    remedy=(
        "Call `t.step()` within `with profkit.trace(...) as t`, or loop over "
        "`profkit.steps(loader)`."
    ),
    is_met=lambda ctx: len(ctx.steps) > 0,
    requires=(TRACE,),
)
ALLOCATIONS: Final = Need(
    name="allocations",
    reason="No allocations were recorded.",
    remedy="Record with `profkit.trace` or `profile_memory=True`.",
    is_met=lambda ctx: len(ctx.trace.memory) > 0,
    requires=(TRACE,),
)
ALLOCATION_ADDRESSES: Final = Need(
    name="allocation addresses",
    reason="The allocations have no addresses, so no free can be matched to its allocation.",
    remedy="Record with torch 1.12 or newer.",
    is_met=lambda ctx: ctx.allocations.has_addresses,
    requires=(ALLOCATIONS,),
)
SNAPSHOT: Final = Need(
    name="memory snapshot",
    reason="There is no memory snapshot.",
    remedy="Analyze a file that `torch.cuda.memory._dump_snapshot` wrote.",
    is_met=lambda ctx: ctx.snapshot is not None,
)
HISTORY: Final = Need(
    name="allocator history",
    reason="The memory snapshot has no history.",
    remedy="Call `torch.cuda.memory._record_memory_history()` before the code of interest.",
    is_met=lambda ctx: ctx.snapshot is not None and len(ctx.snapshot.history) > 0,
    requires=(SNAPSHOT,),
)
MONITORING: Final = Need(
    name="monitored memory",
    reason="The program's memory was not monitored.",
    remedy=(
        "Run the program with `profkit run`, which monitors the steps of an optimizer, a loader or "
        "a module in the main thread."
    ),
    is_met=lambda ctx: ctx.live is not None,
)
MONITORED_STEPS: Final = Need(
    name="monitored steps",
    reason="Memory was monitored over too few steps to tell a leak from warm-up.",
    remedy="Let the program run for more steps.",
    is_met=lambda ctx: ctx.live is not None and ctx.live.n_evaluated_steps > 0,
    requires=(MONITORING,),
)
RANKS: Final = Need(
    name="several ranks",
    reason="There are not several ranks.",
    remedy="Analyze the folder with the traces of all ranks of a job.",
    is_met=lambda ctx: isinstance(ctx, JobContext),
)
MATCHED: Final = Need(
    name="matched collectives",
    reason="No collective was matched over several ranks.",
    remedy="Record the same steps on all ranks.",
    is_met=lambda job: len(job.matches.first) > 0,
    requires=(RANKS,),
)
WHAT_IF_RANKS: Final = Need(
    name="most collectives matched",
    reason="Too few collectives were matched to know what the ranks wait for.",
    remedy="Record the same steps on all ranks, with torch 2.12 or newer.",
    is_met=lambda job: job.what_if.is_known,
    requires=(MATCHED,),
)


def first_unmet(ctx: Context | JobContext, needs: Iterable[Need]) -> Need | None:
    """Return the first need that a recording or a job does not meet, or None."""
    return next((need for need in _with_required(needs) if not need.is_met(ctx)), None)


def _with_required(needs: Iterable[Need]) -> list[Need]:
    """Return the needs, each after the needs that it requires."""
    ordered = []
    for need in needs:
        ordered += [*_with_required(need.requires), need]
    return ordered


def is_over_ranks(needs: Iterable[Need]) -> bool:
    """Return whether a rule with some needs runs over the ranks of a job, not one recording."""
    return RANKS in _with_required(needs)
