"""A line of the user's code that keeps a tensor, rewritten so that it keeps no graph."""

import ast
from typing import Final

_ADDING: Final = frozenset({"append", "appendleft", "add", "put", "put_nowait", "push"})
_CURES: Final = frozenset({"item", "detach", "tolist", "numpy", "data"})
_VALUES: Final = (ast.Name, ast.Attribute, ast.Subscript, ast.Call, ast.BinOp, ast.UnaryOp)
"""What may be a tensor; tuples, lists and texts are not."""
_LONGEST: Final = 90
"""A longer line is no help in a sentence."""
_DEEPEST: Final = 40
"""No line that a person wrote is nested deeper."""


def without_graph(code: str, *, is_number: bool) -> str | None:
    """``losses.append(loss)`` as ``losses.append(loss.item())``.

    Args:
        code: The line, without its indent.
        is_number: Whether the tensor is a single number, for which ``.item()`` will do.

    Returns:
        The new line; None where the line does not keep what it makes, or cannot be read.
    """
    statement = _parsed(code)
    value = _kept(statement)
    if statement is None or value is None or not _may_have_a_graph(value):
        return None
    text = ast.unparse(_Call(value, "item" if is_number else "detach").visit(statement))
    return text if len(text) <= _LONGEST and "\n" not in text else None


def assigned_name(code: str) -> str | None:
    """The variable that a line gives a value: ``loss`` of ``loss = measure(output, y)``.

    Args:
        code: The line, without its indent.
    """
    statement = _parsed(code)
    if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
        return statement.targets[0].id
    return None


def is_accumulation(code: str) -> bool:
    """Whether a line adds to what it has: ``total += loss``, ``total = total + loss``.

    Args:
        code: The line, without its indent.
    """
    statement = _parsed(code)
    if isinstance(statement, ast.AugAssign):
        return isinstance(statement.op, ast.Add)
    return isinstance(statement, ast.Assign) and _addend(statement) is not None


def _parsed(code: str) -> ast.stmt | None:
    try:
        body = ast.parse(code).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return body[0] if len(body) == 1 and not _is_deep(body[0]) else None


def _is_deep(statement: ast.stmt) -> bool:
    """Whether what walks it by recursion might not come back."""
    level: list[ast.AST] = [statement]
    for _ in range(_DEEPEST):
        level = [child for node in level for child in ast.iter_child_nodes(node)]
    return bool(level)


def _kept(statement: ast.stmt | None) -> ast.expr | None:
    """The value that a line keeps in something that outlives the step, or None."""
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
    """What is added to the target itself, or None."""
    value, target = statement.value, ast.unparse(statement.targets[0])
    if not isinstance(value, ast.BinOp) or not isinstance(value.op, ast.Add):
        return None
    if ast.unparse(value.left) == target:
        return value.right
    return value.left if ast.unparse(value.right) == target else None


def _may_have_a_graph(value: ast.expr) -> bool:
    return isinstance(value, _VALUES) and not any(
        isinstance(node, ast.Attribute) and node.attr in _CURES for node in ast.walk(value)
    )


class _Call(ast.NodeTransformer):
    """Puts the call of a method behind one expression."""

    def __init__(self, value: ast.expr, method: str) -> None:
        self.value = value
        self.method = method

    def visit(self, node: ast.AST) -> ast.AST:
        """The node, or the call in its place."""
        if node is self.value:
            called = ast.Attribute(self.value, self.method, ast.Load())
            return ast.copy_location(ast.Call(called, [], []), node)
        return self.generic_visit(node)
