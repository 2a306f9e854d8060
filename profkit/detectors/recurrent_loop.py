"""KER021 recurrent-loop: a loop over time steps runs the operators of an LSTM, GRU or RNN.

What it finds:
    The same operators in the same order many times in a row, with the gates of an LSTM (three
    sigmoids and two tanhs), of a GRU (two and one) or of a simple recurrent network (one tanh), and
    nothing else that needs the state; and calls of ``nn.LSTMCell`` and its like in such a loop.

Why it matters:
    Each operator is called once for each time step, takes some microseconds whatever its size, and
    has one or two more in the backward pass. ``nn.LSTM`` runs all time steps in one call. The cost
    is an estimate: what the operators take beyond computing, of which the call keeps a share that
    was measured. With large products nothing is to be saved, and nothing reported.

How to fix it:
    ``nn.LSTM``, ``nn.GRU`` or ``nn.RNN`` with all time steps as input. A cell that differs from
    these: compute the products with the input for all time steps at once before the loop, and
    compile the rest by ``torch.compile``.

Example:
    ::

        for t in range(x.shape[1]):
            gates = self.of_input(x[:, t]) + self.of_state(h)
            i, f, g, o = gates.chunk(4, dim=1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()

Use instead:
    ::

        self.lstm = nn.LSTM(n_inputs, n_hidden, batch_first=True)
        outputs, (h, c) = self.lstm(x)

Reads:
    Operators in their order (``name``, ``ts_ns`` and ``dur_ns`` in nanoseconds), links between
    forward and backward pass, the device work that they launch, the steps, the source lines.

When to ignore this:
    The cell only resembles one of these, or the input of a time step depends on the output before.

Source:
    ``torch.nn.LSTM``, ``torch.nn.GRU``, ``torch.nn.RNN`` in PyTorch's documentation.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Final

import numpy as np

from profkit.engine.families.sampled_python import locate_by_samples
from profkit.index.distinct import distinct, marked, numbered
from profkit.index.host.repeats import Repeat, find_repeats
from profkit.index.runtime_calls import names_matching, rows_named
from profkit.rule import (
    NO_ROW,
    Category,
    Context,
    Finding,
    Float64s,
    ProgramChange,
    Rows,
    RuleInfo,
    at_first,
    dataclass,
    find_costliest_lines,
    format_count,
    in_windows,
    measure_saving,
    needs,
    regex,
    time_with_share,
)

INFO = RuleInfo(
    id="KER021",
    name="recurrent-loop",
    title="A loop runs a recurrent cell operator by operator",
    severity="warning",
    needs=(needs.STEPS, needs.OPERATORS),
    since="0.2.0",
)


@dataclass(frozen=True)
class Thresholds:
    """When a loop over time steps is a finding.

    Attributes:
        min_time_steps_count: Minimum time steps in a row: a few layers or heads are no sequence.
        min_saved_share: Minimum share of the steps that the fix saves, which changes the model's
            weights by name.
        warning_share: Share from which it is a warning.
    """

    min_time_steps_count: int = 16
    min_saved_share: float = 0.1
    warning_share: float = 0.2


_MAX_OPERATORS: Final = 80
"""The most operators of a time step, as of three layers of LSTMs."""
_GATES: Final = regex(r"^aten::(tanh|lstm_cell|gru_cell|rnn_tanh_cell|rnn_relu_cell)_?$")
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
    r"^aten::(mm|addmm|bmm|baddbmm|sigmoid|tanh|mul|add|sum|cat|\w+_backward)_?$"
)

_KEPT: Final = {"LSTM": 0.1, "GRU": 0.55, "RNN": 0.55}
"""Share of the time beside computing that torch's own layer takes. Measured with torch 2.13 on one
core for 8 to 64 rows of 16 to 128 units: LSTM 0.05, GRU 0.55, RNN 0.5 to 0.55."""
_CALL_NS: Final = 6_000
"""What a recorded operator takes at least; what a typical one takes longer is computing."""
_LONG_NS: Final = 50_000
"""An operator that usually takes as long computes most of the time."""
_KEPT_KERNELS: Final = 0.3
"""Assumed share of the time of kernels that those of cuDNN take for all time steps."""


@dataclass(frozen=True)
class _Loop:
    """A loop over time steps in a step of the program.

    Attributes:
        cell: ``LSTM``, ``GRU`` or ``RNN``.
        repeat: Where it is among the operators.
        rows: Its outermost operators, by time.
        backward: The outermost operators of its backward pass.
    """

    cell: str
    repeat: Repeat
    rows: Rows
    backward: Rows


def detect(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding for each function that runs a recurrent cell in a loop."""
    loops: dict[tuple[str, str | None, str | None], list[_Loop]] = {}
    for loop in _find_loops(ctx, thresholds.min_time_steps_count):
        location = ctx.location(int(loop.rows[0]))
        loops.setdefault((loop.cell, location.file, location.function), []).append(loop)
    for of_function in loops.values():
        yield from _build_finding(ctx, thresholds, of_function)


def _build_finding(ctx: Context, thresholds: Thresholds, loops: list[_Loop]) -> Iterator[Finding]:
    """Yield the finding on the loops of one function, if one call for all saves enough."""
    spans = [span for loop in loops for span in _spans_of(ctx, loop)]
    # Python between the operators is saved as well, so it is the time of the loops that shrinks.
    kept = _estimate_kept(ctx, loops)
    removed = tuple((round(start + kept * (end - start)), end) for start, end in spans)
    rows = np.concatenate([part for loop in loops for part in (loop.rows, loop.backward)])
    work, _ = ctx.launched_by(np.sort(rows))
    scaled = ((work, _KEPT_KERNELS),) if len(work) else ()
    saving = measure_saving(ctx, ProgramChange(scaled=scaled, host_time=removed), "estimate")
    if not saving.reaches(thresholds.min_saved_share):
        return

    cell = loops[0].cell
    n_times = max(loop.repeat.n for loop in loops)
    spent_ns = sum(end - start for start, end in spans)
    forward = np.sort(np.concatenate([loop.rows for loop in loops]))
    locations = locate_by_samples(ctx, spent_ns // 2) or find_costliest_lines(ctx, forward)
    n_ops = format_count(len(forward) // max(1, len(ctx.steps)))
    yield saving.finding(
        INFO,
        severity=saving.severity(thresholds.warning_share),
        confidence="medium",
        message=(
            f"The loop{at_first(locations)} runs the operators of {_ARTICLES[cell]} for one time "
            f"step after the other: {n_ops} operators per step of the program, in up to "
            f"{format_count(n_times)} time steps. With their backward pass they take "
            f"{time_with_share(ctx, spent_ns)}."
        ),
        fix=(
            f"Use `nn.{cell}`, which runs all time steps in one call. If the cell differs from it, "
            "compute the products with the input for all time steps before the loop, and compile "
            "the loop by `torch.compile`."
        ),
        locations=locations,
        rows=forward,
        n=len(loops),
        evidence={"cell": cell, "time_steps": n_times, "spent_ns": spent_ns},
        spans=tuple(sorted(spans)),
    )


_ARTICLES: Final = {
    "LSTM": "an LSTM",
    "GRU": "a GRU",
    "RNN": "a simple recurrent network",
}


def _find_loops(ctx: Context, min_times: int) -> Iterator[_Loop]:
    """Yield the loops over time steps that run a recurrent cell."""
    events, tree = ctx.events, ctx.tree
    is_gate = names_matching(events, _GATES)
    if np.count_nonzero(is_gate[events.name]) < min_times:
        return

    is_outermost = tree.is_op & (tree.op_around == NO_ROW)
    is_outermost &= ~rows_named(events, _AUTOGRADS, Category.OP)
    top = np.flatnonzero(is_outermost & (ctx.forward_ops == NO_ROW))
    top = events.sort_by_start(top[in_windows(ctx, top)])
    backward = np.flatnonzero(ctx.forward_ops != NO_ROW)
    forward_of = tree.outermost_op[ctx.forward_ops[backward]]

    for lane in distinct(events.lane[top]).tolist():
        of_lane = top[events.lane[top] == lane]
        step = ctx.step_of(of_lane)
        for number in distinct(step).tolist():
            rows = of_lane[step == number]
            for repeat in find_repeats(events.name[rows], min_times, _MAX_OPERATORS):
                body = events.name[rows[repeat.start : repeat.start + repeat.period]]
                cell = _cell_of([events.names[name] for name in body.tolist()])
                if cell:
                    of_loop = rows[repeat.start : repeat.end]
                    of_backward = backward[marked(of_loop, len(events))[forward_of]]
                    yield _Loop(cell, repeat, of_loop, of_backward)


def _cell_of(names: list[str]) -> str:
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


def _spans_of(ctx: Context, loop: _Loop) -> Iterator[tuple[int, int]]:
    """Yield the time of a loop, and of its backward pass."""
    events = ctx.events
    yield int(events.ts_ns[loop.rows[0]]), int(events.end_ns[loop.rows[-1]])
    if len(loop.backward):
        yield int(events.ts_ns[loop.backward].min()), int(events.end_ns[loop.backward].max())


def _estimate_kept(ctx: Context, loops: list[_Loop]) -> float:
    """Return the share of the loops' time that one call for all time steps takes."""
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
    spent_ns = sum(end - start for loop in loops for start, end in _spans_of(ctx, loop))
    share = min(1.0, float(computing_ns / max(1, spent_ns - (dur_ns - usual_ns).sum())))
    return share + _KEPT[loops[0].cell] * (1 - share)


def _typical_ns(ctx: Context, rows: Rows) -> Float64s:
    """Return the median time of the operators with the name and shapes of each. Shape of rows."""
    events = ctx.events
    shapes = np.maximum(events.input_dims.at(rows), -1) + 1
    _, kind = numbered(events.name[rows].astype(np.int64) * (len(events.names) + 1) + shapes)
    order = np.lexsort((events.dur_ns[rows], kind))
    n_of_kind = np.bincount(kind)
    middle = np.cumsum(n_of_kind) - (n_of_kind + 1) // 2
    return np.asarray(events.dur_ns[rows][order][middle][kind], dtype=np.float64)
