"""KER023 loop-over-elements: a loop runs short operators for one element of a tensor at a time.

What it finds:
    Loops that take the elements of a tensor one by one, as ``x[i]`` or by iterating over it, and
    run the same short operators for each: a model that is called with one sample after the other, a
    mask, a distance or a loss that is computed element by element. On a CPU also loops that compare
    the same tensors again and again and read a count each time, as metrics per class do.

Why it matters:
    An operator takes some microseconds to call, and as long again in the backward pass, whether it
    computes one number or thousands. Python between the operators takes as long. The cost is an
    estimate: the time of the loops without what their operators compute, of which a few operators
    on the whole tensor keep a small share. It is an upper bound in so far as it assumes that the
    elements can be computed together.

How to fix it:
    Pass the whole batch to the model: layers expect one. Replace element loops by operators on the
    whole tensors, with broadcasting, ``torch.where``, ``torch.arange`` for masks, ``torch.cdist``
    for distances, ``torch.bincount`` for counts; or write the function for one element and use
    ``torch.vmap``. Where each element needs the result of the one before, compile the loop by
    ``torch.compile``, or take the values to Python once by ``.tolist()``.

Example:
    ::

        outputs = torch.stack([model(sample) for sample in batch])

Use instead:
    ::

        outputs = model(batch)

Reads:
    Operators in their order (``name``, ``Input Dims``, ``Concrete Inputs``, ``ts_ns`` and
    ``dur_ns`` in nanoseconds), links between forward and backward pass, the device work that they
    launch, the steps, the source lines, and the samples of Python stacks.

When to ignore this:
    Each element needs the result of the one before, as in a recurrence.

Source:
    "Broadcasting semantics" and ``torch.vmap`` in PyTorch's documentation.
"""

from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Final

import numpy as np

from profkit.engine.families.operator_loops import (
    LoopBuilder,
    OperatorLoop,
    find_recurrent_layer,
    list_called_operators,
    list_spans,
    replace_by_one_call,
)
from profkit.engine.families.sampled_python import find_called_model, locate_by_samples
from profkit.index.compute.inputs import OpInputs, parse_inputs
from profkit.index.compute.shaped import by_shapes, tensor_shape
from profkit.index.distinct import distinct
from profkit.index.host.repeats import find_repeats
from profkit.index.runtime_calls import names_matching
from profkit.rule import (
    MISSING,
    Context,
    Finding,
    Int64s,
    Location,
    Rows,
    RuleInfo,
    at_first,
    dataclass,
    find_costliest_lines,
    format_count,
    measure_saving,
    needs,
    regex,
    time_with_share,
    uses_device,
)

INFO = RuleInfo(
    id="KER023",
    name="loop-over-elements",
    title="A loop calls operators for one element at a time",
    severity="warning",
    needs=(needs.OPERATORS, needs.SHAPES),
    since="0.2.0",
)


@dataclass(frozen=True)
class Thresholds:
    """When a loop over elements is a finding.

    Attributes:
        min_elements_count: Minimum elements that a loop takes: the three projections of attention,
            or a few heads, are no loop over data.
        min_saved_share: Minimum share of the steps that the fix saves, which changes the code.
        warning_share: Share from which it is a warning.
    """

    min_elements_count: int = 16
    min_saved_share: float = 0.1
    warning_share: float = 0.2


_SELECT: Final = regex(r"^aten::select$")
_UNBIND: Final = regex(r"^aten::unbind$")
_PRODUCT: Final = regex(r"^aten::(linear|addmm|mm|mv|addmv|matmul|bmm|baddbmm|conv\w*)$")
_CONVOLUTION: Final = regex(r"^aten::conv")
_VIEWS: Final = regex(
    r"^aten::(select|slice|narrow|unsqueeze|squeeze|view|reshape|t|transpose|permute|expand|detach"
    r"|lift_fresh|unbind|split|chunk|stack|cat|to|alias)$|^detach$"
)
"""Operators that compute nothing: a loop of these alone makes a batch from its pieces."""

_READ: Final = regex(r"^aten::item$")
_COMPARES: Final = regex(r"^aten::(eq|ne|lt|le|gt|ge)$")
_SUMS: Final = regex(r"^aten::(sum|mean|count_nonzero)$")
_COUNTS: Final = regex(
    r"^aten::(eq|ne|lt|le|gt|ge|__and__|__or__|__xor__|bitwise_\w+|logical_\w+|sum|mean"
    r"|count_nonzero|to|item)$"
)
"""Operators that count: a round with others may change what the next one reads."""
_MIN_ROUNDS: Final = 5
"""A metric of fewer classes takes next to no time."""
_MAX_OPERATORS: Final = 40
"""The most operators for one element: a layer of a network has as many, and is no element."""
_MIN_TAKEN_SHARE: Final = 0.5
"""Share of a tensor's elements that a loop takes at least."""
_KEPT_OF_CALLS: Final = 0.05
"""Assumed share of the host's time beside computing that some operators for all elements take."""
_KEPT_KERNELS: Final = 0.3
"""Assumed share of the time of kernels that those for all elements take: each takes 2 µs alone."""


class _Kind(Enum):
    """What a loop does in each round."""

    MODEL = "calls a model for one sample after the other"
    ELEMENTS = "runs operators on one element after the other"
    COUNTS = "compares the same tensors again and again, and reads a count each time"


_FIXES: Final = {
    _Kind.MODEL: (
        "Pass the whole batch in one call, as layers expect it. A function that takes one sample "
        "alone runs for a batch by `torch.vmap`; of several models, each takes its samples at once."
    ),
    _Kind.ELEMENTS: (
        "Compute all elements at once by operators on the whole tensors, with broadcasting or "
        "`torch.where`. If an element needs the result of the one before, compile the loop by "
        "`torch.compile`."
    ),
    _Kind.COUNTS: (
        "Count all at once: pairs of classes by `torch.bincount(target * n + predicted, "
        "minlength=n * n)`, the confusion matrix, or thresholds by broadcasting, as in `x[:, None] "
        "> thresholds`; then read all results by one `.tolist()`."
    ),
}


@dataclass(frozen=True)
class _Loop:
    """A loop in one step.

    Attributes:
        n_elements: How many elements it takes, or how often it counts.
        kind: What it does for each.
        operators: Its operators.
    """

    n_elements: int
    kind: _Kind
    operators: OperatorLoop


def detect(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding for each function that runs operators for one element after the other."""
    loops: dict[tuple[_Kind, str | None, str | None], list[_Loop]] = {}
    for loop in (*_find_loops(ctx, thresholds.min_elements_count), *_find_counting_loops(ctx)):
        location = ctx.location(int(loop.operators.rows[0]))
        loops.setdefault((loop.kind, location.file, location.function), []).append(loop)
    for of_function in loops.values():
        yield from _build_finding(ctx, thresholds, of_function)


def _build_finding(ctx: Context, thresholds: Thresholds, loops: list[_Loop]) -> Iterator[Finding]:
    """Yield the finding on the loops of one function, if operators for all save enough."""
    operators = [loop.operators for loop in loops]
    change = replace_by_one_call(ctx, operators, _KEPT_OF_CALLS, _KEPT_KERNELS)
    saving = measure_saving(ctx, change, "estimate")
    if not saving.reaches(thresholds.min_saved_share):
        return

    spans = list_spans(ctx, operators)
    spent_ns = sum(end - start for start, end in spans)
    rows = np.sort(np.concatenate([loop.rows for loop in operators]))
    locations = locate_by_samples(ctx, spent_ns // 2) or find_costliest_lines(ctx, rows)

    n_steps = max(1, len(ctx.steps))
    n_operators = format_count(round(len(rows) / n_steps))
    n_elements = format_count(round(sum(loop.n_elements for loop in loops) / n_steps))
    each = " per step" if len(ctx.steps) else ""
    has_backward = any(len(loop.backward) for loop in operators)
    subject = "With their backward pass they" if has_backward else "They"
    kind = loops[0].kind
    elements = "counts" if kind is _Kind.COUNTS else "elements"
    yield saving.finding(
        INFO,
        severity=saving.severity(thresholds.warning_share),
        confidence="medium",
        message=(
            f"The loop{at_first(locations)} {kind.value}: {n_operators} operators for "
            f"{n_elements} {elements}{each}. {subject} take {time_with_share(ctx, spent_ns)}."
        ),
        fix=_suggest_fix(ctx, kind, locations),
        locations=locations,
        rows=rows,
        n=len(loops),
        evidence={"elements": sum(loop.n_elements for loop in loops), "spent_ns": spent_ns},
        spans=spans,
    )


def _suggest_fix(ctx: Context, kind: _Kind, locations: Sequence[Location]) -> str:
    """Suggest one call for all, of the model by the program's own name where that is known."""
    model = find_called_model(ctx, locations[0]) if locations and kind is _Kind.MODEL else ""
    if not model:
        return _FIXES[kind]
    return (
        f"Pass the whole batch to `{model}` in one call, as layers expect it. A function that "
        "takes one sample alone runs for a batch by `torch.vmap`."
    )


def _find_loops(ctx: Context, min_elements: int) -> Iterator[_Loop]:
    """Yield the loops that take the elements of a tensor one by one."""
    names = ctx.events.name
    is_taking = names_matching(ctx.events, _SELECT) | names_matching(ctx.events, _UNBIND)
    if not is_taking[names].any():
        return

    builder = LoopBuilder(ctx)
    sizes = _count_first_dimensions(ctx)
    for called in list_called_operators(ctx):
        selecting = _find_selecting(ctx, called, sizes, min_elements)
        iterating = _find_iterating(ctx, called, sizes, min_elements)
        previous_end = 0
        # A loop over indices may be within one over elements: the one that begins first counts.
        for start, end, n_elements in sorted((*selecting, *iterating)):
            if start < previous_end:
                continue
            rows = called[start:end]
            calls_model = _calls_model(ctx, rows, n_elements)
            if calls_model is not None:
                previous_end = end
                kind = _Kind.MODEL if calls_model else _Kind.ELEMENTS
                yield _Loop(n_elements, kind, builder.build(rows))


def _find_counting_loops(ctx: Context) -> Iterator[_Loop]:
    """Yield the loops that compare the same tensors in each round, and read how many are equal.

    On a GPU each read waits, which is another finding's.
    """
    events = ctx.events
    is_read = names_matching(events, _READ)
    if uses_device(ctx) or not is_read[events.name].any():
        return

    builder = LoopBuilder(ctx)
    counts, compares, sums = (
        names_matching(events, pattern) for pattern in (_COUNTS, _COMPARES, _SUMS)
    )
    for called in list_called_operators(ctx):
        for repeat in find_repeats(events.name[called], _MIN_ROUNDS, _MAX_OPERATORS):
            rows = called[repeat.start : repeat.end]
            first_round = events.name[rows[: repeat.period]]
            is_counting = counts[first_round].all() and is_read[first_round].any()
            if not (is_counting and compares[first_round].any() and sums[first_round].any()):
                continue
            # A loop over layers or sequences has tensors of several sizes.
            shapes = events.input_dims.at(rows).reshape(repeat.n, repeat.period)
            if (shapes == shapes[0]).all():
                n_reads = int(np.count_nonzero(is_read[events.name[rows]]))
                yield _Loop(n_reads, _Kind.COUNTS, builder.build(rows))


def _count_first_dimensions(ctx: Context) -> Int64s:
    """Return the size of the dimension of which an operator takes one element, or each.

    Shape ``(n_events,)``: 0 for other operators, and for other dimensions than the first.
    """
    events = ctx.events
    sizes = np.zeros(len(events), dtype=np.int64)
    is_taking = names_matching(events, _SELECT) | names_matching(events, _UNBIND)
    rows = np.flatnonzero(is_taking[events.name])
    for inputs, of_shapes in by_shapes(events, rows):
        shape = tensor_shape(inputs, 0)
        # A second dimension of 1 is a batch of one sequence, whose time steps the loop takes.
        if shape and shape[1:2] != (1,):
            sizes[of_shapes] = shape[0]

    values = events.concrete_inputs.at(rows)
    for number in distinct(values[values != MISSING]).tolist():
        others = parse_inputs("[]", "", events.names[number])
        if others is not None and others.value(1) not in (0, None):
            sizes[rows[values == number]] = 0
    return sizes


def _find_selecting(
    ctx: Context, called: Rows, sizes: Int64s, min_elements: int
) -> Iterator[tuple[int, int, int]]:
    """Yield begin, end and number of elements of loops that select them by their index."""
    # What a loop does for an element may depend on its value, so its operators need not repeat.
    is_select = names_matching(ctx.events, _SELECT)[ctx.events.name[called]]
    places = np.flatnonzero(is_select & (sizes[called] >= min_elements))
    edges = np.flatnonzero(np.diff(places) > _MAX_OPERATORS) + 1
    for of_loop in np.split(places, edges):
        if len(of_loop) < min_elements:
            continue

        # Half of the elements of one tensor; a network with as many layers takes one each.
        tensors = ctx.events.input_dims.at(called[of_loop])
        _, first, counts = np.unique(tensors, return_index=True, return_counts=True)
        n_needed = _MIN_TAKEN_SHARE * sizes[called[of_loop[first]]]
        if (counts >= np.maximum(min_elements, n_needed)).any():
            yield int(of_loop[0]), int(of_loop[-1]) + 1, int(counts.max())


def _find_iterating(
    ctx: Context, called: Rows, sizes: Int64s, min_elements: int
) -> Iterator[tuple[int, int, int]]:
    """Yield begin, end and number of elements of loops that iterate over a tensor."""
    is_unbind = names_matching(ctx.events, _UNBIND)[ctx.events.name[called]]
    unbinding = np.flatnonzero(is_unbind & (sizes[called] >= min_elements))
    if not len(unbinding):
        return

    for repeat in find_repeats(ctx.events.name[called], min_elements, _MAX_OPERATORS):
        before = unbinding[unbinding < repeat.start + repeat.period]
        # What ends the loop may look like the begin of one more round.
        n_taken = int(sizes[called[before[-1]]]) if len(before) else 0
        is_near = len(before) and repeat.start - before[-1] <= _MAX_OPERATORS
        if is_near and abs(n_taken - repeat.n) <= 1:
            yield repeat.start, repeat.end, repeat.n


def _calls_model(ctx: Context, rows: Rows, n_elements: int) -> bool | None:
    """Return whether a loop multiplies one sample by weights; None if it may do nothing at once.

    Args:
        rows: The operators of the loop, which begin with the same one for each element.
    """
    events = ctx.events
    names = [events.names[name] for name in distinct(events.name[rows]).tolist()]
    if all(_VIEWS.search(name) for name in names):
        return None
    # Recurrent layers are another finding's.
    period = max(1, (len(rows) - 1) // (n_elements - 1))
    if find_recurrent_layer([events.name_of(row) for row in rows[:period].tolist()]):
        return None

    products = rows[names_matching(events, _PRODUCT)[events.name[rows]]]
    for inputs, of_shapes in by_shapes(events, products):
        if _multiplies_rows(events.name_of(int(of_shapes[0])), inputs):
            return None
    return bool(len(products))


def _multiplies_rows(name: str, inputs: OpInputs) -> bool:
    """Return whether a product has several rows, as of a batch whose time steps a loop takes."""
    factor, weight = (tensor_shape(inputs, int("add" in name) + place) for place in (0, 1))
    if not _CONVOLUTION.search(name):
        return len(factor) > 1 and len(weight) > 1 and factor[0] > 1
    # One sample may have no dimension for the batch.
    return len(factor) == len(weight) and factor[:1] != (1,)
