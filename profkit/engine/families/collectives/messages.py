"""The fix for waits on collectives, by how the program starts them."""

from typing import Final

import numpy as np

from profkit.dataclass import dataclass
from profkit.engine.context import Context
from profkit.engine.device_support import lacks_bfloat16
from profkit.engine.families.collectives.buckets import (
    LARGER_BUCKETS,
    BucketThresholds,
    find_small_reductions,
)
from profkit.engine.families.collectives.gradients import after_backward, are_started_within
from profkit.engine.families.collectives.waits import CollectiveWaits
from profkit.index.ranks.collectives import host_collectives
from profkit.index.runtime_calls import are_optimizer_steps, names_matching, rows_named
from profkit.model.events import NO_ROW, RECORD_FUNCTIONS, Mask
from profkit.model.torch_names import (
    BACKWARD,
    DISTRIBUTED_DATA_PARALLEL,
    DISTRIBUTED_DATA_PARALLEL_FORWARD,
    FULLY_SHARDED,
)

_OF_GRADIENTS: Final = frozenset({"all-reduce", "reduce-scatter"})
_FEW_BUCKETS: Final = 2

_NCCL: Final = (
    "gloo copies these GPU tensors through host memory: if each process has its own GPU, use "
    '`init_process_group("nccl")`.'
)
_WRAP: Final = (
    "Wrap the model in `DistributedDataParallel`: it reduces gradients in buckets during the "
    "backward pass. Without it, start all collectives with `async_op=True`, then `wait()` for them."
)
_OVERLAPPED: Final = (
    "`DistributedDataParallel` already overlaps communication with backward. Compute more per "
    "collective, with a larger batch on each rank"
)
_FEWER_BYTES: Final = (
    ", or reduce the bytes: `model.register_comm_hook(None, default_hooks.{}_compress_hook)`."
)
_PREFETCH: Final = (
    "FSDP gathers the parameters of each module before it runs. Gather them earlier "
    "(`forward_prefetch=True`, or `set_modules_to_forward_prefetch` of `fully_shard`), do not free "
    "them if memory allows (`reshard_after_forward=False`), or compute more per collective."
)
_INFERENCE: Final = (
    "The recording has no backward pass to overlap with. Tensor parallelism waits for each "
    "collective by design: use fewer GPUs per model, larger batches, or kernels that fuse the "
    "collective with the next operator."
)
_NO_BARRIER: Final = (
    "Remove the barrier: every other collective already waits for the ranks that it needs. If one "
    "rank must run first, such as to download a file, use one barrier before the loop."
)
_PIPELINE: Final = (
    "With pipeline parallelism, stages wait at the start and end of each batch: use more "
    "micro-batches, or interleave the stages (`torch.distributed.pipelining`)."
)
_EARLIER: Final = (
    "Start it with `async_op=True` before work that does not need its result, and `wait()` where "
    "the result is needed. Run what is not needed in every step, such as metrics, less often."
)
_BY_KIND: Final = {
    frozenset({"barrier"}): _NO_BARRIER,
    frozenset({"send and receive", "send", "receive"}): _PIPELINE,
}


@dataclass(frozen=True)
class DistributedProgram:
    """Features of a distributed program that its recording shows.

    Attributes:
        trains: Whether it has a backward pass or optimizer steps.
        is_ddp: Whether a model is in ``DistributedDataParallel``.
        n_forwards: Calls of models in ``DistributedDataParallel``.
        n_updates: Optimizer steps.
    """

    trains: bool
    is_ddp: bool
    n_forwards: int
    n_updates: int


def describe_program(ctx: Context) -> DistributedProgram:
    """Describe the kind of program.

    Source: ``torch/nn/parallel/distributed.py`` and ``torch/optim/optimizer.py`` for the names of
    their annotations; ``torch/csrc/autograd/engine.cpp`` for the operators of a backward pass.
    """
    events = ctx.events
    n_updates = int(are_optimizer_steps(events).sum())
    trains = n_updates > 0 or bool(rows_named(events, BACKWARD, *RECORD_FUNCTIONS).any())
    forwards = rows_named(events, DISTRIBUTED_DATA_PARALLEL_FORWARD, *RECORD_FUNCTIONS)
    return DistributedProgram(
        trains=trains,
        is_ddp=bool(names_matching(events, DISTRIBUTED_DATA_PARALLEL).any()),
        n_forwards=int(forwards.sum()),
        n_updates=n_updates,
    )


def suggest_collective_fix(
    ctx: Context, waits: CollectiveWaits, program: DistributedProgram
) -> str:
    """Return the fix for waits on collectives."""
    advice = _choose_fix(ctx, waits, program)
    if waits.device is None and _moves_device_tensors(ctx):
        return f"{_NCCL} {advice}"
    return advice


def _choose_fix(ctx: Context, waits: CollectiveWaits, program: DistributedProgram) -> str:
    # Barriers and pipelines have fixes of their own, whatever the program does.
    for kinds, advice in _BY_KIND.items():
        if _mostly(waits, waits.are_of_kinds(kinds)):
            return advice

    if not program.trains:
        return _INFERENCE
    if _mostly(waits, are_started_within(ctx, waits, FULLY_SHARDED)):
        return _PREFETCH

    in_backward = are_started_within(ctx, waits, BACKWARD)
    if program.is_ddp:
        if not _mostly(waits, in_backward):
            return _EARLIER
        return _ddp_fix(ctx, waits, program, in_backward)

    after = after_backward(ctx, waits) & ~in_backward
    return _WRAP if _mostly(waits, after & waits.are_of_kinds(_OF_GRADIENTS)) else _EARLIER


def _ddp_fix(
    ctx: Context, waits: CollectiveWaits, program: DistributedProgram, in_backward: Mask
) -> str:
    """Return the fix for a model in ``DistributedDataParallel``."""
    # Fewer, larger messages are what small-buckets advises for the same calls.
    if find_small_reductions(ctx, waits, BucketThresholds()) is not None:
        return LARGER_BUCKETS

    dtype = "fp16" if lacks_bfloat16(ctx) else "bf16"
    n_sent = int(in_backward.sum())
    each_pass_sends = n_sent >= program.n_forwards
    # With accumulated gradients (`no_sync`), only the last pass before an update sends.
    n_passes = program.n_forwards if each_pass_sends else program.n_updates

    sentences = [_OVERLAPPED + ("." if waits.device is None else _FEWER_BYTES.format(dtype))]
    n_buckets = n_sent / max(1, n_passes)
    if n_passes and n_buckets <= _FEW_BUCKETS:
        sentences.append(
            "All gradients are in "
            + ("one bucket" if n_buckets <= 1 else "two buckets")
            + ": with a smaller `bucket_cap_mb` the first all-reduce starts earlier."
        )
    return " ".join(sentences)


def _mostly(waits: CollectiveWaits, which: Mask) -> bool:
    """Return whether some collectives have half of the waited time, of known origin if any."""
    is_known = waits.starter != NO_ROW
    if not waits.share_ns[is_known].any():
        is_known = np.ones(len(is_known), dtype=np.bool_)
    return 2 * int(waits.share_ns[which & is_known].sum()) >= int(waits.share_ns[is_known].sum())


def _moves_device_tensors(ctx: Context) -> bool:
    """Return whether host threads launch device work inside collectives.

    Source: ``ProcessGroupGloo.cpp``: a work on CUDA tensors copies its result back itself.
    """
    launch = ctx.launches.launch[ctx.launches.launch != NO_ROW]
    collective = ctx.nearest(host_collectives(ctx.events))
    return bool((collective[launch] != NO_ROW).any())
