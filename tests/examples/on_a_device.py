"""A recording of a CPU as a GPU would have given it: each operator launches the kernel it would.

Operators, their nesting, their types, shapes and strides, the memory that they allocate and the
lines that they come from are recorded; device work is made: its names are those that CUDA's
libraries have for these types, its lengths are round. Where the host waits, it goes on that much
later.
"""

import gzip
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from profkit.testing.reference_allocator import COMMON_POOL, ReferenceAllocator, ReferenceBlock

SLOWER: Final = 200
"""The host takes so many times as long, so that the device keeps up with it."""
AHEAD: Final = 10
"""The device works so many times as long as the host, which runs ahead of it."""
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
COPY: Final = (
    "void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<"
    "at::native::direct_copy_kernel_cuda> >(int)"
)
OTHER: Final = "void at::native::vectorized_elementwise_kernel<4, Functor<float>>(int)"
_CASTS: Final = {("c10::BFloat16", "float"): DOWN, ("float", "c10::BFloat16"): UP}
_PRODUCTS: Final = frozenset({"aten::addmm", "aten::mm"})
_OTHERS: Final = frozenset(
    {"aten::clamp_min", "aten::threshold_backward", "aten::_log_softmax", "aten::nll_loss_forward",
     "aten::_log_softmax_backward_data", "aten::nll_loss_backward", "aten::sum", "aten::add_"}
)  # fmt: skip

Event = Mapping[str, Any]


class Work(NamedTuple):
    """What an operator does on a device.

    Attributes:
        name: Of the kernel or copy; empty where a call only takes time of the host.
        ns: Its length.
        call: The call that launches it.
        wait: The call with which the host waits for it, or empty.
    """

    name: str
    ns: int
    call: str = "cudaLaunchKernel"
    wait: str = ""


WorkOf = Callable[[Event], Sequence[Work]]


def write_on_a_device(
    recorded: Path, to: Path, work_of: WorkOf, *, slower: float = SLOWER, ahead: float = 0
) -> Path:
    """Write a recording of an H200.

    Args:
        recorded: The recording of a CPU, with the types of operators' inputs.
        to: The file to write.
        work_of: What an operator or an allocation does on the device. An operator within one that
            does something is part of it.
        slower: How many times as long the host takes.
        ahead: How many times as long as the host the device has to work at least. All that it does
            takes as much longer: a recording of a busy machine gives the same shares.
    """
    trace = json.loads(gzip.decompress(recorded.read_bytes()))
    events = [event for event in trace["traceEvents"] if "ts" in event]
    base = min(event["ts"] for event in events)
    calls = sorted(_find_calls(events, work_of), key=lambda call: float(call["ts"]))
    times = np.array([(call["ts"] - base) * slower for call in calls])
    work_us = sum(call["work"].ns for call in calls if call["work"].name) / 1000
    longer = max(1, math.ceil(ahead * float(times[-1] - times[0]) / work_us))
    for call in calls:
        call["work"] = call["work"]._replace(ns=call["work"].ns * longer)
    late, done = _waits(calls, times)

    def at(ts: float) -> float:
        """Return the time on the host, in microseconds with whole nanoseconds."""
        lag = (ts - base) * slower
        return round(float(lag + late[np.searchsorted(times, lag)]), 3)

    for event in events:
        start = at(event["ts"])
        if "dur" in event:
            event["dur"] = round(at(event["ts"] + event["dur"]) - start, 3)
        event["ts"] = start
    # What took the core of the CPU took none of the device's time.
    if "profkit" in trace:
        trace["profkit"]["left_out_steps"] = []
    trace["deviceProperties"] = [
        {"id": 0, "name": "NVIDIA H200", "computeMajor": 9, "computeMinor": 0}
    ]
    trace["traceEvents"] += list(_build_device_events(calls, times, late, done))
    to.write_text(json.dumps(trace))
    return to


def _find_calls(events: Sequence[dict[str, Any]], work_of: WorkOf) -> Iterator[dict[str, Any]]:
    """Find the calls of the runtime, with their work."""
    op_events = [e for e in events if e.get("cat") == "cpu_op" or e["name"] == "[memory]"]
    op_events.sort(key=lambda e: (float(e["ts"]), -e.get("dur", 0.0)))
    steps = [_span_of(e) for e in events if e["name"].startswith("Optimizer.step#")]
    ends = outermost_ends = inner = 0.0

    for place, event in enumerate(op_events):
        start, end = _span_of(event)
        is_op = event.get("cat") == "cpu_op"
        if is_op and start < ends:
            continue
        is_outermost = is_op and start >= outermost_ends
        outermost_ends = max(outermost_ends, end)
        within = (e["ts"] for e in op_events[place + 1 : place + 9] if e.get("cat") == "cpu_op")
        inner = min(end, *within, end)
        if event["name"] == "aten::to" and is_outermost and inner == end:
            event = event | {"name": TO_HOST}  # noqa: PLW2901  (what it would be)
        every = work_of(event)
        if any(begins <= start < ended for begins, ended in steps):
            # A step count is on the host, and other kernels are one for all parameters.
            every = [work._replace(name=_MANY) for work in every if not work.wait]
        ends = end if is_op and every else ends
        lane = {key: event[key] for key in ("pid", "tid")}
        ident = {"External id": event["args"]["External id"]} if is_op else {}
        for number, work in enumerate(every):
            # Before the first operator within: what those launch is part of this one's.
            at = start + (inner - start) * (number + 1) / (len(every) + 1)
            yield {**lane, "ts": at, "args": ident, "work": work}


def _span_of(event: Event) -> tuple[float, float]:
    return event["ts"], event["ts"] + event.get("dur", 0.0)


def _waits(calls: Sequence[Event], times: Any) -> tuple[Any, list[float]]:  # noqa: ANN401
    """How late the host is before each call and after the last, and when the work of each is done.

    In microseconds.
    """
    late, done, free_at = [0.0], [], 0.0
    for call, time in zip(calls, times, strict=True):
        work: Work = call["work"]
        now, length = time + late[-1], work.ns / 1000
        if work.name:
            free_at = max(free_at, now + _CALL_US) + length
        done.append(free_at)
        blocked = max(0.0, free_at - now) if work.wait else 0.0 if work.name else length
        late.append(late[-1] + blocked)
    return np.array(late), done


_CALL_US: Final = 0.005
"""What a launch takes, little in an operator of any length."""


def _build_device_events(
    calls: Sequence[Event],
    times: Any,  # noqa: ANN401
    late: Any,  # noqa: ANN401
    done: Sequence[float],
) -> Iterator[dict[str, Any]]:
    """Calls of the runtime and device work, one after the other on one stream."""
    for ident, (call, time, before, after, end) in enumerate(
        zip(calls, times, late, late[1:], done, strict=False), start=1
    ):
        work: Work = call["work"]
        start = time + before
        args = call["args"] | {"correlation": ident}
        call_event = {"ph": "X", "cat": "cuda_runtime", "pid": call["pid"], "tid": call["tid"]}
        length = _CALL_US if work.name else after - before
        yield call_event | _span(work.call, start, start + length, args)

        if work.wait:
            args_of_wait = call["args"] | {"correlation": len(times) + ident}
            yield call_event | _span(work.wait, start + length, time + after + length, args_of_wait)
        if work.name:
            on_device = {"ph": "X", "cat": "kernel", "pid": 0, "tid": 7}
            if work.name.startswith("Memcpy"):
                on_device["cat"] = "gpu_memcpy"
            more = args | {"device": 0, "stream": 7}
            begins = end - work.ns / 1000
            yield on_device | _span(work.name, begins, end, more) | {"dur": work.ns / 1000}


def _span(name: str, start: float, end: float, args: Mapping[str, Any]) -> dict[str, Any]:
    start = round(float(start), 3)
    return {"name": name, "ts": start, "dur": round(float(end) - start, 3), "args": args}


def by_precision(*, tf32: bool) -> WorkOf:
    """Kernels whose types and lengths depend on the precision.

    Args:
        tf32: Whether products of float32 may be rounded.
    """

    def work_of(op: Event) -> Sequence[Work]:
        name, types = op["name"], op["args"].get("Input type", [])
        if name == "aten::copy_":
            cast = _CASTS.get((types[0], types[1]))
            rows, *columns = op["args"]["Input Dims"][0] or [1]
            return [Work(cast, NS_A_NUMBER * rows * (columns or [1])[0])] if cast else ()
        if name in _PRODUCTS and types[1] == "float":
            return [Work(TF32, TENSOR_CORES_NS) if tf32 else Work(FULL, FULL_NS)]
        if name in _PRODUCTS:
            return [Work(BF16, TENSOR_CORES_NS)]
        return [Work(OTHER, OTHER_NS)] if name in _OTHERS else ()

    return work_of


PRODUCT_NS: Final = 600_000
ELEMENTWISE_NS: Final = 100_000
REDUCTION_NS: Final = 50_000
CAST_NS: Final = 10_000
"""Of weights, mostly."""
TRIAL_NS: Final = 400_000
MALLOC_NS: Final = 300_000
_N_TRIALS: Final = 3
CONVOLUTION: Final = "sm90_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize128"
TO_NHWC: Final = "void cudnn::ops::nchwToNhwcKernel<float, float, float, false, true>(float)"
TO_NCHW: Final = "void cudnn::ops::nhwcToNchwKernel<float, float, float, true, false>(float)"
_FLASH: Final = "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4>>()"
_REDUCTION: Final = "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>(float)"
_MANY: Final = "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<Metadata>()"
_TO_PAGEABLE: Final = "Memcpy DtoH (Device -> Pageable)"
_TO_PINNED: Final = "Memcpy DtoH (Device -> Pinned)"
TO_HOST: Final = "aten::to to the host"
"""The program's own ``to``, which does nothing on a CPU."""
_NON_BLOCKING: Final = -3
"""Of the arguments of ``aten::to``."""
_LARGE_BYTES: Final = 1 << 20


def _named(names: str) -> frozenset[str]:
    return frozenset(f"aten::{name}" for name in names.split())


_PRODUCTS_OF_ALL: Final = _named("addmm mm bmm baddbmm")
_ELEMENTWISE: Final = _named(
    "add add_ sub mul mul_ div div_ pow neg tanh tanh_backward gelu gelu_backward clamp_min "
    "threshold_backward isnan isinf logical_or sqrt addcdiv_ addcmul_ lerp_ constant_pad_nd"
)
_REDUCTIONS: Final = _named(
    "sum mean linalg_vector_norm _softmax _softmax_backward_data _log_softmax "
    "_log_softmax_backward_data nll_loss_forward nll_loss_backward cat stack"
)
_CONVOLUTIONS: Final = _named("mkldnn_convolution convolution_backward")
_FUSED_ATTENTION: Final = _named(
    "_scaled_dot_product_flash_attention_for_cpu "
    "_scaled_dot_product_flash_attention_for_cpu_backward"
)
_READS: Final = _named("_local_scalar_dense")
_LISTS: Final = _named("_fused_adamw_ _amp_foreach_non_finite_check_and_unscale_")


class Device:
    """A device with PyTorch's allocator, cuDNN and its tensor cores.

    Args:
        searches: ``torch.backends.cudnn.benchmark``.
        times: How many times as large tensors are on it.
    """

    def __init__(self, *, searches: bool = False, times: int = 1) -> None:
        self._searches = searches
        self._times = times
        self._searched: set[str] = set()
        self._memory = ReferenceAllocator(lambda *_entry: None, 80 << 30)
        self._live: dict[int, ReferenceBlock] = {}

    def work_of(self, event: Event) -> Sequence[Work]:
        """Return what an operator or an allocation does."""
        name, args = event["name"], event["args"]
        if name == "[memory]":
            return self._allocated(args["Addr"], args["Bytes"] * self._times)
        if name in _CONVOLUTIONS:
            return self._convolution(event)
        if name in (TO_HOST, "aten::copy_") and args["Input Dims"][0]:
            return [_copy(name, args)]
        return [work for names, work in _WORK.items() if name in names]

    def _allocated(self, address: int, n_bytes: int) -> Sequence[Work]:
        if n_bytes < 0:
            if address in self._live:
                self._memory.free(self._live.pop(address), None)
            return ()
        if n_bytes < _LARGE_BYTES:
            return ()
        before = len(self._memory.segments)
        self._live[address] = self._memory.malloc(n_bytes, stream=0, pool=COMMON_POOL, stack=None)
        is_new = len(self._memory.segments) > before
        return [Work("", MALLOC_NS, "cudaMalloc")] if is_new else ()

    def _convolution(self, op: Event) -> Sequence[Work]:
        of_input = 1 if op["name"] == "aten::convolution_backward" else 0
        dims, strides = (op["args"][name][of_input] for name in ("Input Dims", "Input Strides"))
        is_nchw = strides[1] != 1
        key = f"{op['name']} {dims}"
        is_new = self._searches and key not in self._searched
        self._searched.add(key)
        trial = Work(CONVOLUTION, TRIAL_NS, wait="cudaEventSynchronize")
        around = [Work(TO_NHWC, ELEMENTWISE_NS)] * 2 if is_nchw else []
        back = [Work(TO_NCHW, ELEMENTWISE_NS)] if is_nchw else []
        trials = [trial] * _N_TRIALS if is_new else []
        return [*trials, *around, Work(CONVOLUTION, PRODUCT_NS), *back]


def _copy(name: str, args: Mapping[str, Any]) -> Work:
    if name == TO_HOST and args["Concrete Inputs"][_NON_BLOCKING] == "True":
        return Work(_TO_PINNED, REDUCTION_NS, "cudaMemcpyAsync")
    if name == TO_HOST:
        return Work(_TO_PAGEABLE, REDUCTION_NS, "cudaMemcpyAsync", "cudaStreamSynchronize")
    to, source = args["Input type"][:2]
    return Work(COPY, ELEMENTWISE_NS) if to == source else Work(UP, CAST_NS)


_WORK: Final = {
    _READS: Work(_TO_PAGEABLE, 1_000, "cudaMemcpyAsync", "cudaStreamSynchronize"),
    _PRODUCTS_OF_ALL: Work(TF32, PRODUCT_NS),
    _ELEMENTWISE: Work(OTHER, ELEMENTWISE_NS),
    _REDUCTIONS: Work(_REDUCTION, REDUCTION_NS),
    _FUSED_ATTENTION: Work(_FLASH, PRODUCT_NS),
    _LISTS: Work(_MANY, ELEMENTWISE_NS),
}
