"""The calls of ``nn.Module`` as a tree of modules, with the work that each of them caused.

A module is what torch names in a trace with stacks: ``nn.Module: Linear_3``. One that several
modules call is several nodes. Work of the backward pass belongs to the module whose forward pass
made it, and calls of modules within it, as with activation checkpointing, are below that module.
"""

import re
from typing import Final

import numpy as np

from profkit.dataclass import dataclass
from profkit.index.host.call_paths import TOP, Paths
from profkit.index.host.nesting import CallTree, self_ns
from profkit.index.host.source import backward_rows
from profkit.index.runtime_calls import rows_named
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
            operators, without those of modules within. Shape ``(m,)``.
        node: The innermost module of each row, or :data:`TOP`. Shape ``(n,)``, over all rows.
    """

    name: tuple[str, ...]
    parent: Int32s
    n_calls: Int64s
    first_ns: Int64s
    self_host_ns: Int64s
    node: Int64s

    def fits(self, events: EventTable) -> bool:
        """Whether these may be modules of some events: of what is read from a cache."""
        columns = (self.parent, self.n_calls, self.first_ns, self.self_host_ns)
        return (
            are_equally_long(self.name, *columns)
            and len(self.node) == len(events)
            and is_within(self.node, TOP, len(self.name) - 1)
            and is_within(self.parent, TOP, len(self.name) - 1)
            and bool((self.parent < np.arange(len(self.name))).all())
        )


def module_tree(events: EventTable, tree: CallTree, forward: Int32s) -> ModuleTree | None:
    """The tree of modules; None where no calls of modules were recorded.

    Args:
        forward: The forward operator of each row of a backward pass. Shape ``(n,)``.
    """
    is_call = rows_named(events, _CALL, Category.PYTHON)
    if not is_call.any():
        return None
    paths = Paths()
    node = _nodes(events, tree, is_call, forward, paths)
    parent, site = paths.columns()
    n = len(paths)
    calls, first_ns = np.flatnonzero(is_call), np.full(n, np.iinfo(np.int64).max)
    owned, spent_ns = own_times(events, tree, forward, node)
    host_ns = np.zeros(n, dtype=np.int64)
    np.add.at(host_ns, node[owned], spent_ns)
    np.minimum.at(first_ns, node[calls], events.ts_ns[calls])
    return ModuleTree(
        name=tuple(events.names[each].removeprefix(MODULE_PREFIX) for each in site.tolist()),
        parent=parent,
        n_calls=np.bincount(node[calls], minlength=n),
        first_ns=first_ns,
        self_host_ns=host_ns,
        node=node,
    )


def own_times(
    events: EventTable, tree: CallTree, forward: Int32s, node: Int64s
) -> tuple[Rows, Int64s]:
    """The rows of modules' calls and backward operators, and each one's own time on the host.

    Args:
        forward: The forward operator of each row of a backward pass. Shape ``(n,)``.
        node: The innermost module of each row, or :data:`TOP`. Shape ``(n,)``.

    Returns:
        The rows, and their times without those of modules within. Shapes ``(k,)``.
    """
    is_backward = backward_rows(events) & (forward != NO_ROW)
    spent_ns = self_ns(events, tree, rows_named(events, _CALL, Category.PYTHON) | is_backward)
    rows = np.flatnonzero(spent_ns * (node != TOP))
    return rows, spent_ns[rows]


def _nodes(
    events: EventTable, tree: CallTree, is_call: Mask, forward: Int32s, paths: Paths
) -> Int64s:
    """The node of the innermost module of every row. Shape ``(n,)``."""
    caller = tree.enclosing(is_call)
    innermost = tree.nearest(is_call)
    node = np.full(len(events) + 1, TOP, dtype=np.int64)  # the last is that of NO_ROW
    in_backward = forward != NO_ROW
    for again in (False, True):
        for level in tree.levels:
            here = level[is_call[level] & (in_backward[level] == again)]
            if len(here):
                above = caller[here]
                if again:  # a call within a backward pass belongs below the forward operator
                    is_first = (above == NO_ROW) | ~in_backward[above]
                    above = np.where(is_first, innermost[forward[here]], above)
                node[here] = paths.children(node[above], events.name[here].astype(np.int64))
    own = node[innermost]
    made = np.append(own, TOP)[forward]
    is_made = in_backward & ((innermost == NO_ROW) | ~in_backward[innermost]) & (made != TOP)
    return np.where(is_made, made, own)
