"""Finds the line of an operator that a function ran without a call.

torch records the line of every call, but ``a + b``, ``x[mask]``, ``if loss > 1`` and
``float(loss)`` run operators without one. Such places in a function's source are listed in
execution order. Between two calls whose lines are known, the operators ran in order on places
between those lines. A line is exact only if no other place is possible.
"""

import ast
import functools
import linecache
import sys
from collections.abc import Iterator, Sequence
from typing import Final

from profkit.dataclass import dataclass

_OPERATORS: Final[dict[type[ast.AST], frozenset[str]]] = {
    ast.Add: frozenset({"add"}),
    ast.Sub: frozenset({"sub", "rsub"}),
    ast.Mult: frozenset({"mul"}),
    ast.Div: frozenset({"div", "true_divide", "reciprocal"}),
    ast.FloorDiv: frozenset({"floor_divide"}),
    ast.Mod: frozenset({"remainder", "item"}),
    ast.Pow: frozenset({"pow"}),
    ast.MatMult: frozenset({"matmul", "mm", "mv", "dot", "bmm"}),
    ast.BitAnd: frozenset({"bitwise_and", "__and__", "__iand__"}),
    ast.BitOr: frozenset({"bitwise_or", "__or__", "__ior__"}),
    ast.BitXor: frozenset({"bitwise_xor", "__xor__", "__ixor__"}),
    ast.LShift: frozenset({"bitwise_left_shift", "__lshift__", "__ilshift__"}),
    ast.RShift: frozenset({"bitwise_right_shift", "__rshift__", "__irshift__"}),
    ast.USub: frozenset({"neg"}),
    ast.UAdd: frozenset({"positive"}),
    ast.Invert: frozenset({"bitwise_not"}),
    ast.Eq: frozenset({"eq"}),
    ast.NotEq: frozenset({"ne"}),
    # Python swaps the operands when the tensor is on the right.
    ast.Lt: frozenset({"lt", "gt"}),
    ast.LtE: frozenset({"le", "ge"}),
    ast.Gt: frozenset({"gt", "lt"}),
    ast.GtE: frozenset({"ge", "le"}),
}
_TRUTH: Final = frozenset({"is_nonzero"})
_NUMBER: Final = frozenset({"item"})
_PLAIN_INDEX: Final = frozenset(
    {"select", "slice", "unsqueeze", "alias", "copy", "fill", "lift_fresh", "expand", "view", "to"}
)
_INDEX: Final = _PLAIN_INDEX | {"index", "item", "index_put", "masked_fill", "nonzero"}
"""What an index that may be a tensor can run."""
_LITERAL_INDEX: Final = (
    ast.Constant, ast.Slice, ast.Tuple, ast.UnaryOp, ast.unaryop, ast.expr_context
)  # fmt: skip
"""The nodes of an index that consists of literal numbers and slices."""
_CONVERSIONS: Final = {
    **dict.fromkeys(("float", "int", "complex", "range", "slice"), _NUMBER),
    "bool": _TRUTH,
}
"""Types whose call on a tensor reads its value; torch records no event for calls of types."""
_SPECIFIC: Final = frozenset().union(*_OPERATORS.values(), _TRUTH, _NUMBER, _INDEX)
_OWN_FRAMES: Final[tuple[type[ast.AST], ...]] = (
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.Lambda,
    ast.ClassDef,
    ast.GeneratorExp,
) + ((ast.ListComp, ast.SetComp, ast.DictComp) if sys.version_info < (3, 12) else ())
"""Nodes with their own frame. Source: PEP 709 for comprehensions from Python 3.12 on."""
_DEFINITIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_UNNAMED: Final = {
    ast.Lambda: "<lambda>", ast.ListComp: "<listcomp>", ast.SetComp: "<setcomp>",
    ast.DictComp: "<dictcomp>", ast.GeneratorExp: "<genexpr>",
}  # fmt: skip
"""The names that Python gives to other nodes with code of their own."""
_EXECUTION_ORDER: Final[dict[type[ast.AST], tuple[str, ...]]] = {
    ast.Assign: ("value", "targets"),
    **dict.fromkeys((ast.ListComp, ast.SetComp, ast.GeneratorExp), ("generators", "elt")),
    ast.DictComp: ("generators", "key", "value"),
    ast.comprehension: ("iter", "target", "ifs"),
}
"""The fields of nodes that run in another order than they are written."""
_LOOPS: Final = (ast.For, ast.AsyncFor, ast.While)


@dataclass(frozen=True)
class Point:
    """A place that can run an operator without a call.

    Attributes:
        ops: Names of the operators that it can run, without ``aten::`` and a last ``_``.
        single: Whether it runs at most one operator each time.
        loop: First and last line of the innermost loop around it, or None.
    """

    line: int
    ops: frozenset[str]
    single: bool
    loop: tuple[int, int] | None

    def can_run(self, op: str) -> bool:
        """Return whether an operator, named as in ``ops``, can have run here."""
        return op in self.ops or op not in _SPECIFIC


@dataclass(frozen=True)
class Function:
    """The source of a function.

    Attributes:
        line: Its first line.
        points: Where it can run operators without a call, in execution order.
        loops: First and last lines of its loops, outer ones first.
        withs: First and last lines of its ``with`` blocks.
    """

    line: int
    points: tuple[Point, ...] = ()
    loops: tuple[tuple[int, int], ...] = ()
    withs: tuple[tuple[int, int], ...] = ()

    def loop_around(self, line: int | None) -> tuple[int, int] | None:
        """Return the first and last line of the innermost loop around a line, or None."""
        if line is None:
            return None
        around = [loop for loop in self.loops if loop[0] <= line <= loop[1]]
        return max(around, default=None)

    def end_of_with(self, line: int | None, inside: int | None) -> int | None:
        """Return the last line of a ``with`` block that begins at a line and contains another.

        Python calls ``__exit__`` from the line of the ``with`` itself. None without such a block.
        """
        if line is None or inside is None:
            return None
        ends = [last for first, last in self.withs if first == line and first <= inside <= last]
        return max(ends, default=None)


@functools.lru_cache(maxsize=512)
def function_at(file: str, line: int, name: str) -> Function:
    """Return the function of a frame; without points if the source is not available.

    Args:
        line: The line of its ``def``, of its first decorator, or one inside it.
        name: Its name, such as ``forward``, ``<module>`` or ``<listcomp>``.
    """
    tree = _parse_file(file)
    node = None if tree is None else _find(tree, line, name)
    if node is None:
        return Function(line)

    reader = _Reader()
    reader.read(node)
    first = 1 if isinstance(node, ast.Module) else getattr(node, "lineno", line)
    return Function(first, tuple(reader.points), tuple(reader.loops), tuple(reader.withs))


@functools.lru_cache(maxsize=64)
def _parse_file(file: str) -> ast.Module | None:
    text = "".join(linecache.getlines(file))
    try:
        return ast.parse(text) if text else None
    except (SyntaxError, ValueError, RecursionError):
        return None


def _find(tree: ast.Module, line: int, name: str) -> ast.AST | None:
    """Return the innermost node of a name around a line."""
    if name == "<module>":
        return tree

    around = [
        node
        for node in ast.walk(tree)
        if name == (node.name if isinstance(node, _DEFINITIONS) else _UNNAMED.get(type(node)))
        and _first_line(node) <= line <= _last_line(node)
    ]
    return max(reversed(around), key=_first_line, default=None)


def _first_line(node: ast.AST) -> int:
    decorators = getattr(node, "decorator_list", [])
    return int(min([node.lineno, *(d.lineno for d in decorators)]))  # type: ignore[attr-defined]


def _last_line(node: ast.AST) -> int:
    return int(getattr(node, "end_lineno", None) or _first_line(node))


class _Reader:
    """Walks a function in execution order and lists its points."""

    def __init__(self) -> None:
        self.points: list[Point] = []
        self.loops: list[tuple[int, int]] = []
        self.withs: list[tuple[int, int]] = []
        self._around: list[tuple[int, int]] = []

    def read(self, function: ast.AST) -> None:
        """List the points of a function's own frame."""
        if isinstance(function, ast.Lambda):
            self._walk(function.body)
        elif type(function) in _UNNAMED:
            self._walk_children(function)
        else:
            for statement in getattr(function, "body", []):
                self._walk(statement)

    def _walk(self, node: ast.AST) -> None:
        if isinstance(node, _OWN_FRAMES):
            return
        if isinstance(node, _LOOPS):
            self._walk_loop(node)
            return
        if isinstance(node, (ast.With, ast.AsyncWith)):
            self.withs.append((_first_line(node), _last_line(node)))
        self._walk_children(node)
        self._add_point(node)

    def _walk_loop(self, node: ast.For | ast.AsyncFor | ast.While) -> None:
        # What a `for` iterates over is evaluated once, before the loop.
        span = (_first_line(node), _last_line(node))
        if not isinstance(node, ast.While):
            self._walk(node.iter)

        self.loops.append(span)
        self._around.append(span)
        if isinstance(node, ast.While):
            self._walk(node.test)
            self._add(node.test, _TRUTH)
        else:
            self._walk(node.target)
        for statement in node.body:
            self._walk(statement)

        # The `else` runs once, after the loop.
        self._around.pop()
        for statement in node.orelse:
            self._walk(statement)

    def _walk_children(self, node: ast.AST) -> None:
        for child in _iterate_children(node):
            self._walk(child)
            # Python asks for the truth of a condition, which is no node of its own.
            if (
                getattr(node, "test", None) is child
                or isinstance(node, ast.BoolOp)
                or (isinstance(node, ast.comprehension) and child in node.ifs)
            ):
                self._add(child, _TRUTH)

    def _add_point(self, node: ast.AST) -> None:
        """Add what a node itself can run, after its children."""
        if isinstance(node, (ast.BinOp, ast.AugAssign)):
            self._add(node, _OPERATORS.get(type(node.op), frozenset()))
        elif isinstance(node, ast.UnaryOp):
            self._add(node, _OPERATORS.get(type(node.op), _TRUTH))
        elif isinstance(node, ast.Compare):
            for operator in node.ops:
                self._add(node, _OPERATORS.get(type(operator), frozenset()))
            # `a < b < c` is `a < b and b < c`.
            if len(node.ops) > 1:
                self._add(node, _TRUTH)

        elif isinstance(node, ast.Subscript):
            self._add(node, _ops_of_index(node.slice), single=False)
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in _CONVERSIONS
        ):
            self._add(node, _CONVERSIONS[node.func.id], single=len(node.args) == 1)

    def _add(self, node: ast.AST, ops: frozenset[str], *, single: bool = True) -> None:
        if ops:
            line = int(getattr(node, "lineno", 0))
            around = self._around[-1] if self._around else None
            self.points.append(Point(line, ops, single, around))


def _ops_of_index(index: ast.AST) -> frozenset[str]:
    """Return what a subscript can run: literals are not tensors, and a mask is not a number."""
    parts = list(ast.walk(index))
    if all(isinstance(part, _LITERAL_INDEX) for part in parts):
        return _PLAIN_INDEX
    if any(isinstance(part, (ast.Compare, ast.Invert, ast.BitAnd, ast.BitOr)) for part in parts):
        return _INDEX - _NUMBER
    return _INDEX


def _iterate_children(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a node's children in execution order: values before their targets."""
    for name in _EXECUTION_ORDER.get(type(node), node._fields):
        value = getattr(node, name, None)
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield child


def find_lines_between(
    function: Function, before: int | None, after: int | None, ops: Sequence[str]
) -> list[int | None]:
    """Find the line of each operator that ran in a function between two of its calls.

    Args:
        before: Line of the last call before them, or None.
        after: Line of the next call after them, or None.
        ops: The operators' names in order.

    Returns:
        For each operator its line, or None if several are possible.
    """
    names = [op.removeprefix("aten::").removesuffix("_") for op in ops]
    points = _find_points(function, before, after)

    # First fit in both directions: where they agree, no other assignment is possible.
    earliest = _fit_first(points, names)
    latest = _fit_first(points[::-1], names[::-1])
    if earliest is not None and latest is not None:
        pairs = zip(earliest, latest[::-1], strict=True)
        lines = [first if first == last else None for first, last in pairs]
    else:
        lines = [_find_only_line(points, name) for name in names]

    # Outside of loops, nothing else can run between two calls of one line.
    if before is not None and before == after and not function.loop_around(before):
        return [before for _ in lines]
    return lines


def _find_points(function: Function, before: int | None, after: int | None) -> list[Point]:
    """Find the points that can have run between two calls, in order."""
    end = function.end_of_with(after, before)
    if end is not None:
        after = end
    first = before if before is not None else 0
    last = after if after is not None else 1 << 62
    loop = function.loop_around(before)

    if first <= last:
        straight = [p for p in function.points if first <= p.line <= last]
        if end is None and after is not None:
            return [_mark_repeated(p, before, after) for p in straight]
        again = [p for p in function.points if loop and loop[0] <= p.line < first]
        return [_mark_repeated(p, before, after) for p in straight + again]

    # A new iteration: from the line before to the end of the loop, and from its start to the next.
    around = [span for span in function.loops if span[0] <= last and first <= span[1]]
    start, stop = max(around, default=(0, 1 << 62))
    to_end = [p for p in function.points if first <= p.line <= stop]
    return to_end + [p for p in function.points if start <= p.line <= last]


def _mark_repeated(point: Point, before: int | None, after: int | None) -> Point:
    """Return the point, as one that runs many times if its whole loop is between the two calls."""
    if point.loop is None or not point.single:
        return point
    first, last = point.loop
    if any(line is not None and first <= line <= last for line in (before, after)):
        return point
    return Point(point.line, point.ops, single=False, loop=point.loop)


def _fit_first(points: Sequence[Point], names: Sequence[str]) -> list[int] | None:
    """Find each operator's first possible line, if they ran in order; None if there is none."""
    lines: list[int] = []
    index = 0
    for name in names:
        while index < len(points) and not points[index].can_run(name):
            index += 1
        if index == len(points):
            return None
        lines.append(points[index].line)
        index += points[index].single
    return lines


def _find_only_line(points: Sequence[Point], name: str) -> int | None:
    lines = {point.line for point in points if point.can_run(name)}
    return lines.pop() if len(lines) == 1 else None
