"""A report in JSON, cut to a number of bytes: the main rows first, with cursors of the next ones.

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
"""The share of the room for rows that findings fill before any other table has a row."""
_MAX_TEXT: Final = 400
_MAX_ITEMS: Final = 8
"""Texts and numbers of a list within a row."""
_MAX_ROWS: Final = 2
"""Rows of a list within a row."""

Tree = dict[str, Any]


@dataclass
class _Table:
    """A table that is being filled.

    Attributes:
        rows: All its rows, shortened.
        target: The list that its taken rows are appended to.
    """

    name: str
    rows: list[Any]
    target: list[Any] = field(default_factory=list)

    @property
    def is_complete(self) -> bool:
        return len(self.target) == len(self.rows)

    @property
    def cut(self) -> Tree:
        """Return the number of rows, and the cursor of the first row that was not taken."""
        return {"n": len(self.rows), "next": f"{self.name}:{len(self.target)}"}

    def take(self, room: int) -> int:
        """Append the next row if there is room; return what it needs, or 0."""
        if self.is_complete:
            return 0

        # A comma follows each row.
        size = _size(self.rows[len(self.target)]) + 1
        if size > room:
            return 0
        self.target.append(self.rows[len(self.target)])
        return size


def cut_report(tree: Tree, budget_bytes: int) -> Tree:
    """Cut a report to at most ``budget_bytes`` of JSON without blanks.

    All figures outside of tables stay. Of tables the first rows stay: findings first, then rows of
    each table in turn. ``cut`` has by table the number of rows, and the cursor of the next row.
    Rows have an ``id``, and no unknown figures; their texts and lists are shortened, with the full
    numbers of items in ``cut``.

    Raises:
        UsageError: The figures alone need more.
    """
    tables: list[_Table] = []
    skeleton = _empty_tables(tree, "", tables)
    tables.sort(key=lambda table: table.name != _FIRST)
    skeleton["cut"] = {table.name: table.cut for table in tables}

    # Numbers in cursors have at most as many digits as the numbers of rows.
    digits = sum(len(str(len(table.rows))) for table in tables)
    room = budget_bytes - _size(skeleton) - digits
    if room < 0:
        raise _too_small(budget_bytes - room)

    # Findings come first, then the other tables, and findings again if they left room.
    room = _fill(tables[:1], room, int(room * (1 - _FIRST_SHARE)))
    room = _fill(tables[1:], room, 0)
    _fill(tables[:1], room, 0)
    skeleton["cut"] = {table.name: table.cut for table in tables if not table.is_complete}
    return skeleton


def _fill(tables: list[_Table], room: int, reserve: int) -> int:
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
    """Return the rows of a table from a cursor on, as many as fit.

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
    rows, start = _find_list(tree, name), int(number)
    if start > len(rows):
        raise UsageError(f"{name} has {len(rows)} rows.", "Rows are counted from 0.")

    head: Tree = {"schema": PAGE_SCHEMA, "table": name, "n": len(rows)}
    # The longest cursor that `next` can be.
    room = budget_bytes - _size({**head, "next": f"{name}:{len(rows)}"}) if budget_bytes else None
    named = (_with_id(row, f"{name}.{place}") for place, row in enumerate(rows[start:], start))
    fitting = take_fitting_rows(named, room)
    end = start + len(fitting)
    return {**head, "rows": fitting, "next": f"{name}:{end}" if end < len(rows) else None}


def take_fitting_rows(rows: Iterable[Any], room: int | None) -> list[Any]:
    """Return the first rows that fit; the first one is shortened if it has to be.

    Args:
        room: Bytes of JSON without blanks; None for all rows.

    Raises:
        UsageError: The first row needs more.
    """
    if room is None:
        return list(rows)

    taken: list[Any] = []
    left = room - _size({"rows": []})
    # A first row that does not fit is shortened, so that a page is never empty.
    for row in rows:
        fitting = row if taken or _size(row) + 1 <= left else _shorten(row)
        left -= _size(fitting) + 1
        if left < 0:
            break
        taken.append(fitting)

    if left < 0 and not taken:
        raise UsageError("The budget is too small.", f"{-left} more bytes are needed.")
    return taken


def _too_small(needed: int) -> UsageError:
    return UsageError("The budget is too small.", f"At least {needed} bytes are needed.")


def _empty_tables(tree: Tree, path: str, tables: list[_Table]) -> Tree:
    """Return a tree with all its tables empty; they are added to ``tables``."""
    emptied: Tree = {}
    for key, value in tree.items():
        name = f"{path}{key}"
        if isinstance(value, dict):
            emptied[key] = _empty_tables(value, f"{name}.", tables)
        elif isinstance(value, list) and value:
            rows = [_shorten(_with_id(row, f"{name}.{place}")) for place, row in enumerate(value)]
            tables.append(_Table(name, rows))
            emptied[key] = tables[-1].target
        else:
            emptied[key] = _shorten(value)
    return emptied


def _with_id(row: Any, name: str) -> Any:  # noqa: ANN401  (a part of a JSON tree)
    return {"id": name, **row} if isinstance(row, dict) else row


def _shorten(value: Any) -> Any:  # noqa: ANN401  (a part of a JSON tree)
    """Shorten the texts and lists of a part of a row, and leave out unknown figures."""
    if isinstance(value, str):
        return value if len(value) <= _MAX_TEXT else f"{value[: _MAX_TEXT - 1]}…"
    if isinstance(value, list):
        return [_shorten(item) for item in value]
    if not isinstance(value, dict):
        return value

    cut = {}
    shortened = {}
    for key, field_value in value.items():
        if isinstance(field_value, list) and field_value:
            limit = _MAX_ROWS if isinstance(field_value[0], dict | list) else _MAX_ITEMS
            if len(field_value) > limit:
                # A cut list is read from its cursor, such as findings.3.locations:2.
                cut[key] = len(field_value)
            shortened[key] = _shorten(field_value[:limit])
        elif field_value is not None:
            shortened[key] = _shorten(field_value)
    return {**shortened, "cut": cut} if cut else shortened


def _find_list(tree: Tree, name: str) -> list[Any]:
    """Find the list of some name.

    Raises:
        UsageError: There is no such list.
    """
    part: Any = tree
    for key in name.split("."):
        if isinstance(part, list) and key.isdecimal() and int(key) < len(part):
            part = part[int(key)]
        else:
            part = part.get(key) if isinstance(part, dict) else None

    if not isinstance(part, list):
        names = ", ".join(_names(tree, ""))
        raise UsageError(f"The report has no table {name}.", f"It has {names}.")
    return part


def _names(tree: Tree, path: str) -> Iterator[str]:
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from _names(value, f"{path}{key}.")
        elif isinstance(value, list) and value:
            yield f"{path}{key}"


def _size(part: Any) -> int:  # noqa: ANN401  (a part of a JSON tree)
    return len(msgspec.json.encode(part))
