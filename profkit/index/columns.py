"""Tables of columns."""

from dataclasses import fields
from typing import Self

from profkit.dataclass import dataclass, replace
from profkit.model.events import Mask, Rows


@dataclass(frozen=True)
class Columns:
    """A table: its fields are columns of one length, except for tuples, which hold for all rows."""

    def select(self, chosen: Mask | Rows) -> Self:
        """Select some of the rows."""
        values = {column.name: getattr(self, column.name) for column in fields(self)}
        columns = {name: value for name, value in values.items() if not isinstance(value, tuple)}
        return replace(self, **{name: column[chosen] for name, column in columns.items()})
