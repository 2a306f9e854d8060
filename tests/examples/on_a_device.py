"""A recording of a CPU as a GPU would have given it: each operator launches the kernel it would.

Operators, their nesting, their types and the lines that they come from are recorded; kernels are
made: their names are those that CUDA's libraries have for these types, their lengths are round.
"""

import gzip
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

SLOWER: Final = 200
"""The host takes so many times as long, so that the device keeps up with it."""
NS_A_NUMBER: Final = 5
"""What a cast takes."""
FULL_NS: Final = 800_000
TENSOR_CORES_NS: Final = 60_000
OTHER_NS: Final = 10_000

FULL: Final = "ampere_sgemm_128x64_tn"
TF32: Final = "sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x32_kernel__5x_cublas"
BF16: Final = "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_TNT"
_LAMBDA: Final = "(at::TensorIteratorBase&)::{lambda(float)#1}"
DOWN: Final = (
    "void at::native::vectorized_elementwise_kernel<4, "
    f"at::native::bfloat16_copy_kernel_cuda{_LAMBDA}, std::array<char*, 2ul> >(int)"
)
UP: Final = (
    "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda"
    "(at::TensorIteratorBase&)::{lambda()#3}::operator()() const::{lambda()#7}::operator()() "
    "const::{lambda(float)#1}, std::array<char*, 2ul>, 4, at::native::memory::LoadWithCast<1>, "
    "at::native::memory::StoreWithCast<1> >(int)"
)
OTHER: Final = "void at::native::vectorized_elementwise_kernel<4, Functor<float>>(int)"
_CASTS: Final = {("c10::BFloat16", "float"): DOWN, ("float", "c10::BFloat16"): UP}
_PRODUCTS: Final = frozenset({"aten::addmm", "aten::mm"})
_OTHERS: Final = frozenset(
    {"aten::clamp_min", "aten::threshold_backward", "aten::_log_softmax", "aten::nll_loss_forward",
     "aten::_log_softmax_backward_data", "aten::nll_loss_backward", "aten::sum", "aten::add_"}
)  # fmt: skip


def on_a_device(recorded: Path, to: Path, *, tf32: bool) -> Path:
    """Write a recording of an H200.

    Args:
        recorded: The recording of a CPU, with the types of operators' inputs.
        to: The file to write.
        tf32: Whether products of float32 may be rounded.
    """
    trace = json.loads(gzip.decompress(recorded.read_bytes()))
    events = trace["traceEvents"]
    base = min(event["ts"] for event in events if "ts" in event)
    for event in events:
        if "ts" in event:
            event["ts"] = (event["ts"] - base) * SLOWER
        if "dur" in event:
            event["dur"] *= SLOWER
    trace["deviceProperties"] = [
        {"id": 0, "name": "NVIDIA H200", "computeMajor": 9, "computeMinor": 0}
    ]
    events += list(_device_work(events, tf32=tf32))
    to.write_text(json.dumps(trace))
    return to


def _device_work(events: list[dict[str, Any]], *, tf32: bool) -> Iterator[dict[str, Any]]:
    """Launches and kernels, one after the other on one stream."""
    free_at = 0.0
    ops = sorted((e for e in events if e.get("cat") == "cpu_op"), key=lambda e: float(e["ts"]))
    for ident, op in enumerate(ops, start=1):
        found = _kernel(op, tf32=tf32)
        if found is None:
            continue
        name, ns = found
        # It is launched right away: an operator on a CPU lasts until its work is done.
        at = op["ts"] + op["dur"] / 1000
        args = {"External id": op["args"]["External id"], "correlation": ident}
        call = {"ph": "X", "pid": op["pid"], "tid": op["tid"], "dur": op["dur"] / 1000}
        yield call | {"name": "cudaLaunchKernel", "cat": "cuda_runtime", "ts": at, "args": args}
        at = max(free_at, at + op["dur"] / 1000)
        free_at = at + ns / 1000
        args = args | {"device": 0, "stream": 7}
        work = {"ph": "X", "name": name, "cat": "kernel", "pid": 0, "tid": 7, "ts": at}
        yield work | {"dur": ns / 1000, "args": args}


def _kernel(op: Mapping[str, Any], *, tf32: bool) -> tuple[str, int] | None:
    """The kernel that an operator launches and its length in nanoseconds; None if it has none."""
    name, types = op["name"], op["args"].get("Input type", [])
    if name == "aten::copy_":
        cast = _CASTS.get((types[0], types[1]))
        rows, *columns = op["args"]["Input Dims"][0] or [1]
        return None if cast is None else (cast, NS_A_NUMBER * rows * (columns or [1])[0])
    if name in _PRODUCTS and types[1] == "float":
        return (TF32, TENSOR_CORES_NS) if tf32 else (FULL, FULL_NS)
    if name in _PRODUCTS:
        return BF16, TENSOR_CORES_NS
    return (OTHER, OTHER_NS) if name in _OTHERS else None
