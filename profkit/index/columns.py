"""Tables of columns."""

from dataclasses import fields
from typing import Any, Self, TypeVar, cast, get_origin

import numpy as np

from profkit.dataclass import dataclass, replace
from profkit.model.events import Mask, Rows, dtype_of

_Table = TypeVar("_Table")


def build_empty(kind: type[_Table]) -> _Table:
    """Return a table of some kind without rows: its fields are arrays of one type, and tuples."""
    columns = {
        column.name: ()
        if get_origin(column.type) is tuple
        else np.zeros(0, dtype=dtype_of(column.type))
        for column in fields(cast("Any", kind))
    }
    return kind(**columns)


@dataclass(frozen=True)
class Columns:
    """A table: its fields are columns of one length, except for tuples, which hold for all rows."""

    def select(self, chosen: Mask | Rows) -> Self:
        """Select some of the rows."""
        values = {column.name: getattr(self, column.name) for column in fields(self)}
        columns = {name: value for name, value in values.items() if not isinstance(value, tuple)}
        return replace(self, **{name: column[chosen] for name, column in columns.items()})
