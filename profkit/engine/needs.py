"""What a recording lacks, in words."""

from typing import Final

from profkit.engine.context import Context
from profkit.engine.detector import Needs
from profkit.index.ranks.collectives import for_devices
from profkit.index.runtime_calls import CUDA, HIP

_LACKING: Final = {
    Needs.OPS: (
        "The recording has no operators.",
        "Record with ProfilerActivity.CPU among the activities.",
    ),
    Needs.DEVICE: (
        "The recording has no device work.",
        "Record on a machine with a GPU, with ProfilerActivity.CUDA among the activities.",
    ),
    Needs.COMPUTE_CAPABILITY: (
        "The recording does not tell the compute capability of an NVIDIA GPU.",
        "Record with torch 1.9 or newer on an NVIDIA GPU.",
    ),
    Needs.CUDA_OR_ROCM: (
        "The recording has no call of CUDA or HIP, and other devices' kernels have other names.",
        "Record on an NVIDIA or AMD GPU, with ProfilerActivity.CUDA among the activities.",
    ),
    Needs.STEPS: (
        "The recording has no steps.",
        "Call t.step() within `with profkit.trace(...) as t`, or loop over profkit.steps(loader).",
    ),
    Needs.STACKS: (
        "The recording has no lines of your code.",
        "Record with profkit.trace, or with with_stack=True.",
    ),
    Needs.MEMORY: (
        "The recording has no allocations.",
        "Record with profkit.trace, or with profile_memory=True.",
    ),
    Needs.MEMORY_ADDRESSES: (
        "The recording's allocations have no addresses, so frees cannot be told from one another.",
        "Record with torch 1.12 or newer.",
    ),
    Needs.SNAPSHOT: (
        "There is no snapshot of the allocator's memory.",
        "Analyze the file that torch.cuda.memory._dump_snapshot wrote.",
    ),
    Needs.HISTORY: (
        "The snapshot has no history of what the allocator did.",
        "Call torch.cuda.memory._record_memory_history() before what you want to see.",
    ),
    Needs.DRIVER_CALLS: (
        "The recording has no steps in which a device worked, and no history of its allocator.",
        "Record steps with profkit.trace on a machine with a GPU, or a snapshot with history.",
    ),
    Needs.EXCHANGES: (
        "The recording has exchanges that devices run, and no device work.",
        "Record with ProfilerActivity.CUDA among the activities.",
    ),
    Needs.COMPILED_RUNS: (
        "The recording does not tell where compiled functions begin and end.",
        "Record with torch 2.2 or newer.",
    ),
    Needs.LIVE: (
        "The program's memory was not watched.",
        "Run the program with profkit run.",
    ),
}


_NO_TRACE: Final = (
    "There is no trace, only what is known of memory.",
    "Record one with profkit.trace, or with torch.profiler.",
)
_TOO_FEW_STEPS: Final = (
    "The program's memory was watched over too few steps to tell growth from a warm-up.",
    "Let it run for more steps.",
)
_GRAPH_OF_AUTOGRAD: Final = "CompiledFunction"
"""A graph that runs: ``torch/_functorch/_aot_autograd/runtime_wrappers.py`` names it so."""
_NEVER_IN_A_TRACE: Final = frozenset({Needs.SNAPSHOT, Needs.HISTORY, Needs.LIVE})
_WITHOUT_A_TRACE: Final = _NEVER_IN_A_TRACE | {Needs.DRIVER_CALLS}
"""What else than a trace may hold."""


def looks_at_a_trace(needs: frozenset[Needs]) -> bool:
    """Whether a trace may hold what a rule needs, and not only what else is known of memory.

    Args:
        needs: What the rule must have.
    """
    return not needs & _NEVER_IN_A_TRACE


def lacking(ctx: Context, needs: frozenset[Needs]) -> tuple[str, str] | None:
    """The first need that a recording does not meet: why, and how to record it; None if none.

    Args:
        needs: What a rule must have.
    """
    if not ctx.has_trace and not needs & _WITHOUT_A_TRACE:
        return _NO_TRACE
    met = {
        Needs.OPS: lambda: bool((ctx.innermost_op >= 0).any()),
        Needs.DEVICE: lambda: ctx.has_device_work,
        Needs.COMPUTE_CAPABILITY: lambda: _tells_compute_capability(ctx),
        Needs.CUDA_OR_ROCM: lambda: any(len(kind.rows(ctx.events)) for kind in (CUDA, HIP)),
        Needs.STEPS: lambda: len(ctx.steps) > 0,
        Needs.STACKS: lambda: ctx.has_lines,
        Needs.MEMORY: lambda: len(ctx.trace.memory) > 0,
        Needs.MEMORY_ADDRESSES: lambda: ctx.allocations.has_addresses,
        Needs.SNAPSHOT: lambda: ctx.snapshot is not None,
        Needs.HISTORY: lambda: ctx.snapshot is not None and len(ctx.snapshot.history) > 0,
        Needs.DRIVER_CALLS: lambda: (
            (len(ctx.steps) > 0 and ctx.has_device_work)
            or (ctx.snapshot is not None and len(ctx.snapshot.history) > 0)
        ),
        Needs.EXCHANGES: lambda: ctx.has_device_work or not len(for_devices(ctx.events)),
        Needs.COMPILED_RUNS: lambda: (
            len(ctx.compiled_runs.rows) > 0 or _GRAPH_OF_AUTOGRAD not in ctx.events.names
        ),
        Needs.LIVE: lambda: ctx.live is not None and ctx.live.n_evaluated_steps > 0,
    }
    for need in Needs:
        if need in needs and not met[need]():
            is_short = need is Needs.LIVE and ctx.live is not None
            return _TOO_FEW_STEPS if is_short else _LACKING[need]
    return None


def _tells_compute_capability(ctx: Context) -> bool:
    """Whether a device's compute capability is known. ROCm writes numbers of its own there."""
    known = any(device.compute_capability for device in ctx.trace.devices.values())
    return known and not len(HIP.rows(ctx.events))
