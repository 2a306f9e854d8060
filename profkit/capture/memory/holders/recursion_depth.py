"""How deep a walk over a graph may go without endangering the program.

Since torch 2.13 a node that Python has seen keeps its Python side until the node dies, and a chain
of such nodes dies by recursion: some 180 bytes of stack a node, so that fifty thousand of them end
the program in a stack of 8 MiB. A walk therefore goes only so deep that all walks together leave
most of the stack free. Before that release nothing remains of a walk, and any depth will do.

Source: ``can_have_pyobject`` of ``torch/csrc/autograd/node.h``; the bytes are measured.
"""

import functools
import sys
from typing import Final

_STACK_BYTES_PER_NODE: Final = 256
_USUAL_STACK: Final = 8 << 20
_SMALL_STACK: Final = 1 << 20
"""Of a program's first thread on Windows, which does not tell."""

_ANY: Final = sys.maxsize
_SHORT: Final = 64
"""How deep later walks go, once a graph was too deep: each sees the newest nodes of it."""

_SHORT_WALKS: Final = 100
"""How many of those there may be: together they see no more than a third of the stack's worth."""

_deep_walks = 0


def allowed() -> int:
    """Links from a root that a walk may follow now."""
    if not _nodes_keep_their_python_side():
        return _ANY
    if not _deep_walks:
        return _deepest()
    return _SHORT if _deep_walks <= _SHORT_WALKS else 0


def note_deep() -> None:
    """Note that a walk has stopped at the depth that was allowed."""
    global _deep_walks  # noqa: PLW0603  (what is left in the program's graphs is left in all of it)
    _deep_walks += 1


@functools.cache
def _deepest() -> int:
    """Half of the stack's worth of nodes."""
    try:
        import resource

        soft, _ = resource.getrlimit(resource.RLIMIT_STACK)
    except ImportError:
        soft = _SMALL_STACK
    stack = _USUAL_STACK if soft < 0 else min(soft, _USUAL_STACK)
    return stack // 2 // _STACK_BYTES_PER_NODE


@functools.cache
def _nodes_keep_their_python_side() -> bool:
    """Whether torch itself holds the Python side of a node that was asked for."""
    import torch

    with torch.enable_grad():
        made = torch.ones((), requires_grad=True) * 1
    nodes, others = [made.grad_fn], [object()]
    # Torch holds it for as long as its own tensor holds the node.
    return sys.getrefcount(nodes[0]) > sys.getrefcount(others[0])
