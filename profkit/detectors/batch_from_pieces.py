"""DAT007 batch-from-pieces: a batch is made from many small tensors or lists, one after the other.

What it finds:
    Four ways to make one tensor of many items in a step: stored tensors that ``torch.stack`` joins,
    such as the samples of a replay buffer; rows that are taken out of a tensor one by one and
    joined again; arrays or numbers of which ``torch.tensor`` makes a tensor each; and a list of
    arrays or lists that ``torch.tensor`` converts number by number. Batches of a ``DataLoader`` are
    another finding's.

Why it matters:
    Each item costs about as much as an operator, whatever its size. Rows of one tensor are taken
    by one operator, and NumPy joins arrays at a fraction of the time. The cost is an estimate: what
    the items take, without the time that recording an operator for each of them takes, and without
    what one operator for all of them takes.

How to fix it:
    Keep the items in one tensor that is allocated once, write each item into a row of it, and take
    a batch by ``buffer[index]``. Convert arrays by ``torch.from_numpy(np.stack(arrays))``.

Example:
    ::

        rewards = torch.stack([item.reward for item in random.sample(memory, 1024)])

Use instead:
    ::

        rewards = self.rewards[torch.randint(self.n_items, (1024,))]

Reads:
    Operators with their shapes (``name``, ``Input Dims``, ``Input type``, ``ts_ns`` and ``dur_ns``
    in nanoseconds), the time between them, the waits for a loader, the steps, the source lines.

When to ignore this:
    The items have different sizes, or come one by one from elsewhere.

Source:
    ``torch.tensor`` ("list of numpy.ndarrays is extremely slow"), ``torch.from_numpy`` in PyTorch's
    documentation; ``torch/csrc/utils/tensor_new.cpp`` (``recursive_store``).
"""

import re
from collections.abc import Iterator
from typing import Final

import numpy as np

from profkit.engine.families.sampled_python import locate_by_samples
from profkit.index.compute.inputs import n_elements
from profkit.index.compute.shaped import by_shapes, tensor_shape
from profkit.index.distinct import distinct, marked
from profkit.index.runtime_calls import are_optimizer_steps, rows_named
from profkit.rule import (
    NO_ROW,
    Category,
    Context,
    Finding,
    Location,
    Mask,
    ProgramChange,
    Rows,
    RuleInfo,
    at_first,
    dataclass,
    format_count,
    in_windows,
    known_locations,
    measure_saving,
    needs,
    regex,
    time_with_share,
    times_per_step,
)

INFO = RuleInfo(
    id="DAT007",
    name="batch-from-pieces",
    title="A batch is made from many small pieces",
    severity="warning",
    needs=(needs.STEPS, needs.SHAPES),
    since="0.2.0",
)


@dataclass(frozen=True)
class Thresholds:
    """When a batch from pieces is a finding.

    Attributes:
        min_pieces_count: Minimum pieces of a batch: the tensors of a few dozen samples are joined
            in some microseconds.
        min_saved_share: Minimum share of the steps that the fix saves.
        warning_share: Share from which it is a warning.
    """

    min_pieces_count: int = 64
    min_saved_share: float = 0.03
    warning_share: float = 0.1


_JOINS: Final = regex(r"^aten::(stack|cat|concat|concatenate|[vhd]stack|column_stack|row_stack)$")
_OF_PYTHON: Final = regex(r"^aten::lift_fresh$")
"""The operator by which torch hands a new tensor of Python's data to the program."""
_OF_TENSOR: Final = regex(r"^aten::select$")
_PREPARES: Final = regex(
    r"^aten::(lift_fresh|select|empty|to|detach_|view|reshape|unsqueeze|squeeze|flatten|permute"
    r"|transpose|div_?|mul_?|add_?|sub_?)$|^detach_$"
)
"""What is called for each item, apart from the operator that makes or takes it."""
_MAKES_LISTS: Final = regex(r"^aten::(_foreach_\w+|unbind|split\w*|chunk|tensor_split|unsafe_\w+)$")
"""Operators that return many tensors."""
_EMPTY: Final = regex(r"^aten::empty$")
_CONVERTED: Final = regex(r"^aten::to$")
_UNSQUEEZES: Final = regex(r"^aten::unsqueeze$")

_OWN_SHARE: Final = {"joined": 0.25, "taken": 0.5, "converted": 0.5}
"""Share of the recorded time that the program takes when it is not recorded. Measured for 64 to
1,024 pieces on one core: 0.27 to 0.31 for tensors that are joined, 0.43 to 0.83 for arrays that are
converted. What remains is the time that recording an operator for each piece takes."""
_CALL_NS: Final = 5_000
"""What an operator for all items takes besides."""
_PIECE_NS: Final = 120
"""What NumPy takes for one array when it joins them."""
_MIN_REPEATS: Final = 2
"""A single pause between operators may be an interruption."""
_NUMBER_NS: Final = 25
"""What NumPy takes for a number in a list of lists; torch takes 110 ns."""


@dataclass(frozen=True)
class _Batch:
    """A batch that is made from pieces.

    Attributes:
        kind: A key of :data:`_HOW`.
        row: The operator that tells its line.
        n_pieces: Its pieces.
        start_ns: When the first piece begins.
        end_ns: When the batch is made.
        saved_ns: What a fix saves of this time.
    """

    kind: str
    row: int
    n_pieces: int
    start_ns: int
    end_ns: int
    saved_ns: int


_HOW: Final = {
    "joined": "joins {n} stored tensors",
    "taken": "takes {n} rows out of a tensor, one after the other, and joins them",
    "converted": "makes {n} tensors of Python's data, one after the other,",
    "listed": "converts a list of {n} arrays or lists number by number",
}
_FIXES: Final = {
    "joined": (
        "Keep the items in one tensor that is allocated once, with a row for each, and take a "
        "batch by `buffer[index]`."
    ),
    "taken": "Take all rows at once by a tensor of their numbers: `tensor[index]`.",
    "converted": (
        "Make one array of all items, and one tensor of it: `torch.from_numpy(np.stack(items))`."
    ),
    "listed": (
        "Join the items by NumPy first: `torch.from_numpy(np.stack(items))`, or `np.array(items)`."
    ),
}


def detect(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding for each line and way in which batches are made from pieces."""
    batches = list(_find_batches(ctx, thresholds.min_pieces_count))
    rows = np.array([batch.row for batch in batches], dtype=np.intp)
    for kind in _HOW:
        of_kind = rows[[batch.kind == kind for batch in batches]]
        # Without lines these are all of the recording.
        for location, line_rows in ctx.by_line(of_kind):
            members = set(line_rows.tolist())
            of_line = [batch for batch in batches if batch.kind == kind and batch.row in members]
            yield from _build_finding(ctx, thresholds, location, of_line)


def _build_finding(
    ctx: Context, thresholds: Thresholds, location: Location, batches: list[_Batch]
) -> Iterator[Finding]:
    """Yield the finding on the batches of one line, if making them otherwise saves enough."""
    saved = tuple((batch.end_ns - batch.saved_ns, batch.end_ns) for batch in batches)
    saving = measure_saving(ctx, ProgramChange(host_time=saved), "estimate")
    if not saving.reaches(thresholds.min_saved_share):
        return

    kind, rows = batches[0].kind, np.array([batch.row for batch in batches], dtype=np.intp)
    spent_ns = sum(batch.end_ns - batch.start_ns for batch in batches)
    n_pieces = max(batch.n_pieces for batch in batches)
    locations = locate_by_samples(ctx, spent_ns) or known_locations(location)
    yield saving.finding(
        INFO,
        severity=saving.severity(thresholds.warning_share),
        confidence="medium",
        message=(
            f"The program{at_first(locations)} {_HOW[kind].format(n=format_count(n_pieces))} "
            f"{times_per_step(ctx, len(batches))}. This takes {time_with_share(ctx, spent_ns)}"
            f"{'' if kind == 'listed' else ', with the time that recording each piece takes'}."
        ),
        fix=_FIXES[kind],
        locations=locations,
        rows=rows,
        evidence={"pieces": n_pieces, "spent_ns": spent_ns},
        spans=tuple(sorted((batch.start_ns, batch.end_ns) for batch in batches)),
    )


def _find_batches(ctx: Context, min_pieces: int) -> Iterator[_Batch]:
    """Yield the batches that the steps make from pieces, on each thread."""
    events, tree = ctx.events, ctx.tree
    # What a loader or an optimizer joins is not the program's own code.
    is_outer = are_optimizer_steps(events) | (events.category == Category.OP)
    is_outer[ctx.data_waits] = True
    top = np.flatnonzero(tree.is_op & (tree.enclosing(is_outer) == NO_ROW))
    top = events.sort_by_start(top[in_windows(ctx, top)])

    for lane in distinct(events.lane[top]).tolist():
        calls = _Calls(ctx, top[events.lane[top] == lane])
        yield from _find_made_one_by_one(calls, min_pieces)
        yield from _find_joined(calls, min_pieces)
        yield from _find_listed(calls, min_pieces)


class _Calls:
    """The outermost operators of one thread, by time."""

    def __init__(self, ctx: Context, rows: Rows) -> None:
        self.ctx = ctx
        self.rows = rows
        self.step = ctx.step_of(rows)

    def named(self, pattern: re.Pattern[str]) -> Mask:
        """Return which of them have a matching name. Shape of ``rows``."""
        return rows_named(self.ctx.events, pattern, Category.OP)[self.rows]

    def build(self, kind: str, place: int, n_pieces: int, span: tuple[int, int]) -> _Batch:
        """Build the batch of some pieces.

        Args:
            place: The call that tells its line.
            span: Its start and end.
        """
        kept_ns = _CALL_NS + (_PIECE_NS * n_pieces if kind == "converted" else 0)
        saved_ns = max(0, round(_OWN_SHARE[kind] * (span[1] - span[0])) - kept_ns)
        return _Batch(kind, int(self.rows[place]), n_pieces, *span, saved_ns)


def _find_made_one_by_one(calls: _Calls, min_pieces: int) -> Iterator[_Batch]:
    """Yield batches of which each item is converted, or taken from a tensor, by itself."""
    events, rows = calls.ctx.events, calls.rows
    joins, prepares = calls.named(_JOINS), calls.named(_PREPARES)
    # A run ends at any other operator, and with its step.
    is_break = ~prepares | (np.diff(calls.step, prepend=-1) != 0)
    run = np.cumsum(is_break)

    for kind, pattern in (("converted", _OF_PYTHON), ("taken", _OF_TENSOR)):
        items = np.flatnonzero(calls.named(pattern) & prepares)
        for number in np.flatnonzero(np.bincount(run[items]) >= min_pieces).tolist():
            pieces = items[run[items] == number]
            last = int(np.flatnonzero(run == number)[-1])
            # Rows that nothing joins are what a loop goes through.
            is_joined = last + 1 < len(rows) and joins[last + 1]
            if kind == "taken" and not is_joined:
                continue
            end = last + 1 if is_joined else last
            span = int(events.ts_ns[rows[pieces[0]]]), int(events.end_ns[rows[end]])
            yield calls.build(kind, int(pieces[0]), len(pieces), span)


def _find_joined(calls: _Calls, min_pieces: int) -> Iterator[_Batch]:
    """Yield batches that are joined of tensors which no operator of the same step has made."""
    ctx, events = calls.ctx, calls.ctx.events
    places = np.flatnonzero(calls.named(_JOINS))
    unsqueezed = np.flatnonzero(rows_named(events, _UNSQUEEZES, Category.OP))
    n_tensors = np.bincount(ctx.tree.outermost_op[unsqueezed], minlength=len(events))
    makes_lists = calls.named(_MAKES_LISTS)
    has_backward = marked(
        ctx.tree.outermost_op[ctx.forward_ops[ctx.forward_ops != NO_ROW]], len(events)
    )

    # Each join has the operators since the one before it to itself.
    before = 0
    for place in places.tolist():
        row = int(calls.rows[place])
        n_pieces = int(n_tensors[row])
        begin = max(before, int(np.searchsorted(calls.step, calls.step[place])))
        before = place + 1
        is_stored = place - begin < n_pieces and not makes_lists[begin:place].any()
        if n_pieces >= min_pieces and is_stored and not has_backward[row]:
            span = int(events.ts_ns[row]), int(events.end_ns[row])
            yield calls.build("joined", place, n_pieces, span)


def _find_listed(calls: _Calls, min_pieces: int) -> Iterator[_Batch]:
    """Yield batches that ``torch.tensor`` makes of a list, which takes from ``empty`` to ``to``."""
    events, rows = calls.ctx.events, calls.rows
    follows = calls.named(_EMPTY)[:-2] & calls.named(_CONVERTED)[1:-1] & calls.named(_OF_PYTHON)[2:]
    first = np.flatnonzero(follows)
    shape_of = {
        row: tensor_shape(inputs, 0)
        for inputs, of_shape in by_shapes(events, rows[first + 1])
        for row in of_shape.tolist()
    }
    by_shape: dict[tuple[int, ...], list[int]] = {}
    for place in first.tolist():
        shape = shape_of.get(int(rows[place + 1]), ())
        # Single numbers take NumPy as long.
        if len(shape) > 1 and shape[0] >= min_pieces:
            by_shape.setdefault(shape, []).append(place)

    for shape, places in by_shape.items():
        starts_ns = events.end_ns[rows[places]]
        gap_ns = events.ts_ns[rows[np.array(places) + 1]] - starts_ns
        if len(places) < _MIN_REPEATS:
            continue
        # An interruption makes one of them longer.
        usual_ns = int(np.median(gap_ns))
        kept_ns = _CALL_NS + _PIECE_NS * shape[0] + _NUMBER_NS * n_elements(shape)
        for place, start_ns, ns in zip(places, starts_ns.tolist(), gap_ns.tolist(), strict=True):
            saved_ns = max(0, min(ns, usual_ns) - kept_ns)
            row = int(rows[place + 1])
            yield _Batch("listed", row, shape[0], start_ns, start_ns + ns, saved_ns)
