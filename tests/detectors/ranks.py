"""A built distributed job: an NCCL collective, a backward pass, an optimizer step."""

from profkit.testing import TraceBuilder

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
COMM_STREAM = 20
US = 1_000


def exchange(
    b: TraceBuilder, dur_ns: int, *, at_ns: int, device: int = 0, name: str = NCCL
) -> None:
    """Add an all-reduce of NCCL whose kernel begins at some moment."""
    with b.op("c10d::allreduce_"), b.op("record_param_comms"), b.annotation("nccl:all_reduce"):
        ident = b.call("LaunchKernel", 4 * US)
        b.kernel(name, dur_ns, correlation=ident, stream=COMM_STREAM, at_ns=at_ns, device=device)


def backward(b: TraceBuilder, kernel_ns: int, *, device: int = 0) -> None:
    with b.op("autograd::engine::evaluate_function: MmBackward0"):
        b.launch("aten::mm", kernel="gemm", host_ns=10 * US, device_ns=kernel_ns, device=device)


def update(b: TraceBuilder, *, at_ns: int, device: int = 0, kernel_ns: int = 40 * US) -> None:
    """Add the optimizer's kernel, which begins at some moment."""
    with b.annotation("Optimizer.step#SGD.step"), b.op("aten::_foreach_add_"):
        ident = b.call("LaunchKernel", 4 * US)
        b.kernel("foreach", kernel_ns, correlation=ident, at_ns=at_ns, device=device)
