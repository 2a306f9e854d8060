"""The time of modules as a tree, with repeated layers as one."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from typing import Final

import numpy as np

from profkit.dataclass import dataclass
from profkit.engine.context import Context
from profkit.engine.figures.per_step import calls_in_steps, device_work_in_steps, per_step
from profkit.index.distinct import distinct
from profkit.index.host.call_paths import TOP
from profkit.index.host.modules import ModuleTree, measure_own_times
from profkit.index.host.source import NO_FRAME
from profkit.model.events import NO_ROW, Category, Int64s, Rows
from profkit.model.report import ModuleSummary, Throughput
from profkit.patterns import regex

MAX_MODULES: Final = 200
"""Rows of the tree in a report, besides those that sum up the others of a module."""
_INSTANCE: Final = regex(r"^(?P<kind>.*?)(?:_(?P<number>\d{1,18}))?$", re.DOTALL)


@dataclass
class _Row:
    """A module, or repeated ones, or the smaller modules of its parent."""

    nodes: list[int]
    depth: int
    parent: int | None
    is_others: bool = False
    places: list[Int64s] = field(default_factory=list)


def module_times(
    ctx: Context, work_rows: Rows, throughput: Callable[[Int64s], Throughput | None]
) -> tuple[ModuleSummary, ...]:
    """The tree of modules in depth-first order, of siblings the one with the most time first.

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
    own = _Times(modules.n_calls, modules.self_host_ns, device_ns, *_in_steps(ctx, modules))
    total = _Times(*(_with_children(modules, each) for each in own))

    def step_time(of_nodes: Int64s, row: _Row) -> int | None:
        return per_step(ctx, int(of_nodes[row.nodes].sum()))

    spent_ns = total.device_ns if on_device else total.host_ns
    rows = _bounded(_collapsed(modules, spent_ns), spent_ns)
    row_of = _rows_of_nodes(modules, rows)
    of_work = np.append(row_of, NO_ROW)[modules.node[work_rows]]
    all_ns = int(ctx.events.dur_ns[ctx.launches.work].sum()) if on_device else ctx.window_ns
    for number, row in reversed([*enumerate(rows)]):
        row.places.append(np.flatnonzero(of_work == number))
        if row.parent is not None:
            rows[row.parent].places += row.places
    return tuple(
        ModuleSummary(
            name="" if row.is_others else _label({modules.name[node] for node in row.nodes}),
            n_modules=len({modules.name[node] for node in row.nodes}),
            depth=row.depth,
            n_calls=int(own.n_calls[row.nodes].sum()) if called is not None else None,
            host_ns=int(total.host_ns[row.nodes].sum()),
            self_host_ns=int((total if row.is_others else own).host_ns[row.nodes].sum()),
            device_ns=int(total.device_ns[row.nodes].sum()) if on_device else None,
            self_device_ns=int((total if row.is_others else own).device_ns[row.nodes].sum())
            if on_device
            else None,
            share=int(spent_ns[row.nodes].sum()) / all_ns if all_ns else 0.0,
            throughput=throughput(np.sort(np.concatenate(row.places))),
            host_per_step_ns=step_time(total.host_in_steps_ns, row),
            self_host_per_step_ns=step_time(
                (total if row.is_others else own).host_in_steps_ns, row
            ),
            device_per_step_ns=step_time(total.device_in_steps_ns, row) if on_device else None,
            self_device_per_step_ns=step_time(
                (total if row.is_others else own).device_in_steps_ns, row
            )
            if on_device
            else None,
        )
        for row in rows
    )


@dataclass(frozen=True)
class _Times:
    """Calls and times of each node, and the part of the times in steps. Shapes ``(m,)``."""

    n_calls: Int64s
    host_ns: Int64s
    device_ns: Int64s
    host_in_steps_ns: Int64s
    device_in_steps_ns: Int64s

    def __iter__(self) -> Iterator[Int64s]:
        return iter(
            (self.n_calls, self.host_ns, self.device_ns, self.host_in_steps_ns,
             self.device_in_steps_ns)
        )  # fmt: skip


def _without_calls(ctx: Context) -> ModuleTree | None:
    """Modules of which only the operators are known, from another step: none is in another."""
    events, module = ctx.events, ctx.source.module
    found = distinct(module[module != NO_FRAME])
    if not len(found):
        return None
    node = np.full(len(events), TOP, dtype=np.int64)
    known = module != NO_FRAME
    node[known] = np.searchsorted(found, module[known])
    host_ns = np.zeros(len(found), dtype=np.int64)
    ops = np.flatnonzero(known & (events.category == Category.OP))
    np.add.at(host_ns, node[ops], ctx.op_self_ns[ops])
    names = tuple(ctx.source.modules[each] for each in found.tolist())
    zero = np.zeros(len(found), dtype=np.int64)
    return ModuleTree(names, np.full(len(found), TOP, np.int32), zero, zero, host_ns, node)


def _device_ns(ctx: Context, modules: ModuleTree, *, in_steps: bool = False) -> Int64s:
    """Device time of each node without that of its children, all or in steps. Shape ``(m,)``."""
    launches = ctx.launches
    cause = np.where(launches.op != NO_ROW, launches.op, launches.launch)
    node = np.append(modules.node, TOP)[cause]
    counted = node != TOP
    if in_steps:
        counted &= device_work_in_steps(ctx, launches.work)
    found = np.zeros(len(modules.name), dtype=np.int64)
    np.add.at(found, node[counted], ctx.events.dur_ns[launches.work[counted]])
    return found


def _in_steps(ctx: Context, modules: ModuleTree) -> tuple[Int64s, Int64s]:
    """The part in steps of each node's own time, on the host and on devices. Shapes ``(m,)``."""
    host_ns = np.zeros(len(modules.name), dtype=np.int64)
    if not len(ctx.steps):
        return host_ns, host_ns
    if ctx.modules is None:  # its times are those of operators
        rows = np.flatnonzero((modules.node != TOP) & (ctx.events.category == Category.OP))
        spent_ns = ctx.op_self_ns[rows]
    else:
        rows, spent_ns = measure_own_times(ctx.events, ctx.tree, ctx.forward_ops, modules.node)
    counted = calls_in_steps(ctx, rows)
    np.add.at(host_ns, modules.node[rows[counted]], spent_ns[counted])
    return host_ns, _device_ns(ctx, modules, in_steps=True)


def _with_children(modules: ModuleTree, own: Int64s) -> Int64s:
    """The sum over each node and all below it. Shape ``(m,)``."""
    total = own.tolist()
    for node in range(len(total) - 1, -1, -1):
        if modules.parent[node] != TOP:
            total[modules.parent[node]] += total[node]
    return np.array(total, dtype=np.int64)


def _collapsed(modules: ModuleTree, spent_ns: Int64s) -> list[_Row]:
    """The tree in depth-first order, in which layers of one structure are one row.

    Modules of one class, with the same modules within, below one module are repeated layers; below
    them, the modules at one place are one row. Without modules within, a module is a row itself.
    """
    n = len(modules.name)
    within: list[list[int]] = [[] for _ in range(n)]
    top: list[int] = []
    for node in np.argsort(modules.first_ns, kind="stable").tolist():
        above = int(modules.parent[node])
        (top if above == TOP else within[above]).append(node)
    numbers: dict[tuple[object, ...], int] = {}
    structure = [0] * n
    for node in range(n - 1, -1, -1):
        key = (_instance(modules.name[node])[0], *(structure[each] for each in within[node]))
        structure[node] = numbers.setdefault(key, len(numbers))

    def groups(siblings: Sequence[list[int]]) -> list[list[int]]:
        """Rows of siblings, given as the nodes at each place; the first shown is the last."""
        found: dict[object, list[int]] = {}
        for place, nodes in enumerate(siblings):
            is_layer = within[nodes[0]]
            found.setdefault(structure[nodes[0]] if is_layer else (place,), []).extend(nodes)
        ordered = [*found.values()]
        ordered.reverse()
        ordered.sort(key=lambda nodes: int(spent_ns[nodes].sum()))
        return ordered

    rows: list[_Row] = []
    left = [_Row(nodes, 0, None) for nodes in groups([[node] for node in top])]
    while left:
        row = left.pop()
        places = zip(*(within[node] for node in row.nodes), strict=True)
        below = groups([list(nodes) for nodes in places])
        left += [_Row(nodes, row.depth + 1, len(rows)) for nodes in below]
        rows.append(row)
    return rows


def _bounded(rows: list[_Row], spent_ns: Int64s) -> list[_Row]:
    """The rows with the most time; the others of each module are one row."""
    if len(rows) <= MAX_MODULES:
        return rows
    times = np.array([int(spent_ns[row.nodes].sum()) for row in rows])
    kept = np.zeros(len(rows), dtype=np.bool_)
    # No module takes longer than the one that it is in, which is before it.
    kept[np.argsort(-times, kind="stable")[:MAX_MODULES]] = True
    place: dict[int | None, int | None] = {None: None}
    others: dict[int | None, _Row] = {}
    found: list[_Row] = []
    for number, row in enumerate(rows):
        if kept[number]:
            place[number] = len(found)
            found.append(_Row(row.nodes, row.depth, place[row.parent]))
        elif row.parent in place:
            other = others.get(row.parent)
            if other is None:
                other = others[row.parent] = _Row([], row.depth, place[row.parent], is_others=True)
                found.append(other)
            other.nodes += row.nodes
    return found


def _rows_of_nodes(modules: ModuleTree, rows: list[_Row]) -> Int64s:
    """The row of each node: that of the innermost module around it that has one. Shape ``(m,)``."""
    found = np.full(len(modules.name), NO_ROW, dtype=np.int64)
    for number, row in enumerate(rows):
        found[row.nodes] = number
    for node in np.flatnonzero(found == NO_ROW).tolist():
        found[node] = found[modules.parent[node]]
    return found


def _instance(name: str) -> tuple[str, int]:
    """The class of a module and its number: ``Linear_3``."""
    match = _INSTANCE.match(name)
    kind, number = match.groups() if match else (name, None)
    return kind, int(number or 0)


def _label(names: set[str]) -> str:
    """``Block_0…11`` for repeated layers."""
    ordered = sorted(names, key=_instance)
    return ordered[0] if len(names) == 1 else f"{ordered[0]}…{_instance(ordered[-1])[1]}"
