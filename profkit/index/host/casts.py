"""Casts that a program writes itself, and those among them that go back and forth for nothing."""

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal

import numpy as np

from profkit.index.host.nesting import CallTree
from profkit.index.host.source import forward_of_backward
from profkit.index.host.steps import NO_STEP, Steps
from profkit.index.launches import Launches
from profkit.index.runtime_calls import rows_named
from profkit.model.events import MISSING, NO_ROW, Category, EventTable, Int32s, Mask, Rows
from profkit.model.torch_names import BACKWARD

FloatKind = Literal["bfloat16", "float16", "float32"]

_NAMED: Final = re.compile(r"(?P<source>b?float16to)?(?P<kind>b?float(?:16|32))_copy_kernel_cuda")
_DIRECT: Final = re.compile(r"direct_copy_kernel_cuda.*\{lambda\((?P<kind>float|c10::\w+)\)#1\}")
_CASTS: Final = re.compile(r"LoadWithCast|gpu_kernel_impl<")
"""Kernels that copy as it is load without a cast, or belong to ``gpu_kernel_impl_nocast``."""
_KINDS: Final[tuple[FloatKind, ...]] = ("float32", "bfloat16", "float16")
_UP: Final = 0
_NO_KIND: Final = -1
_CALLED: Final[dict[str, FloatKind]] = {
    "float": "float32", "c10::BFloat16": "bfloat16", "c10::Half": "float16",
    **{kind: kind for kind in _KINDS},
}  # fmt: skip

_CONVERSION: Final = re.compile(r"^aten::(to|type_as|_to_copy|copy_)$")
_ASKED: Final = re.compile(r"^aten::(to|type_as)$")
_FLOAT32: Final = re.compile(
    r"norm|softm|softplus|loss|entropy|kl_div|exp(?!and)|log(?!ical)|pow|sqrt|reciprocal|upsample"
    r"|sum|prod|mean|(?<![a-z])(?:var|std)|dist|cosine|complex|fft|erfinv"
    r"|(?<![a-z])a?(?:cos|sin|tan)(?![a-z])|(?<![a-z])(?:a?(?:cos|sin)h|atanh)(?![a-z])"
    r"|mm(?![a-z])|matmul|linear|linalg|conv|attention|bilinear|(?<![a-z])(?:dot|mv|rnn|lstm|gru)"
)
"""Operators that somebody wants float32 for: those that autocast computes in it, sums and means of
any kind, turns of complex numbers, and products that are cast up to on purpose."""


@lru_cache(maxsize=65536)
def cast_to(kernel: str) -> FloatKind | None:
    """What a kernel casts to; None if it is no cast to one of these types.

    Args:
        kernel: The kernel's name, as the profiler writes it.

    Source: ``aten/src/ATen/native/cuda/Copy.cu`` (``direct_copy_kernel_cuda`` and those that it
    hands on to), ``Loops.cuh`` and ``CUDALoops.cuh`` (``gpu_kernel_nocast``, ``LoadWithCast``).
    """
    found = _NAMED.search(kernel)
    if found is None and _CASTS.search(kernel):
        found = _DIRECT.search(kernel)
    return _CALLED.get(found["kind"]) if found else None


def needs_float32(op: str) -> bool:
    """Whether an operator is one that float32 is wanted for.

    Args:
        op: The operator's name.

    Source: "CUDA Ops that can autocast to float32" in PyTorch's documentation of ``torch.amp``;
    ``ATen/autocast_mode.h`` (``AT_FORALL_FP32``).
    """
    return _FLOAT32.search(op) is not None


@dataclass(frozen=True)
class RoundTrips:
    """Casts to float32, and those back that follow with nothing between that needs float32.

    Attributes:
        n: How often it goes up and comes back, within steps.
        half: What it comes back to.
        work: Kernels of these casts and of their gradients'. Shape ``(k,)``.
        owner: For each the row of the operator that was asked for the cast, on the forward pass.
            Shape ``(k,)``.
    """

    n: int
    half: FloatKind
    work: Rows
    owner: Int32s


def round_trips(
    events: EventTable, tree: CallTree, launches: Launches, steps: Steps
) -> RoundTrips | None:
    """Find casts up and back that serve nothing; None if there are none.

    What counts is a conversion that no operator asked for: not autocast's, whose are within the
    operator that wanted them, nor those of a library's own. Where there is a backward pass, only
    those that it goes through count: optimizers cast too, each parameter once.
    """
    kind = _kinds(events, launches.work)
    kept = (kind != _NO_KIND) & (launches.op != NO_ROW)
    work, op, kind = launches.work[kept], launches.op[kept], kind[kept]
    is_up = kind == _UP
    if is_up.all() or not is_up.any():
        return None
    owner, is_forward = _owners(events, tree, op)
    if not is_forward.any():
        return None
    rows, first = np.unique(owner[is_forward], return_index=True)
    n, members = _trips(events, steps, rows, is_up[is_forward][first])
    if not n:
        return None
    taken = np.isin(owner, members)
    down = taken & ~is_up
    spent_ns = np.bincount(kind[down], events.dur_ns[work[down]])
    return RoundTrips(n, _KINDS[int(spent_ns.argmax())], work[taken], owner[taken])


def _kinds(events: EventTable, work: Rows) -> Int32s:
    """What each piece of work casts to, as a place in the kinds."""
    numbers, place = np.unique(events.name[work], return_inverse=True)
    found = [cast_to(events.names[number]) for number in numbers.tolist()]
    codes = [_NO_KIND if kind is None else _KINDS.index(kind) for kind in found]
    return np.array(codes, dtype=np.int32)[place]


def _owners(events: EventTable, tree: CallTree, op: Int32s) -> tuple[Int32s, Mask]:
    """What was asked for each cast on the forward pass, and whether this is that cast.

    Args:
        op: The operators that launched casts. Shape ``(k,)``.

    Returns:
        Rows, :data:`NO_ROW` where the program asked for nothing, and a mask. Shape ``(k,)`` each.
    """
    outermost = tree.outermost(rows_named(events, _CONVERSION, Category.OP))
    root = outermost[op]
    above = np.where(root == NO_ROW, NO_ROW, tree.enclosing(events.category == Category.OP)[root])
    asked = (root != NO_ROW) & rows_named(events, _ASKED, Category.OP)[root]
    is_own = asked & (above == NO_ROW)
    if rows_named(events, BACKWARD, Category.OP).any():
        is_own &= events.sequence.at(root) != MISSING
    made_by = forward_of_backward(events, tree)[op]
    gradient_of = np.where(made_by == NO_ROW, NO_ROW, outermost[made_by])
    owner = np.where(is_own, root, gradient_of)
    return owner.astype(np.int32), is_own


def _trips(events: EventTable, steps: Steps, rows: Int32s, is_up: Mask) -> tuple[int, Int32s]:
    """How often casts go up and come back for nothing within a step, and which do.

    Args:
        rows: Operators that were asked for casts. Shape ``(c,)``.
        is_up: Whether each casts to float32. Shape ``(c,)``.
    """
    order = np.lexsort((events.ts_ns[rows], events.lane[rows]))
    rows, is_up = rows[order], is_up[order]
    lane, step = events.lane[rows], steps.of(events.ts_ns[rows])
    apart = (lane[1:] != lane[:-1]) | (step[1:] != step[:-1])
    opens = np.concatenate(([True], apart | (is_up[1:] != is_up[:-1])))
    first = np.flatnonzero(opens)
    comes_back = (
        is_up[first[:-1]]
        & ~apart[first[1:] - 1]
        & (step[first[:-1]] != NO_STEP)
        & ~_is_used(events, rows[first[:-1]], rows[first[1:]])
    )
    takes_part = np.zeros(len(first), dtype=np.bool_)
    takes_part[:-1] |= comes_back
    takes_part[1:] |= comes_back
    return int(comes_back.sum()), rows[takes_part[np.cumsum(opens) - 1]]


def _is_used(events: EventTable, after: Int32s, before: Int32s) -> Mask:
    """Whether something between two casts of one thread needs float32, or is a backward pass.

    A backward pass has a thread of its own.
    """
    width = int(events.end_ns.max()) + 1
    numbers = np.flatnonzero([needs_float32(name) for name in events.names])
    needs = np.flatnonzero(np.isin(events.name, numbers) & (events.category == Category.OP))
    turns = np.sort(events.ts_ns[rows_named(events, BACKWARD, Category.OP)])
    keys = np.sort(events.lane[needs].astype(np.int64) * width + events.ts_ns[needs])
    start, end = (
        events.lane[rows].astype(np.int64) * width + events.ts_ns[rows] for rows in (after, before)
    )
    n = np.searchsorted(keys, end) - np.searchsorted(keys, start)
    n += np.searchsorted(turns, events.ts_ns[before]) - np.searchsorted(turns, events.ts_ns[after])
    return np.asarray(n > 0)
