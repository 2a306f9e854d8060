"""Rewrites a source line that retains a tensor, so that it does not retain its graph."""

import ast
import keyword
from typing import Final

from profkit.patterns import regex

_ADDING: Final = frozenset({"append", "appendleft", "add", "put", "put_nowait", "push"})
_DETACHING: Final = frozenset({"item", "detach", "tolist", "numpy", "data"})
_VALUES: Final = (ast.Name, ast.Attribute, ast.Subscript, ast.Call, ast.BinOp, ast.UnaryOp)
"""Expressions that can be a tensor, unlike tuples, lists and strings."""
_BEGUN: Final = regex(r"([^\W\d]\w*) = .*[(\[{\\\\]\s*(?:#.*)?$")
_MAX_LENGTH: Final = 90
"""A longer line does not help in a sentence."""
_MAX_DEPTH: Final = 40
"""No hand-written line is nested deeper."""


def without_graph(code: str, *, is_number: bool) -> str | None:
    """Rewrite ``losses.append(loss)`` as ``losses.append(loss.item())``.

    Args:
        code: The line, without its indent.
        is_number: Whether the tensor is a scalar, for which ``.item()`` is enough.

    Returns:
        The new line; None if the line does not retain its value, or cannot be parsed.
    """
    statement = _parsed(code)
    value = _retained(statement)
    if statement is None or value is None or not _may_have_a_graph(value):
        return None

    text = ast.unparse(_Call(value, "item" if is_number else "detach").visit(statement))
    return text if len(text) <= _MAX_LENGTH and "\n" not in text else None


def assigned_name(code: str) -> str | None:
    """Return the variable that a line assigns: ``loss`` of ``loss = measure(output, y)``."""
    statement = _parsed(code)
    if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
        return statement.targets[0].id
    if statement is not None:
        return None

    # The first line of a statement of several, such as `loss = (`, does not parse.
    begun = _BEGUN.match(code)
    return begun[1] if begun is not None and not keyword.iskeyword(begun[1]) else None


def is_accumulation(code: str) -> bool:
    """Return whether a line adds to a variable: ``total += loss``, ``total = total + loss``."""
    statement = _parsed(code)
    if isinstance(statement, ast.AugAssign):
        return isinstance(statement.op, ast.Add)
    return isinstance(statement, ast.Assign) and _addend(statement) is not None


def _parsed(code: str) -> ast.stmt | None:
    try:
        # A recorded line may be a part of a statement, which does not parse.
        body = ast.parse(code).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return body[0] if len(body) == 1 and not _is_deep(body[0]) else None


def _is_deep(statement: ast.stmt) -> bool:
    """Return whether a recursive visitor could exceed the recursion limit."""
    level: list[ast.AST] = [statement]
    for _ in range(_MAX_DEPTH):
        level = [child for node in level for child in ast.iter_child_nodes(node)]
    return bool(level)


def _retained(statement: ast.stmt | None) -> ast.expr | None:
    """Return the value that a line stores in something that outlives the step, or None."""
    if isinstance(statement, ast.AugAssign):
        return statement.value
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        is_place = isinstance(statement.targets[0], ast.Subscript | ast.Attribute)
        return _addend(statement) or (statement.value if is_place else None)

    if not isinstance(statement, ast.Expr) or not isinstance(statement.value, ast.Call):
        return None
    call = statement.value
    is_adding = isinstance(call.func, ast.Attribute) and call.func.attr in _ADDING
    return call.args[0] if is_adding and len(call.args) == 1 and not call.keywords else None


def _addend(statement: ast.Assign) -> ast.expr | None:
    """Return the value added to the target, or None."""
    value, target = statement.value, ast.unparse(statement.targets[0])
    if not isinstance(value, ast.BinOp) or not isinstance(value.op, ast.Add):
        return None
    if ast.unparse(value.left) == target:
        return value.right
    return value.left if ast.unparse(value.right) == target else None


def _may_have_a_graph(value: ast.expr) -> bool:
    return isinstance(value, _VALUES) and not any(
        isinstance(node, ast.Attribute) and node.attr in _DETACHING for node in ast.walk(value)
    )


class _Call(ast.NodeTransformer):
    """Appends a method call to one expression."""

    def __init__(self, value: ast.expr, method: str) -> None:
        self.value = value
        self.method = method

    def visit(self, node: ast.AST) -> ast.AST:
        """Return the node, or the call in its place."""
        if node is self.value:
            called = ast.Attribute(self.value, self.method, ast.Load())
            return ast.copy_location(ast.Call(called, [], []), node)
        return self.generic_visit(node)
