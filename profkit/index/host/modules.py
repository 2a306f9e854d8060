"""The calls of ``nn.Module`` as a tree of modules, with the work that each of them caused.

A module is a name that torch writes in a trace with stacks: ``nn.Module: Linear_3``. A module that
several modules call is several nodes. Work of the backward pass belongs to the module whose forward
pass made it. Calls of modules within it, as with activation checkpointing, are below that module.
"""

import re
from typing import Final

import numpy as np

from profkit.dataclass import dataclass
from profkit.index.host.call_paths import TOP, Paths
from profkit.index.host.nesting import CallTree, compute_self_ns
from profkit.index.host.source import backward_rows
from profkit.index.runtime_calls import rows_named
from profkit.index.sums import sum_by_key
from profkit.model.events import (
    NO_ROW,
    Category,
    EventTable,
    Int32s,
    Int64s,
    Mask,
    Rows,
    are_equally_long,
    is_within,
)
from profkit.model.torch_names import MODULE_PREFIX
from profkit.patterns import regex

_CALL: Final = regex(f"^{re.escape(MODULE_PREFIX)}")


@dataclass(frozen=True)
class ModuleTree:
    """The modules that were called. Parents precede their children.

    Attributes:
        name: Torch's name of each node's module: ``Linear_3``.
        parent: The node that called it, or :data:`TOP`. Shape ``(m,)``.
        n_calls: Shape ``(m,)``.
        first_ns: The start of its first call. Shape ``(m,)``.
        self_host_ns: Host time of its calls, and of the backward operators of its forward
            operators, without modules within. Shape ``(m,)``.
        node: The innermost module of each row, or :data:`TOP`. Shape ``(n,)``, over all rows.
    """

    name: tuple[str, ...]
    parent: Int32s
    n_calls: Int64s
    first_ns: Int64s
    self_host_ns: Int64s
    node: Int64s

    def fits(self, events: EventTable) -> bool:
        """Return whether modules from a cache may belong to some events."""
        columns = (self.parent, self.n_calls, self.first_ns, self.self_host_ns)
        return (
            are_equally_long(self.name, *columns)
            and len(self.node) == len(events)
            and is_within(self.node, TOP, len(self.name) - 1)
            and is_within(self.parent, TOP, len(self.name) - 1)
            and bool((self.parent < np.arange(len(self.name))).all())
        )


def build_module_tree(events: EventTable, tree: CallTree, forward: Int32s) -> ModuleTree | None:
    """Build the tree of modules, or None if no calls of modules were recorded.

    Args:
        forward: The forward operator of each row of a backward pass. Shape ``(n,)``.
    """
    is_call = rows_named(events, _CALL, Category.PYTHON)
    if not is_call.any():
        return None

    paths = Paths()
    node = _number_modules(events, tree, is_call, forward, paths)
    parent, site = paths.columns()
    n_modules = len(paths)

    calls, first_ns = np.flatnonzero(is_call), np.full(n_modules, np.iinfo(np.int64).max)
    timed_rows, spent_ns = measure_own_times(events, tree, forward, node)
    host_ns = sum_by_key(n_modules, node[timed_rows], spent_ns)
    np.minimum.at(first_ns, node[calls], events.ts_ns[calls])

    return ModuleTree(
        name=tuple(events.names[name].removeprefix(MODULE_PREFIX) for name in site.tolist()),
        parent=parent,
        n_calls=np.bincount(node[calls], minlength=n_modules),
        first_ns=first_ns,
        self_host_ns=host_ns,
        node=node,
    )


def measure_own_times(
    events: EventTable, tree: CallTree, forward: Int32s, node: Int64s
) -> tuple[Rows, Int64s]:
    """Measure the own time on the host of modules' calls and backward operators.

    Args:
        forward: The forward operator of each row of a backward pass. Shape ``(n,)``.
        node: The innermost module of each row, or :data:`TOP`. Shape ``(n,)``.

    Returns:
        The rows, and their times without modules within. Shapes ``(k,)``.
    """
    is_backward = backward_rows(events) & (forward != NO_ROW)
    spent_ns = compute_self_ns(
        events, tree, rows_named(events, _CALL, Category.PYTHON) | is_backward
    )
    rows = np.flatnonzero(spent_ns * (node != TOP))
    return rows, spent_ns[rows]


def _number_modules(
    events: EventTable, tree: CallTree, is_call: Mask, forward: Int32s, paths: Paths
) -> Int64s:
    """Return the node of the innermost module of every row. Shape ``(n,)``."""
    caller = tree.enclosing(is_call)
    innermost = tree.nearest(is_call)
    node = np.full(len(events) + 1, TOP, dtype=np.int64)  # the last entry is for NO_ROW
    in_backward = forward != NO_ROW

    # A call within a backward pass belongs below its forward operator, whose node comes first.
    for is_backward in (False, True):
        for level in tree.levels:
            calls = level[is_call[level] & (in_backward[level] == is_backward)]
            if not len(calls):
                continue
            above = caller[calls]
            if is_backward:
                is_first = (above == NO_ROW) | ~in_backward[above]
                above = np.where(is_first, innermost[forward[calls]], above)
            node[calls] = paths.children(node[above], events.name[calls].astype(np.int64))

    called = node[innermost]
    made = np.append(called, TOP)[forward]
    is_made = in_backward & ((innermost == NO_ROW) | ~in_backward[innermost]) & (made != TOP)
    return np.where(is_made, made, called)
