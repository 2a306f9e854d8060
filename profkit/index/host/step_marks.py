"""Steps of a recording without ``ProfilerStep``, delimited by repetitions in the program's loop.

The loop's thread fetches a batch and calls the optimizer in every iteration. Where neither is
recorded, the outermost regions or module calls may repeat. Each way needs three repetitions in a
regular order on one thread; otherwise the recording has no steps.
"""

import re
from dataclasses import replace
from typing import Final

import numpy as np

from profkit.dataclass import dataclass
from profkit.index.host.steps import (
    Steps,
    Work,
    data_waits,
    find_annotated_steps,
    optimizer_steps,
    outermost,
    without_own_edges,
)
from profkit.index.runtime_calls import names_matching, rows_named
from profkit.model.events import Category, EventTable, Int32s, Int64s, Rows
from profkit.model.report import StepOrigin
from profkit.model.torch_names import (
    COLLECTIVE,
    COMPILED_REGION,
    COMPILING,
    DYNAMO_OVERHEAD,
    FRAMING,
    MODULE_PREFIX,
    OPTIMIZER_ZERO_GRAD,
)
from profkit.patterns import regex

MIN_REPETITIONS: Final = 3
"""Two occurrences may be two parts of a program; the third makes it a loop."""
_REGULAR_SHARE: Final = 0.75
"""Minimum share of a loop's iterations with the usual order: epochs end and scalers skip some."""
_SPREAD: Final = 0.1
"""Numbers of operators that differ by less are equal: caches and optimizers set up some once."""
_MIN_WORK_SHARE: Final = 0.5
"""Minimum share of all operators in the repetitions of a region: otherwise it is not a loop."""
_NUMBERS: Final = regex(r"\d+")
_WRITTEN_BY_TORCH: Final = (FRAMING, COLLECTIVE, COMPILED_REGION, DYNAMO_OVERHEAD, COMPILING)


def find_steps(events: EventTable, *, entry_name: str | None = None, open_step: str = "") -> Steps:
    """Find the steps that the recording names, or else the steps that its marks delimit.

    Args:
        entry_name: See :func:`~profkit.index.host.steps.find_annotated_steps`.
        open_step: See :func:`~profkit.index.host.steps.find_annotated_steps`.
    """
    named = find_annotated_steps(events, entry_name=entry_name, open_step=open_step)
    return without_own_edges(events, named if len(named) else _find_marked_steps(events, named))


def _find_marked_steps(events: EventTable, named: Steps) -> Steps:
    """Find the steps that marks of the loop delimit.

    Args:
        named: Steps that the recording names: no complete one, but perhaps incomplete ones.
    """
    work = Work.of(events)
    ways = (
        _find_by_loader_and_optimizer,
        _find_by_optimizer,
        _find_by_loader,
        _find_by_region,
        _find_by_module,
    )
    for find in ways:
        steps = find(events, work)
        if steps is not None:
            return replace(steps, n_incomplete=steps.n_incomplete + named.n_incomplete)
    return named


@dataclass(frozen=True)
class _Iterations:
    """Parts of a loop that may be steps, in time order.

    Attributes:
        rows: The mark that delimits each. Shape ``(k,)``.
        starts_ns: Shape ``(k,)``.
        ends_ns: Shape ``(k,)``.
        n_incomplete: Number of further iterations that the window cut off.
    """

    rows: Rows
    starts_ns: Int64s
    ends_ns: Int64s
    n_incomplete: int = 0

    def build_steps(self, origin: StepOrigin, mark: str = "") -> Steps | None:
        """Return the iterations as steps, or None if they are too few."""
        if len(self.rows) < MIN_REPETITIONS:
            return None

        return Steps(
            rows=self.rows,
            names=tuple(f"step {number}" for number in range(1, len(self.rows) + 1)),
            starts_ns=self.starts_ns,
            ends_ns=self.ends_ns,
            origin=origin,
            mark=mark,
            n_incomplete=self.n_incomplete,
        )


def _find_by_loader_and_optimizer(events: EventTable, work: Work) -> Steps | None:
    """Find steps from the wait for a batch to the next, each with a call of an optimizer.

    Batches of one step may be several (accumulated gradients), and so may be its optimizers (a
    generator and a discriminator). Iterations without an optimizer (validation, steps that a
    gradient scaler skips) are not steps.
    """
    optimizers = _select_main_thread(events, optimizer_steps(events))
    if not len(optimizers):
        return None

    fetches = data_waits(events)
    fetches = fetches[events.lane[fetches] == events.lane[optimizers[0]]]
    fetches = _merge_adjacent(events, work, outermost(events, fetches))
    if not len(fetches):
        return None

    marks = np.concatenate((fetches, optimizers))
    is_fetch = np.arange(len(marks)) < len(fetches)
    order = np.argsort(events.ts_ns[marks], kind="stable")
    marks, is_fetch = marks[order], is_fetch[order]

    begins = np.flatnonzero(is_fetch & np.append(True, ~is_fetch[:-1]))
    ends = np.append(begins[1:], len(marks))
    n_fetched = np.array([is_fetch[a:b].sum() for a, b in zip(begins, ends, strict=True)])
    has_optimizer = ends - begins > n_fetched

    if has_optimizer.sum() < MIN_REPETITIONS:
        return None
    usual = int(np.bincount(n_fetched[has_optimizer]).argmax())
    # The end of an epoch or a validation fetches further batches, which the step does not use.
    first = begins + n_fetched - 1 if usual == 1 else begins
    is_step = has_optimizer & ((n_fetched == usual) | (usual == 1))
    if (n_fetched == usual)[has_optimizer].mean() < _REGULAR_SHARE:
        return None

    first, ends = first[is_step], ends[is_step]
    latest = marks[np.minimum(ends, len(marks) - 1)]
    ends_ns = np.where(ends < len(marks), events.ts_ns[latest], events.end_ns[marks[ends - 1]])

    n_cut = int(begins[0] > 0 or (not is_step[0] and has_optimizer[0]))
    n_cut += int(not has_optimizer[-1] and _has_work_after(events, work, marks[-1]))

    iterations = _Iterations(marks[first], events.ts_ns[marks[first]], ends_ns, n_cut)
    return iterations.build_steps("loader")


def _find_by_optimizer(events: EventTable, work: Work) -> Steps | None:
    """Find steps from one end of ``Optimizer.step`` to the next.

    Several optimizers of one step make the order of names or the numbers of operators periodic.
    """
    rows = _select_main_thread(events, optimizer_steps(events))
    rows = _merge_adjacent(events, work, rows, last=True)
    if len(rows) < MIN_REPETITIONS:
        return None

    ends = events.end_ns[rows]
    counts = work.count_between(ends[:-1], ends[1:])
    period = _find_period(events.name[rows[1:]], counts)
    if not period:
        return None

    # A step of several optimizers ends with the last of them.
    rows = rows[period - 1 :: period]
    ends = events.end_ns[rows]
    starts, closed = ends[:-1], rows[1:]

    begun = _find_first_start(events, work, rows)
    if begun is not None and period == 1:
        starts, closed = np.append(begun, starts), rows
    return _Iterations(closed, starts, events.end_ns[closed]).build_steps("optimizer")


def _find_first_start(events: EventTable, work: Work, rows: Rows) -> int | None:
    """Find where the first step begins: at ``zero_grad`` if all steps begin with it, else None."""
    zeroing = rows_named(events, OPTIMIZER_ZERO_GRAD, Category.ANNOTATION, Category.OP)
    zeroed = outermost(events, np.flatnonzero(zeroing & (events.lane == events.lane[rows[0]])))
    starts, ends = events.ts_ns[zeroed], events.end_ns[rows]
    place = np.searchsorted(starts, ends[:-1])
    if not len(zeroed) or starts[0] >= events.ts_ns[rows[0]] or (place == len(zeroed)).any():
        return None

    leads = work.count_between(ends[:-1], starts[place]) == 0
    return int(starts[0]) if leads.all() and place[0] == 1 else None


def _find_by_loader(events: EventTable, work: Work) -> Steps | None:
    """Find steps from one wait for a batch to the next, in a recording without an optimizer."""
    if len(optimizer_steps(events)):
        return None
    rows = _select_main_thread(events, data_waits(events))
    if len(rows) <= MIN_REPETITIONS:
        return None

    rows = _merge_adjacent(events, work, rows)
    starts, ends = events.ts_ns[rows[:-1]], events.ts_ns[rows[1:]]
    counts = work.count_between(starts, ends)

    # The wait that ends an epoch has only the begin of the next one after it.
    is_step = counts > _SPREAD * np.median(counts)
    n_cut = int(_has_work_after(events, work, rows[-1]))
    iterations = _Iterations(rows[:-1][is_step], starts[is_step], ends[is_step], n_cut)
    return iterations.build_steps("loader")


def _find_by_region(events: EventTable, work: Work) -> Steps | None:
    """Find steps that begin with the same outermost region of the program."""
    named = names_matching(events, re.compile("|".join(p.pattern for p in _WRITTEN_BY_TORCH)))
    regions = np.flatnonzero((events.category == Category.ANNOTATION) & ~named[events.name])
    keys = _number_names([_NUMBERS.sub("#", name) for name in events.names])
    return _find_by_repetition(events, work, regions, keys, "region")


def _find_by_module(events: EventTable, work: Work) -> Steps | None:
    """Find steps that begin with the call of the same outermost module."""
    named = names_matching(events, re.compile(f"^{re.escape(MODULE_PREFIX)}"))
    calls = np.flatnonzero((events.category == Category.PYTHON) & named[events.name])
    return _find_by_repetition(events, work, calls, _number_names(list(events.names)), "module")


def _number_names(names: list[str]) -> Int32s:
    """Number the names, with the same number for the same name."""
    numbers: dict[str, int] = {}
    return np.array([numbers.setdefault(name, len(numbers)) for name in names], dtype=np.int32)


def _find_by_repetition(
    events: EventTable, work: Work, rows: Rows, keys: Int32s, origin: StepOrigin
) -> Steps | None:
    """Find steps from one repetition of some outermost rows to the next.

    Args:
        keys: A number by name; rows with the same number repeat each other.
    """
    rows = _select_main_thread(events, rows)
    if len(rows) < MIN_REPETITIONS:
        return None

    key = keys[events.name[rows]]
    repeated = np.flatnonzero(np.bincount(key)[key] >= MIN_REPETITIONS)
    if not len(repeated) or repeated[-1] - repeated[0] + 1 != len(repeated):
        return None
    rows, key = rows[repeated], key[repeated]
    period = _find_smallest_period(key)
    begins = rows[::period]
    if len(begins) < MIN_REPETITIONS:
        return None

    latest = rows[np.minimum(np.arange(len(begins)) * period + period, len(rows)) - 1]
    starts = events.ts_ns[begins]
    ends = np.append(starts[1:], events.end_ns[latest[-1]])
    counts = work.count_between(starts, ends)
    usual = np.median(counts)
    is_usual = np.abs(counts - usual) <= _SPREAD * usual

    # The first repetitions may set up caches, and the window or the loop's end may cut the last.
    n_first = max(int((1 - _REGULAR_SHARE) * len(begins)), 1)
    if not usual or not is_usual[n_first:-1].all():
        return None
    if counts.sum() < _MIN_WORK_SHARE * len(work.starts_ns):
        return None

    n_complete = len(begins) - int(not is_usual[-1])
    mark = events.name_of(int(begins[0])).removeprefix(MODULE_PREFIX)
    iterations = _Iterations(
        begins[:n_complete], starts[:n_complete], ends[:n_complete], len(begins) - n_complete
    )
    return iterations.build_steps(origin, mark)


def _select_main_thread(events: EventTable, rows: Rows) -> Rows:
    """Select the outermost rows of the thread with most of them, in time order.

    Returns no rows if another thread has half as many: then several loops run at the same time.
    """
    if not len(rows):
        return rows
    # A second loop with its own steps would mix two programs.
    n_by_lane = np.bincount(events.lane[rows])
    lane = int(n_by_lane.argmax())
    if (2 * np.delete(n_by_lane, lane) > n_by_lane[lane]).any():
        return rows[:0]
    return outermost(events, rows[events.lane[rows] == lane])


def _merge_adjacent(events: EventTable, work: Work, rows: Rows, *, last: bool = False) -> Rows:
    """Keep one of several rows in sequence between which no operator runs.

    Args:
        last: Whether to keep the last row instead of the first.
    """
    if len(rows) < 2:  # noqa: PLR2004  (a single row has no neighbour)
        return rows
    apart = work.count_between(events.end_ns[rows[:-1]], events.ts_ns[rows[1:]]) > 0
    return np.asarray(rows[np.append(apart, True)] if last else rows[np.append(True, apart)])


def _has_work_after(events: EventTable, work: Work, row: int) -> bool:
    """Return whether operators begin after a row."""
    return bool((work.starts_ns > events.end_ns[row]).any())


def _find_period(names: Int32s, counts: Int64s) -> int:
    """Find the smallest period of names with about equal numbers of operators, or 0."""
    for period in range(1, len(names) // MIN_REPETITIONS + 1):
        is_same = names[:-period] == names[period:]
        # Names alone may repeat by chance: the amounts of work have to as well.
        pair = np.stack((counts[:-period], counts[period:]))
        is_equal = np.abs(pair[0] - pair[1]) <= _SPREAD * pair.max(axis=0)
        if is_same.all() and is_equal.mean() >= _REGULAR_SHARE:
            return period
    return 0


def _find_smallest_period(keys: Int32s) -> int:
    """Find the smallest period of a sequence; its length if nothing repeats."""
    for period in range(1, len(keys)):
        if (keys[:-period] == keys[period:]).all():
            return period
    return len(keys)
