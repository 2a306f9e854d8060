"""The time of modules as a tree, with repeated layers as one."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field, fields
from typing import Final

import numpy as np

from profkit.dataclass import dataclass
from profkit.engine.context import Context
from profkit.engine.figures.per_step import calls_in_steps, device_work_in_steps, per_step
from profkit.index.distinct import distinct
from profkit.index.host.call_paths import TOP
from profkit.index.host.modules import ModuleTree, measure_own_times
from profkit.index.host.source import NO_FRAME
from profkit.index.sums import sum_by_key
from profkit.model.events import NO_ROW, Category, Int64s, Rows
from profkit.model.work_summary import ModuleSummary, Throughput
from profkit.patterns import regex

MAX_MODULES: Final = 200
"""Rows of the tree in a report, besides the rows that sum up a module's smaller modules."""
_INSTANCE: Final = regex(r"^(?P<kind>.*?)(?:_(?P<number>\d{1,18}))?$", re.DOTALL)


@dataclass
class _Row:
    """A module, or repeated ones, or the smaller modules of its parent."""

    nodes: list[int]
    depth: int
    parent: int | None
    is_others: bool = False
    places: list[Int64s] = field(default_factory=list)


def summarize_modules(
    ctx: Context, work_rows: Rows, throughput: Callable[[Int64s], Throughput | None]
) -> tuple[ModuleSummary, ...]:
    """Summarize the tree of modules, depth first, of siblings the one with the most time first.

    Args:
        work_rows: Operators whose work is known. Shape ``(k,)``.
        throughput: The throughput of some of these, by their indices.
    """
    called = ctx.modules
    modules = called if called is not None else _without_calls(ctx)
    if modules is None:
        return ()

    device_ns = _device_ns(ctx, modules)
    on_device = bool(device_ns.any())
    exclusive = _Times(modules.n_calls, modules.self_host_ns, device_ns, *_in_steps(ctx, modules))
    total = _Times(*(_with_children(modules, times) for times in exclusive))

    spent_ns = total.device_ns if on_device else total.host_ns
    rows = _limit_rows(_collapse(modules, spent_ns), spent_ns)
    row_of = _rows_of_nodes(modules, rows)
    of_work = np.append(row_of, NO_ROW)[modules.node[work_rows]]
    all_ns = int(ctx.events.dur_ns[ctx.launches.work].sum()) if on_device else ctx.window_ns

    # Rows come after their parents, so that in reverse each passes on all that is below it.
    for number, row in reversed([*enumerate(rows)]):
        row.places.append(np.flatnonzero(of_work == number))
        if row.parent is not None:
            rows[row.parent].places += row.places

    def summarize_row(row: _Row) -> ModuleSummary:
        names = {modules.name[node] for node in row.nodes}
        # A row of smaller modules stands for them with all that is within.
        own = total if row.is_others else exclusive
        within, alone = ([int(ns[row.nodes].sum()) for ns in times] for times in (total, own))

        _, host_ns, device_ns, host_in_steps_ns, device_in_steps_ns = within
        _, self_host_ns, self_device_ns, self_host_in_steps_ns, self_device_in_steps_ns = alone
        return ModuleSummary(
            name="" if row.is_others else _label(names),
            n_modules=len(names),
            depth=row.depth,
            n_calls=int(exclusive.n_calls[row.nodes].sum()) if called is not None else None,
            host_ns=host_ns,
            self_host_ns=self_host_ns,
            device_ns=device_ns if on_device else None,
            self_device_ns=self_device_ns if on_device else None,
            share=int(spent_ns[row.nodes].sum()) / all_ns if all_ns else 0.0,
            throughput=throughput(np.sort(np.concatenate(row.places))),
            host_per_step_ns=per_step(ctx, host_in_steps_ns),
            self_host_per_step_ns=per_step(ctx, self_host_in_steps_ns),
            device_per_step_ns=per_step(ctx, device_in_steps_ns) if on_device else None,
            self_device_per_step_ns=per_step(ctx, self_device_in_steps_ns) if on_device else None,
        )

    return tuple(map(summarize_row, rows))


@dataclass(frozen=True)
class _Times:
    """Calls and times of each node, and the part of the times in steps. Shapes ``(m,)``."""

    n_calls: Int64s
    host_ns: Int64s
    device_ns: Int64s
    host_in_steps_ns: Int64s
    device_in_steps_ns: Int64s

    def __iter__(self) -> Iterator[Int64s]:
        return iter(getattr(self, column.name) for column in fields(self))


def _without_calls(ctx: Context) -> ModuleTree | None:
    """Build the modules of an operator's recorded stack, which do not show how they nest."""
    events, module = ctx.events, ctx.source.module
    module_numbers = distinct(module[module != NO_FRAME])
    if not len(module_numbers):
        return None

    node = np.full(len(events), TOP, dtype=np.int64)
    has_module = module != NO_FRAME
    node[has_module] = np.searchsorted(module_numbers, module[has_module])

    ops = np.flatnonzero(has_module & (events.category == Category.OP))
    host_ns = sum_by_key(len(module_numbers), node[ops], ctx.op_self_ns[ops])
    names = tuple(ctx.source.modules[number] for number in module_numbers.tolist())
    zero = np.zeros(len(module_numbers), dtype=np.int64)
    return ModuleTree(names, np.full(len(module_numbers), TOP, np.int32), zero, zero, host_ns, node)


def _device_ns(ctx: Context, modules: ModuleTree, *, in_steps: bool = False) -> Int64s:
    """Sum the device time of each node without its children, all or in steps. Shape ``(m,)``."""
    launches = ctx.launches
    # Work without a known operator counts where it was launched.
    node = np.append(modules.node, TOP)[launches.op_or_call]
    counted = node != TOP
    if in_steps:
        counted &= device_work_in_steps(ctx, launches.work)

    spent_ns = ctx.events.dur_ns[launches.work[counted]]
    return sum_by_key(len(modules.name), node[counted], spent_ns)


def _in_steps(ctx: Context, modules: ModuleTree) -> tuple[Int64s, Int64s]:
    """Sum each node's own time in steps, on the host and on devices. Shapes ``(m,)``."""
    if not len(ctx.steps):
        zero = np.zeros(len(modules.name), dtype=np.int64)
        return zero, zero
    if ctx.modules is None:
        # Such a tree has the times of operators.
        rows = np.flatnonzero((modules.node != TOP) & (ctx.events.category == Category.OP))
        spent_ns = ctx.op_self_ns[rows]
    else:
        rows, spent_ns = measure_own_times(ctx.events, ctx.tree, ctx.forward_ops, modules.node)

    counted = calls_in_steps(ctx, rows)
    host_ns = sum_by_key(len(modules.name), modules.node[rows[counted]], spent_ns[counted])
    return host_ns, _device_ns(ctx, modules, in_steps=True)


def _with_children(modules: ModuleTree, values: Int64s) -> Int64s:
    """Sum values over each node and all nodes below it. Shape ``(m,)``."""
    total = values.tolist()
    for node in range(len(total) - 1, -1, -1):
        if modules.parent[node] != TOP:
            total[modules.parent[node]] += total[node]
    return np.array(total, dtype=np.int64)


def _collapse(modules: ModuleTree, spent_ns: Int64s) -> list[_Row]:
    """List the tree in depth-first order, with the layers of one structure as one row.

    Modules of one class, with the same modules within, below one module are repeated layers; below
    them, the modules at one place are one row. Without modules within, a module is a row itself.
    """
    n = len(modules.name)
    within: list[list[int]] = [[] for _ in range(n)]
    top: list[int] = []
    for node in np.argsort(modules.first_ns, kind="stable").tolist():
        above = int(modules.parent[node])
        (top if above == TOP else within[above]).append(node)

    # Nodes come after the nodes around them: backwards, what is within is numbered first.
    numbers: dict[tuple[object, ...], int] = {}
    structure = [0] * n
    for node in range(n - 1, -1, -1):
        key = (_instance(modules.name[node])[0], *(structure[child] for child in within[node]))
        structure[node] = numbers.setdefault(key, len(numbers))

    def groups(siblings: Sequence[list[int]]) -> list[list[int]]:
        """Group siblings, given as the nodes at each place, into rows, in reverse order."""
        by_structure: dict[object, list[int]] = {}
        for place, nodes in enumerate(siblings):
            # Modules without modules within, such as several Linear, are not repeated layers.
            is_layer = within[nodes[0]]
            by_structure.setdefault(structure[nodes[0]] if is_layer else (place,), []).extend(nodes)

        ordered = [*by_structure.values()]
        ordered.reverse()
        ordered.sort(key=lambda nodes: int(spent_ns[nodes].sum()))
        return ordered

    rows: list[_Row] = []
    pending = [_Row(nodes, 0, None) for nodes in groups([[node] for node in top])]
    while pending:
        row = pending.pop()
        # Modules of one structure have their children in the same order.
        places = zip(*(within[node] for node in row.nodes), strict=True)
        below = groups([list(nodes) for nodes in places])
        pending += [_Row(nodes, row.depth + 1, len(rows)) for nodes in below]

        rows.append(row)
    return rows


def _limit_rows(rows: list[_Row], spent_ns: Int64s) -> list[_Row]:
    """Keep the rows with the most time, and one row for the others of each module."""
    if len(rows) <= MAX_MODULES:
        return rows
    times = np.array([int(spent_ns[row.nodes].sum()) for row in rows])
    kept = np.zeros(len(rows), dtype=np.bool_)
    # No module takes longer than the one that it is in, which is before it.
    kept[np.argsort(-times, kind="stable")[:MAX_MODULES]] = True

    place: dict[int | None, int | None] = {None: None}
    remainders: dict[int | None, _Row] = {}
    bounded: list[_Row] = []
    for number, row in enumerate(rows):
        if kept[number]:
            place[number] = len(bounded)
            bounded.append(_Row(row.nodes, row.depth, place[row.parent]))
        elif row.parent in place:
            remainder = remainders.get(row.parent)
            if remainder is None:
                remainder = remainders[row.parent] = _Row(
                    [], row.depth, place[row.parent], is_others=True
                )
                bounded.append(remainder)
            remainder.nodes += row.nodes

    return bounded


def _rows_of_nodes(modules: ModuleTree, rows: list[_Row]) -> Int64s:
    """Return the row of each node: of the innermost module around it with a row. Shape ``(m,)``."""
    row_of = np.full(len(modules.name), NO_ROW, dtype=np.int64)
    for number, row in enumerate(rows):
        row_of[row.nodes] = number
    # Nodes come after their parents, so that a parent's row is known.
    for node in np.flatnonzero(row_of == NO_ROW).tolist():
        row_of[node] = row_of[modules.parent[node]]
    return row_of


def _instance(name: str) -> tuple[str, int]:
    """Return the class of a module and its number: ``Linear`` and 3 for ``Linear_3``."""
    match = _INSTANCE.match(name)
    kind, number = match.groups() if match else (name, None)
    return kind, int(number or 0)


def _label(names: set[str]) -> str:
    """Return a label such as ``Block_0…11`` for repeated layers."""
    ordered = sorted(names, key=_instance)
    return ordered[0] if len(names) == 1 else f"{ordered[0]}…{_instance(ordered[-1])[1]}"
