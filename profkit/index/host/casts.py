"""Casts by user code, and round trips of casts that are needless."""

from functools import lru_cache
from typing import Final, Literal

import numpy as np

from profkit.dataclass import dataclass
from profkit.index.host.nesting import CallTree
from profkit.index.host.source import find_forward_of_backward
from profkit.index.host.steps import NO_STEP, Steps
from profkit.index.launches import Launches
from profkit.index.runtime_calls import map_names, rows_named
from profkit.model.events import MISSING, NO_ROW, Category, EventTable, Int32s, Mask, Rows
from profkit.model.torch_names import BACKWARD
from profkit.patterns import regex

FloatKind = Literal["bfloat16", "float16", "float32"]

_NAMED: Final = regex(r"(?P<source>b?float16to)?(?P<kind>b?float(?:16|32))_copy_kernel_cuda")
_DIRECT: Final = regex(r"direct_copy_kernel_cuda.*\{lambda\((?P<kind>float|c10::\w+)\)#1\}")
_CASTS: Final = regex(r"LoadWithCast|gpu_kernel_impl<")
"""Plain copies load without a cast, or belong to ``gpu_kernel_impl_nocast``."""
_KINDS: Final[tuple[FloatKind, ...]] = ("float32", "bfloat16", "float16")
_UP: Final = 0
_NO_KIND: Final = -1
_KIND_BY_NAME: Final[dict[str, FloatKind]] = {
    "float": "float32",
    "c10::BFloat16": "bfloat16",
    "c10::Half": "float16",
    **{kind: kind for kind in _KINDS},
}

_CONVERSION: Final = regex(r"^aten::(to|type_as|_to_copy|copy_)$")
_EXPLICIT: Final = regex(r"^aten::(to|type_as)$")
_FLOAT32: Final = regex(
    r"norm|softm|softplus|loss|entropy|kl_div|exp(?!and)|log(?!ical)|pow|sqrt|reciprocal|upsample"
    r"|sum|prod|mean|(?<![a-z])(?:var|std)|dist|cosine|complex|fft|erfinv"
    r"|(?<![a-z])a?(?:cos|sin|tan)(?![a-z])|(?<![a-z])(?:a?(?:cos|sin)h|atanh)(?![a-z])"
    r"|mm(?![a-z])|matmul|linear|linalg|conv|attention|bilinear|(?<![a-z])(?:dot|mv|rnn|lstm|gru)"
)
"""Operators that need float32: the float32 list of autocast, sums and means, rotations of
complex numbers, and matmuls that are cast up on purpose."""


@lru_cache(maxsize=65536)
def find_cast_type(kernel: str) -> FloatKind | None:
    """Return the type that a kernel casts to, or None.

    Source: ``aten/src/ATen/native/cuda/Copy.cu`` (``direct_copy_kernel_cuda`` and the kernels it
    dispatches to), ``Loops.cuh`` and ``CUDALoops.cuh`` (``gpu_kernel_nocast``, ``LoadWithCast``).
    """
    match = _NAMED.search(kernel)
    if match is None and _CASTS.search(kernel):
        match = _DIRECT.search(kernel)

    return _KIND_BY_NAME.get(match["kind"]) if match else None


def needs_float32(op: str) -> bool:
    """Return whether an operator needs float32.

    Source: "CUDA Ops that can autocast to float32" in PyTorch's documentation of ``torch.amp``;
    ``ATen/autocast_mode.h`` (``AT_FORALL_FP32``).
    """
    return _FLOAT32.search(op) is not None


@dataclass(frozen=True)
class RoundTrips:
    """Casts to float32 and back without an operator between them that needs float32.

    Attributes:
        n: Number of round trips within steps.
        half: The type cast back to.
        work: Kernels of these casts and of their gradients. Shape ``(k,)``.
        owner: The forward operator that requested each cast. Shape ``(k,)``.
    """

    n: int
    half: FloatKind
    work: Rows
    owner: Int32s


def find_round_trips(
    events: EventTable, tree: CallTree, launches: Launches, steps: Steps
) -> RoundTrips | None:
    """Find needless casts up and back, or None.

    Only explicit conversions count, not conversions within other operators, such as autocast's or a
    library's. With a backward pass only casts with a gradient count, as optimizers cast each
    parameter once, too.
    """
    kind = _find_kinds(events, launches.work)
    is_cast = (kind != _NO_KIND) & (launches.op != NO_ROW)
    work, op, kind = launches.work[is_cast], launches.op[is_cast], kind[is_cast]

    is_up = kind == _UP
    if is_up.all() or not is_up.any():
        return None
    owner, is_forward = _find_owners(events, tree, op)
    if not is_forward.any():
        return None

    # Several kernels of one conversion count once.
    rows, first = np.unique(owner[is_forward], return_index=True)
    n, members = _find_trips(events, steps, rows, is_up[is_forward][first])
    if not n:
        return None

    in_trips = np.isin(owner, members)
    down = in_trips & ~is_up
    spent_ns = np.bincount(kind[down], events.dur_ns[work[down]])
    return RoundTrips(n, _KINDS[int(spent_ns.argmax())], work[in_trips], owner[in_trips])


def _find_kinds(events: EventTable, work: Rows) -> Int32s:
    """Find the type that each kernel casts to, as an index into the kinds."""

    def number_kind(kernel: str) -> int:
        kind = find_cast_type(kernel)
        return _NO_KIND if kind is None else _KINDS.index(kind)

    return map_names(events, work, number_kind, np.int32)


def _find_owners(events: EventTable, tree: CallTree, op: Int32s) -> tuple[Int32s, Mask]:
    """Find the forward operator that requested each cast, and whether it launched the cast itself.

    Args:
        op: The operators that launched casts. Shape ``(k,)``.

    Returns:
        Rows, :data:`NO_ROW` where it was not explicit, and a mask. Shape ``(k,)`` each.
    """
    outermost = tree.outermost(rows_named(events, _CONVERSION, Category.OP))
    root = outermost[op]
    above = np.where(root == NO_ROW, NO_ROW, tree.op_around[root])
    is_explicit = (root != NO_ROW) & rows_named(events, _EXPLICIT, Category.OP)[root]

    is_direct = is_explicit & (above == NO_ROW)
    if rows_named(events, BACKWARD, Category.OP).any():
        is_direct &= events.sequence.at(root) != MISSING

    # A gradient's cast belongs to the conversion in the forward pass.
    maker = find_forward_of_backward(events, tree)[op]
    gradient_of = np.where(maker == NO_ROW, NO_ROW, outermost[maker])
    owner = np.where(is_direct, root, gradient_of)
    return owner.astype(np.int32), is_direct


def _find_trips(events: EventTable, steps: Steps, rows: Int32s, is_up: Mask) -> tuple[int, Int32s]:
    """Find the needless round trips within steps: their number, and their casts.

    Args:
        rows: Operators that requested casts. Shape ``(c,)``.
        is_up: Whether each casts to float32. Shape ``(c,)``.
    """
    order = np.lexsort((events.ts_ns[rows], events.lane[rows]))
    rows, is_up = rows[order], is_up[order]
    lane, step = events.lane[rows], steps.of(events.ts_ns[rows])

    # Neighbouring casts in one direction form a run. A run up and a run down may be a round trip.
    is_apart = (lane[1:] != lane[:-1]) | (step[1:] != step[:-1])
    opens = np.concatenate(([True], is_apart | (is_up[1:] != is_up[:-1])))
    first = np.flatnonzero(opens)

    is_trip = (
        is_up[first[:-1]]
        & ~is_apart[first[1:] - 1]
        & (step[first[:-1]] != NO_STEP)
        & ~_is_used(events, rows[first[:-1]], rows[first[1:]])
    )

    in_trip = np.zeros(len(first), dtype=np.bool_)
    in_trip[:-1] |= is_trip
    in_trip[1:] |= is_trip
    return int(is_trip.sum()), rows[in_trip[np.cumsum(opens) - 1]]


def _is_used(events: EventTable, after: Int32s, before: Int32s) -> Mask:
    """Return whether a float32 operator or a backward pass is between two casts of one thread.

    Backward passes run on threads of their own.
    """
    width = int(events.end_ns.max()) + 1
    numbers = np.flatnonzero([needs_float32(name) for name in events.names])
    needs = np.flatnonzero(np.isin(events.name, numbers) & (events.category == Category.OP))

    backward_ns = np.sort(events.ts_ns[rows_named(events, BACKWARD, Category.OP)])
    keys = np.sort(events.lane[needs].astype(np.int64) * width + events.ts_ns[needs])
    start, end = (
        events.lane[rows].astype(np.int64) * width + events.ts_ns[rows] for rows in (after, before)
    )

    n_needs = np.searchsorted(keys, end) - np.searchsorted(keys, start)
    n_backward = np.searchsorted(backward_ns, events.ts_ns[before])
    n_backward -= np.searchsorted(backward_ns, events.ts_ns[after])
    return np.asarray(n_needs + n_backward > 0)
