"""Synthetic recordings of a device; the committed ones are of the CPU."""

from pathlib import Path

from profkit.testing import TraceBuilder

MB = 1 << 20
STEPS = 3
GEMM_NS, RELU_NS, REDUCE_NS, COPY_NS = 500_000, 50_000, 400_000, 100_000


def build_gpu_training(*, rank: int | None = None, reduce_ns: int = REDUCE_NS) -> TraceBuilder:
    """Three training steps: a copy, two modules, a collective, and memory that is freed."""
    head = {} if rank is None else {"distributedInfo": {"rank": rank, "world_size": 2}}
    b = TraceBuilder(stacks=True, memory=True, shapes=True, absolute=True, head=head)

    for number in range(STEPS):
        with b.step():
            start_ns = b.now_ns
            b.load(300_000)
            with b.frame("train.py", 12, "train_step"):
                b.to_device(MB, COPY_NS)
                with b.module("Net"):
                    with b.module("Linear"):
                        block = b.alloc(4 * MB)
                        b.launch("aten::mm", kernel="gemm", host_ns=20_000, device_ns=GEMM_NS)
                    b.launch("aten::relu", kernel="relu", host_ns=20_000, device_ns=RELU_NS)
                b.free(block)
                with b.annotation("nccl:_all_reduce_base"):
                    b.launch(
                        "c10d::allreduce_",
                        kernel="ncclDevKernel_AllReduce_Sum_f32",
                        host_ns=20_000,
                        device_ns=reduce_ns,
                        stream=20,
                    )
                b.item()
            name = f"ProfilerStep#{number}"
            b.work("gpu_user_annotation", name, b.now_ns - start_ns, at_ns=start_ns)

    return b


def write_gpu_training(folder: Path) -> Path:
    """Write it to a file that TensorBoard's plugins find."""
    folder.mkdir(parents=True, exist_ok=True)
    return build_gpu_training().write(folder / "host_7.1795206901986030890.pt.trace.json.gz")
