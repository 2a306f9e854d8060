"""MEM018 allocator-off: the driver allocates and frees the memory of every single tensor.

What it finds:
    ``cudaMalloc`` and ``cudaFree`` (or HIP's) throughout the recording, about as often as kernels
    are launched: PyTorch's caching allocator is off or replaced. Where a cache exists and is
    emptied, it is allocator-churn.

Why it matters:
    The caching allocator reuses memory in less than a microsecond. The driver takes tens to
    hundreds of microseconds, and ``cudaFree`` waits until the GPU has finished, so the host never
    runs ahead. The cost is what the steps take less in a replay of the recording without these
    calls.

How to fix it:
    Unset ``PYTORCH_NO_CUDA_MEMORY_CACHING`` (for ROCm also ``PYTORCH_NO_HIP_MEMORY_CACHING``),
    which is for memory checkers. Remove ``torch.cuda.caching_allocator_enable(False)`` and
    ``torch.cuda.memory.change_current_allocator`` with an allocator that caches nothing.

Example:
    ::

        os.environ["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"
        import torch

Use instead:
    ::

        import torch

Reads:
    Runtime and driver calls (``name``, ``ts_ns`` and ``dur_ns`` in nanoseconds), the operators
    around them, kernels, GPU busy time in nanoseconds.

When to ignore this:
    The recording is of a run under ``compute-sanitizer``, which needs the allocator off.

Source:
    "Using custom memory allocators for CUDA" and ``PYTORCH_NO_CUDA_MEMORY_CACHING`` in PyTorch's
    CUDA semantics ("Memory management") and its list of CUDA environment variables;
    ``forceUncachedAllocator`` in ``c10/cuda/CUDACachingAllocator.cpp``; ``cudaFree`` in the CUDA
    Runtime API reference.
"""

from collections.abc import Iterator

import numpy as np

from profkit.engine.families.device_memory.driver_calls import find_uncached_calls
from profkit.rule import (
    Context,
    Finding,
    RuleInfo,
    WaitThresholds,
    counted,
    find_costly_wait,
    in_windows,
    needs,
    times_per_step,
)

INFO = RuleInfo(
    id="MEM018",
    name="allocator-off",
    title="GPU memory is allocated and freed for every single tensor",
    severity="warning",
    needs=(needs.OPERATORS, needs.DEVICE_WORK),
    since="0.1.0",
)

Thresholds = WaitThresholds


def detect(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding for a recording without a caching allocator."""
    calls = find_uncached_calls(ctx)
    if calls is None:
        return
    wait = find_costly_wait(ctx, calls.rows, thresholds)
    if wait is None:
        return

    # The message names the calls of this runtime: those of CUDA, of HIP, or of the driver.
    kinds = [ctx.events.name_of(int(calls.rows[calls.is_free == freed][0])) for freed in (0, 1)]
    kernels = ctx.events.kernels
    n_kernels = round(in_windows(ctx, kernels).sum() / max(1, len(ctx.steps)))

    yield wait.finding(
        INFO,
        message=(
            f"Nothing caches the GPU's memory: for {counted(n_kernels, 'kernel')} the "
            f"program calls `{kinds[0]}` or `{kinds[1]}` "
            f"{times_per_step(ctx, len(calls.rows))}, which {wait.text}"
        ),
        fix=(
            "Unset `PYTORCH_NO_CUDA_MEMORY_CACHING`, and use no allocator of your own that does "
            "not cache."
        ),
        locations=ctx.costliest_lines(calls.rows, 1, np.asarray(ctx.events.dur_ns[calls.rows])),
        rows=calls.rows,
        evidence={"n_allocations": len(calls.rows) - calls.n_frees, "n_frees": calls.n_frees},
    )
