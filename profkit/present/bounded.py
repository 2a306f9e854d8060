"""A report in JSON, cut to a number of bytes: the rows that matter first, and how to go on.

For readers with little room, such as language models. A *table* is a list of the JSON report that
is in no other list, named by the keys that lead to it: ``findings``, ``summary.top_kernels``.
"""

from collections.abc import Iterable, Iterator
from dataclasses import field
from typing import Any, Final

import msgspec

from profkit.dataclass import dataclass
from profkit.errors import UsageError

PAGE_SCHEMA: Final = "profkit.page/1"
_FIRST: Final = "findings"
_FIRST_SHARE: Final = 0.6
"""Of the room for rows, what findings take before any other table has a row."""
_MAX_TEXT: Final = 400
_MAX_ITEMS: Final = 8
_MAX_ROWS: Final = 2
"""Of the lists within a row: texts and numbers, and rows."""

Tree = dict[str, Any]


@dataclass
class _Table:
    """A table that is being filled.

    Attributes:
        rows: All its rows, shortened.
        target: The list that those taken are appended to.
    """

    name: str
    rows: list[Any]
    target: list[Any] = field(default_factory=list)

    @property
    def is_complete(self) -> bool:
        return len(self.target) == len(self.rows)

    @property
    def rest(self) -> Tree:
        """How many rows there are, and the cursor of the first that was not taken."""
        return {"n": len(self.rows), "next": f"{self.name}:{len(self.target)}"}

    def take(self, room: int) -> int:
        """Append the next row if there is room; return what it needs, or 0."""
        if self.is_complete:
            return 0
        size = _size(self.rows[len(self.target)]) + 1
        if size > room:
            return 0
        self.target.append(self.rows[len(self.target)])
        return size


def bounded(tree: Tree, budget_bytes: int) -> Tree:
    """A report in at most ``budget_bytes`` of JSON without blanks.

    All figures that are in no table stay. Of tables the first rows stay: findings first, then those
    of each table in turn. ``cut`` has by table how many rows there are, and the cursor of the next.
    Rows have an ``id``, and no unknown figures; their texts and lists are shortened, with the full
    numbers of items in ``cut``.

    Raises:
        UsageError: The figures alone need more.
    """
    tables: list[_Table] = []
    skeleton = _skeleton(tree, "", tables)
    tables.sort(key=lambda table: table.name != _FIRST)
    skeleton["cut"] = {table.name: table.rest for table in tables}
    # Numbers in cursors have at most as many digits as those of the tables' rows.
    digits = sum(len(str(len(table.rows))) for table in tables)
    room = budget_bytes - _size(skeleton) - digits
    if room < 0:
        raise _too_small(budget_bytes - room)
    room = _filled(tables[:1], room, int(room * (1 - _FIRST_SHARE)))
    room = _filled(tables[1:], room, 0)
    _filled(tables[:1], room, 0)
    skeleton["cut"] = {table.name: table.rest for table in tables if not table.is_complete}
    return skeleton


def _filled(tables: list[_Table], room: int, reserve: int) -> int:
    """Take rows of each table in turn until nothing fits; return the room that is left."""
    open_ = list(tables)
    while open_:
        left = []
        for table in open_:
            if taken := table.take(room - reserve):
                room -= taken
                left.append(table)
        open_ = left
    return room


def page(tree: Tree, cursor: str, budget_bytes: int) -> Tree:
    """The rows of a table from a cursor on, as many as fit.

    Args:
        cursor: The table's name, a colon, and the number of the first row from 0. Lists within rows
            have names too, as in ``findings.3.locations:2``.
        budget_bytes: Maximum size of the JSON without blanks; 0 for all rows.

    Raises:
        UsageError: There is no such table or row, or the first row needs more.
    """
    name, _, number = cursor.rpartition(":")
    if not (name and number.isdecimal()):
        raise UsageError(f"{cursor} is not a cursor.", "Write TABLE:ROW, as in findings:5.")
    rows, start = _list_at(tree, name), int(number)
    if start > len(rows):
        raise UsageError(f"{name} has {len(rows)} rows.", "Rows are counted from 0.")
    found: Tree = {"schema": PAGE_SCHEMA, "table": name, "n": len(rows)}
    # The longest that `next` can be.
    room = budget_bytes - _size({**found, "next": f"{name}:{len(rows)}"}) if budget_bytes else None
    named = (_with_id(row, f"{name}.{place}") for place, row in enumerate(rows[start:], start))
    fitting = fitting_rows(named, room)
    end = start + len(fitting)
    return {**found, "rows": fitting, "next": f"{name}:{end}" if end < len(rows) else None}


def fitting_rows(rows: Iterable[Any], room: int | None) -> list[Any]:
    """The first rows that fit; the first one is shortened if it has to be.

    Args:
        room: Bytes of JSON without blanks; None for all rows.

    Raises:
        UsageError: The first row needs more.
    """
    if room is None:
        return list(rows)
    found: list[Any] = []
    left = room - _size({"rows": []})
    for row in rows:
        fitting = row if found or _size(row) + 1 <= left else _short(row)
        left -= _size(fitting) + 1
        if left < 0:
            break
        found.append(fitting)
    if left < 0 and not found:
        raise UsageError("The budget is too small.", f"{-left} more bytes are needed.")
    return found


def _too_small(needed: int) -> UsageError:
    return UsageError("The budget is too small.", f"At least {needed} bytes are needed.")


def _skeleton(tree: Tree, path: str, tables: list[_Table]) -> Tree:
    """A tree with all its tables empty; they are added to ``tables``."""
    found: Tree = {}
    for key, value in tree.items():
        name = f"{path}{key}"
        if isinstance(value, dict):
            found[key] = _skeleton(value, f"{name}.", tables)
        elif isinstance(value, list) and value:
            rows = [_short(_with_id(row, f"{name}.{place}")) for place, row in enumerate(value)]
            tables.append(_Table(name, rows))
            found[key] = tables[-1].target
        else:
            found[key] = _short(value)
    return found


def _with_id(row: Any, name: str) -> Any:  # noqa: ANN401  (a part of a JSON tree)
    return {"id": name, **row} if isinstance(row, dict) else row


def _short(value: Any) -> Any:  # noqa: ANN401  (a part of a JSON tree)
    """A part of a row without unknown figures, and with its texts and lists shortened."""
    if isinstance(value, str):
        return value if len(value) <= _MAX_TEXT else f"{value[: _MAX_TEXT - 1]}…"
    if isinstance(value, list):
        return [_short(each) for each in value]
    if not isinstance(value, dict):
        return value
    cut = {}
    found = {}
    for key, each in value.items():
        if isinstance(each, list) and each:
            most = _MAX_ROWS if isinstance(each[0], dict | list) else _MAX_ITEMS
            if len(each) > most:
                cut[key] = len(each)
            found[key] = [_short(one) for one in each[:most]]
        elif each is not None:
            found[key] = _short(each)
    return {**found, "cut": cut} if cut else found


def _list_at(tree: Tree, name: str) -> list[Any]:
    """The list of some name.

    Raises:
        UsageError: There is none.
    """
    found: Any = tree
    for key in name.split("."):
        if isinstance(found, list) and key.isdecimal() and int(key) < len(found):
            found = found[int(key)]
        else:
            found = found.get(key) if isinstance(found, dict) else None
    if not isinstance(found, list):
        known = ", ".join(_names(tree, ""))
        raise UsageError(f"The report has no table {name}.", f"It has {known}.")
    return found


def _names(tree: Tree, path: str) -> Iterator[str]:
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from _names(value, f"{path}{key}.")
        elif isinstance(value, list) and value:
            yield f"{path}{key}"


def _size(part: Any) -> int:  # noqa: ANN401  (a part of a JSON tree)
    return len(msgspec.json.encode(part))
