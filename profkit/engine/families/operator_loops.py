"""Loops of the program that run short operators again and again, and what one call for all keeps.

Such a loop costs the host some microseconds per operator whatever its size, and as much again in
the backward pass. What operators take beyond that is computing, which one call has to do as well.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import numpy as np

from profkit.dataclass import dataclass
from profkit.engine.context import Context
from profkit.engine.windows import in_windows
from profkit.index.distinct import distinct, marked, numbered
from profkit.index.runtime_calls import rows_named
from profkit.model.change import ProgramChange
from profkit.model.events import NO_ROW, Category, Float64s, Rows
from profkit.patterns import regex

_AUTOGRADS: Final = regex(r"^autograd::")
_CELL: Final = regex(r"^aten::(lstm|gru|rnn)_(?:\w+_)?cell$")
_PRODUCT: Final = regex(r"^aten::(linear|addmm|mm|matmul|bmm|baddbmm)$")
_FITS: Final = regex(
    r"^aten::(linear|addmm|mm|matmul|add|sub|rsub|mul|addcmul|lerp|neg|sigmoid|tanh|cat|concat|stack"
    r"|select|slice|narrow|chunk|split|split_with_sizes|unsafe_chunk|unsafe_split|unbind|squeeze"
    r"|unsqueeze|t|transpose|permute|view|reshape|expand|expand_as|contiguous|clone|detach|zeros"
    r"|ones_like|zeros_like|to|empty|copy|fill|item|is_nonzero|lift_fresh|dropout"
    r"|lstm_cell|gru_cell|rnn_tanh_cell|rnn_relu_cell)_?$|^detach_?$"
)
"""What a cell needs, and what takes its input and keeps its output. Any other operator, such as a
softmax, may need the state of each time step."""
_COMPUTES: Final = regex(
    r"^aten::(mm|addmm|mv|addmv|bmm|baddbmm|convolution|native_\w+_norm|_?scaled_dot_product\w+"
    r"|sigmoid|tanh|mul|div|add|sub|pow|sqrt|exp|sum|mean|norm|linalg_vector_norm|cat|_?softmax"
    r"|max_pool\w+|gather|index|sort|topk|copy|\w+_backward)_?$"
)

_CALL_NS: Final = 6_000
"""What a recorded operator takes at least; what a typical one takes longer is computing."""
_LONG_NS: Final = 50_000
"""An operator that usually takes as long computes most of the time."""


@dataclass(frozen=True)
class OperatorLoop:
    """A loop in a step of the program.

    Attributes:
        rows: Its outermost operators, by time.
        backward: The operators of its backward pass.
    """

    rows: Rows
    backward: Rows


def list_called_operators(ctx: Context) -> Iterator[Rows]:
    """Yield the operators that each thread calls itself in each step, by time.

    Those of backward passes are left out, and those of a loader, which has findings of its own.
    Without steps, the recording is one.
    """
    events, tree = ctx.events, ctx.tree
    is_outermost = tree.is_op & (tree.op_around == NO_ROW)
    is_outermost &= ~rows_named(events, _AUTOGRADS, Category.OP)
    is_outermost &= ctx.nearest(ctx.data_waits) == NO_ROW
    top = np.flatnonzero(is_outermost & (ctx.forward_ops == NO_ROW))
    top = events.sort_by_start(top[in_windows(ctx, top)])

    for lane in distinct(events.lane[top]).tolist():
        of_lane = top[events.lane[top] == lane]
        step = ctx.step_of(of_lane)
        for number in distinct(step).tolist():
            yield of_lane[step == number]


class LoopBuilder:
    """Builds loops from their operators, with those of their backward passes."""

    def __init__(self, ctx: Context) -> None:
        self._n_events = len(ctx.events)
        self._backward = np.flatnonzero(ctx.forward_ops != NO_ROW)
        self._forward_of = ctx.tree.outermost_op[ctx.forward_ops[self._backward]]

    def build(self, rows: Rows) -> OperatorLoop:
        """Build the loop that calls some operators, which are given by time."""
        return OperatorLoop(rows, self._backward[marked(rows, self._n_events)[self._forward_of]])


def find_recurrent_layer(names: list[str]) -> str:
    """Return the layer of torch that has a loop's operators; empty if none has, or other ones."""
    if not all(_FITS.search(name) for name in names):
        return ""
    cells = {match[1].upper() for name in names if (match := _CELL.search(name))}
    if cells:
        return cells.pop() if len(cells) == 1 else ""

    # Methods in place and functions count alike.
    counts = Counter(name.removeprefix("aten::").rstrip("_") for name in names)
    n_tanh, n_sigmoid, n_mul = counts["tanh"], counts["sigmoid"], counts["mul"]
    n_products = sum(1 for name in names if _PRODUCT.search(name))
    is_split = any(counts[name] for name in ("chunk", "split", "split_with_sizes", "unsafe_chunk"))
    takes_time = any(counts[name] for name in ("select", "slice", "unbind", "narrow"))
    if not n_products or not n_tanh:
        return ""

    # Several layers within a time step have as many gates each.
    if n_mul + counts["addcmul"] >= n_tanh and n_tanh % 2 == 0:
        n_layers = n_tanh // 2
        if n_sigmoid == 3 * n_layers or (n_sigmoid == n_layers and is_split):
            return "LSTM"
    has_mixing = n_mul + counts["lerp"] >= n_tanh
    if has_mixing and (n_sigmoid == 2 * n_tanh or (n_sigmoid == n_tanh and is_split)):
        return "GRU"
    # Layers of a deep network have a tanh after each product as well, but take no time steps.
    return "RNN" if not n_sigmoid and n_products == 2 * n_tanh and takes_time else ""


def list_spans(ctx: Context, loops: Iterable[OperatorLoop]) -> tuple[tuple[int, int], ...]:
    """Return the times of loops and of their backward passes, sorted."""
    events = ctx.events
    spans = [(events.ts_ns[loop.rows[0]], events.end_ns[loop.rows[-1]]) for loop in loops]
    spans += [
        (events.ts_ns[loop.backward].min(), events.end_ns[loop.backward].max())
        for loop in loops
        if len(loop.backward)
    ]
    return tuple(sorted((int(start), int(end)) for start, end in spans))


def replace_by_one_call(
    ctx: Context, loops: Sequence[OperatorLoop], kept_of_calls: float, kept_kernels: float
) -> ProgramChange:
    """Return the change that runs one call, with its backward pass, instead of each loop.

    Args:
        kept_of_calls: The share that remains of the host's time beside computing.
        kept_kernels: The share that remains of the time of kernels.
    """
    # Python between the operators is saved as well, so it is the time of the loops that shrinks.
    spans = list_spans(ctx, loops)
    kept = _estimate_kept(ctx, loops, spans, kept_of_calls)
    removed = tuple((round(start + kept * (end - start)), end) for start, end in spans)

    rows = np.concatenate([part for loop in loops for part in (loop.rows, loop.backward)])
    work, _ = ctx.launched_by(np.sort(rows))
    scaled = ((work, kept_kernels),) if len(work) else ()
    return ProgramChange(scaled=scaled, host_time=removed)


def _estimate_kept(
    ctx: Context,
    loops: Sequence[OperatorLoop],
    spans: tuple[tuple[int, int], ...],
    kept_of_calls: float,
) -> float:
    """Return the share of the loops' time that one call for all of them takes."""
    events, tree = ctx.events, ctx.tree
    # A node of the backward pass is within the operator that evaluates it.
    parts = [part for loop in loops for part in (loop.rows, tree.outermost_op[loop.backward])]
    outermost = np.concatenate(parts).astype(np.intp)
    is_inside = marked(outermost, len(events))[tree.outermost_op]

    # What computes may call another one that does, and counts once.
    computes = rows_named(events, _COMPUTES, Category.OP)
    is_outer = computes[tree.op_around] & (tree.op_around != NO_ROW)
    rows = np.flatnonzero(is_inside & computes & ~is_outer)
    dur_ns = events.dur_ns[rows]
    typical_ns = _typical_ns(ctx, rows)

    # A short operator that takes long was interrupted, which is neither computing nor calling.
    usual_ns = np.where(typical_ns < _LONG_NS, np.minimum(typical_ns, dur_ns), dur_ns)
    computing_ns = np.maximum(usual_ns - _CALL_NS, 0).sum()
    spent_ns = sum(end - start for start, end in spans)
    share = min(1.0, float(computing_ns / max(1, spent_ns - (dur_ns - usual_ns).sum())))
    return share + kept_of_calls * (1 - share)


def _typical_ns(ctx: Context, rows: Rows) -> Float64s:
    """Return the median time of the operators with the name and shapes of each. Shape of rows."""
    events = ctx.events
    shapes = np.maximum(events.input_dims.at(rows), -1) + 1
    _, kind = numbered(events.name[rows].astype(np.int64) * (len(events.names) + 1) + shapes)
    order = np.lexsort((events.dur_ns[rows], kind))
    n_of_kind = np.bincount(kind)
    middle = np.cumsum(n_of_kind) - (n_of_kind + 1) // 2
    return np.asarray(events.dur_ns[rows][order][middle][kind], dtype=np.float64)
