"""Operators that return values or sizes to the host, by kind and source line."""

from collections.abc import Callable, Iterator
from enum import IntEnum
from typing import Final

import numpy as np
import numpy.typing as npt

from profkit.engine.context import Context
from profkit.engine.detector import RuleInfo
from profkit.engine.families.python_calls import (
    TRANSFORMERS_TRAINER,
    are_within,
    find_library_function,
    place_of_call,
)
from profkit.engine.savings import WaitThresholds, find_costly_waits
from profkit.engine.windows import waits_in_windows
from profkit.engine.wording import at, times_per_step
from profkit.index.device.syncs import SyncKind
from profkit.index.distinct import common, distinct, marked
from profkit.index.runtime_calls import are_optimizer_steps, rows_named
from profkit.model.change import ProgramChange
from profkit.model.events import NO_ROW, Category, Int32s, Mask, Rows
from profkit.model.finding import Finding
from profkit.model.torch_names import EVALUATED_NODE
from profkit.patterns import regex

_VALUE: Final = regex(r"^aten::(item|_local_scalar_dense|is_nonzero|equal|allclose)$")
_LIBRARY_FIX: Final = (
    "Look for an option of the library without the read, such as `validate_args=False` of "
    "`torch.distributions`, or call it less often."
)
_TRAINER_FIX: Final = (
    "Pass `logging_nan_inf_filter=False` to `TrainingArguments`: the filter reads the loss of each "
    "step."
)
_ITEM: Final = regex(r"^aten::item$")
_FINITE_NORM: Final = regex(r"^aten::(linalg_vector_)?norm$")
_FINITE_TESTS: Final = tuple(regex(rf"^aten::{name}$") for name in ("isnan", "isinf", "logical_or"))
_NUMBER_TEST: Final = regex(r"^aten::(isnan|isinf|isfinite)$")
_REDUCTION: Final = regex(r"^aten::(any|all|logical_not|bitwise_not)$")
_CONDITION: Final = regex(r"^aten::is_nonzero$")
_ANY_TRUE: Final = regex(r"^aten::_is_any_true$")
_CHECK: Final = regex(r"^aten::(isnan|_is_any_true|item)$")
_FUSED: Final = regex(r"^aten::_fused_")
_UNSCALE: Final = regex(r"^aten::_amp_(foreach_)?non_finite_check_and_unscale_$")


class ReadKind(IntEnum):
    """Purposes of a read, each with a rule of its own."""

    VALUE = 0
    """The program uses a value."""
    SIZE = 1
    """The size of the result depends on values."""
    SCALER = 2
    """A gradient scaler asks whether all gradients are finite."""
    NORM = 3
    """The clipping of gradients asks whether their norm is finite."""
    ANOMALY = 4
    """Anomaly detection asks whether a gradient is not a number."""


def read_kinds(ctx: Context, rows: Rows | Int32s) -> npt.NDArray[np.uint8]:
    """Return the :class:`ReadKind` of some operators that read. Shape of ``rows``."""
    events = ctx.events
    is_value = rows_named(events, _VALUE, Category.OP)[rows]
    kinds = np.where(is_value, ReadKind.VALUE, ReadKind.SIZE).astype(np.uint8)

    # The later kinds are special uses of values and replace the first.
    kinds[np.isin(rows, _find_reads_of_scalers(ctx))] = ReadKind.SCALER
    kinds[np.isin(rows, _find_reads_of_norms(ctx))] = ReadKind.NORM
    kinds[np.isin(rows, find_anomaly_checks(ctx))] = ReadKind.ANOMALY
    return kinds


def find_anomaly_checks(ctx: Context) -> Rows:
    """Return the operators with which anomaly detection tests each gradient, ascending.

    Autograd calls them itself, outside its nodes: three for each gradient.

    Source: ``torch/csrc/autograd/engine.cpp`` (``AnomalyMode::should_check_nan``).
    """
    events = ctx.events
    test_rows = np.flatnonzero(rows_named(events, _ANY_TRUE, Category.OP))
    if not len(test_rows):
        return test_rows
    caller = ctx.tree.op_around

    nodes = common(
        caller[test_rows], np.flatnonzero(rows_named(events, EVALUATED_NODE, Category.OP))
    )
    rows = np.flatnonzero(rows_named(events, _CHECK, Category.OP))
    return np.asarray(rows[np.isin(caller[rows], nodes)])


def _find_reads_of_norms(ctx: Context) -> Rows:
    """Find the conditions on whether a norm is finite, by the operators that compute it.

    Source: ``torch/nn/utils/clip_grad.py`` (``error_if_nonfinite``).
    """
    patterns = (_FINITE_NORM, *_FINITE_TESTS, _CONDITION)
    named = [rows_named(ctx.events, pattern, Category.OP) for pattern in patterns]
    if not all(mask.any() for mask in named):
        return np.zeros(0, dtype=np.intp)

    # clip_grad_norm_ calls these operators one after the other: look for runs of their names.
    rows = _called(ctx, ctx.events.category == Category.OP)
    at = np.arange(len(rows) - len(patterns) + 1)

    is_match = np.ones(len(at), dtype=np.bool_)
    for place, mask in enumerate(named):
        is_match &= mask[rows[at + place]]

    last = at[is_match] + len(patterns) - 1
    return np.asarray(
        rows[last[ctx.events.lane[rows[last]] == ctx.events.lane[rows[at[is_match]]]]]
    )


def _called(ctx: Context, among: Mask) -> Rows:
    """Return some host events that are in no other of them, by thread and start."""
    events = ctx.events
    rows = np.flatnonzero(among & (ctx.tree.enclosing(among) == NO_ROW))
    return rows[np.lexsort((events.ts_ns[rows], events.lane[rows]))]


def _find_reads_of_scalers(ctx: Context) -> Rows:
    """Find the reads with which gradient scalers decide whether an optimizer steps.

    Such a read is the last thing that the thread does before the step, and gradients have been
    unscaled since the step before. A fused optimizer decides itself: a read before it is another.

    Source: ``torch/amp/grad_scaler.py`` (``step``, ``_maybe_opt_step``).
    """
    events = ctx.events
    unscales = rows_named(events, _UNSCALE, Category.OP)
    if not unscales.any():
        return np.zeros(0, dtype=np.intp)

    is_mark = are_optimizer_steps(events)
    fused = np.flatnonzero(rows_named(events, _FUSED, Category.OP))
    is_fused = marked(ctx.tree.nearest(is_mark)[fused], len(events))

    rows = _called(ctx, is_mark | (events.category == Category.OP))
    steps = np.flatnonzero(is_mark[rows])
    # A step is scaled if gradients were unscaled since the step before it.
    n_unscaled = np.cumsum(unscales[rows])
    is_scaled = np.diff(n_unscaled[steps], prepend=0) > 0

    read_places = steps[is_scaled & ~is_fused[rows[steps]] & (steps > 0)] - 1
    is_read = rows_named(events, _ITEM, Category.OP)[rows[read_places]]
    is_same_thread = events.lane[rows[read_places]] == events.lane[rows[read_places + 1]]
    return np.asarray(rows[read_places[is_read & is_same_thread]])


def are_tests_for_numbers(ctx: Context, rows: Rows) -> bool:
    """Return whether conditions test for NaN or infinity, as ``if x.isnan().any():`` does.

    Args:
        rows: Operators that read the condition.
    """
    events, tree = ctx.events, ctx.tree
    called = np.flatnonzero(tree.is_op & (tree.op_around == NO_ROW))
    called = called[np.lexsort((events.ts_ns[called], events.lane[called]))]
    is_test, is_reduction = (
        rows_named(events, pattern, Category.OP)[called] for pattern in (_NUMBER_TEST, _REDUCTION)
    )

    for place in np.flatnonzero(np.isin(called, rows)).tolist():
        before = place - 1
        while before >= 0 and is_reduction[before]:
            before -= 1
        if before < 0 or not is_test[before]:
            return False
        if events.lane[called[before]] != events.lane[called[place]]:
            return False
    return len(rows) > 0


def find_reads(ctx: Context) -> Rows:
    """Find the operators that wait for a device in the steps, as the program calls them."""
    return distinct(waits_in_windows(ctx, SyncKind.READ).owner).astype(np.intp)


def read_findings(
    ctx: Context,
    info: RuleInfo,
    thresholds: WaitThresholds,
    kind: ReadKind,
    texts: Callable[[Rows], tuple[str, str]],
) -> Iterator[Finding]:
    """Yield a finding for each line with reads of one kind that block the host.

    On a CPU no read waits for anything.

    Args:
        texts: What reads, as the subject of a sentence, and the fix, by the operators of a line.
    """
    rows = find_reads(ctx)
    rows = rows[read_kinds(ctx, rows) == kind]

    lines = list(ctx.by_line(rows))
    waits = waits_in_windows(ctx, SyncKind.READ)
    changes = [
        ProgramChange(
            waits.rows[np.isin(waits.owner, line_rows)], ((line_rows.astype(np.intp), 0.0),)
        )
        for _, line_rows in lines
    ]

    costs = find_costly_waits(ctx, changes, thresholds)
    for (location, line_rows), wait in zip(lines, costs, strict=True):
        if wait is not None:
            read, fix = texts(line_rows)
            place = at(location)
            if kind in {ReadKind.VALUE, ReadKind.SIZE} and (
                caller := find_library_function(ctx, line_rows)
            ):
                # A library's reads are not the program's to change.
                place, fix = place_of_call(caller, location), _library_fix(ctx, line_rows)
            yield wait.finding(
                info,
                message=(
                    f"{read}{place} runs {times_per_step(ctx, len(line_rows))} and {wait.text}"
                ),
                fix=fix,
                locations=(location,),
                rows=line_rows,
            )


def _library_fix(ctx: Context, rows: Rows) -> str:
    """Return the fix of a library's reads."""
    is_test = rows_named(ctx.events, _CONDITION, Category.OP)[rows]
    if is_test.all() and are_within(ctx, rows, TRANSFORMERS_TRAINER):
        return _TRAINER_FIX
    return _LIBRARY_FIX
