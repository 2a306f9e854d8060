"""A table for programs, as CSV and Parquet have it: column names with units, and plain values."""

from collections.abc import Callable, Iterator
from typing import Any, Final, Literal

from profkit.dataclass import dataclass
from profkit.model.location import Location
from profkit.names import short_path
from profkit.present.tables.definition import Column, ColumnKind, Table

Unit = Literal["", "ns", "us", "bytes", "share"]
ValueKind = Literal["text", "int", "float"]
Value = str | int | float | None

_KINDS: Final[dict[ColumnKind, ValueKind]] = {
    "ns": "int", "us": "int", "bytes": "int", "count": "int", "id": "int",
    "share": "float", "number": "float",
}  # fmt: skip
_UNITS: Final[dict[str, Unit]] = {
    "ns": "ns", "us": "us", "bytes": "bytes", "share": "share",
}  # fmt: skip


@dataclass(frozen=True)
class ExportedColumn:
    """A column; its name ends in its unit if it has one, and any value may be None."""

    name: str
    kind: ValueKind = "text"

    @property
    def unit(self) -> Unit:
        """Return the unit that the name ends in."""
        return _UNITS.get(self.name.rpartition("_")[2], "")


@dataclass(frozen=True)
class ExportedTable:
    """A table, whose rows have a value for each column."""

    name: str
    columns: tuple[ExportedColumn, ...]
    rows: tuple[tuple[Value, ...], ...]


def export_table(table: Table, base: str = "") -> ExportedTable:
    """Build a table for programs, with paths relative to the folder ``base``."""
    # Columns that are not released yet follow, in the order in which people read them.
    released = {name: number for number, name in enumerate(table.exported.split())}
    named = [column for column in table.columns if column.name]
    named.sort(key=lambda column: released.get(column.name, len(released)))

    parts = [part for column in named for part in _export_column(column, base)]
    return ExportedTable(
        table.name,
        tuple(exported for exported, _ in parts),
        tuple(tuple(read(item) for _, read in parts) for item in table.items),
    )


def _export_column(
    column: Column, base: str
) -> Iterator[tuple[ExportedColumn, Callable[[Any], Any]]]:
    """Yield a column with what reads its values; a place is three columns."""

    def read_file(item: object) -> str | None:
        value: Location | str | None = column.value_in(item)
        path = value.file if isinstance(value, Location) else value
        return None if path is None else short_path(path, base)

    def read_part(name: str) -> Callable[[Any], Any]:
        return lambda item: getattr(column.value_in(item), name, None)

    match column.kind:
        case "place":
            yield ExportedColumn("file"), read_file
            yield ExportedColumn("line", "int"), read_part("line")
            yield ExportedColumn("function"), read_part("function")
        case "file":
            yield ExportedColumn(column.name), read_file
        case _:
            yield ExportedColumn(column.name, _KINDS.get(column.kind, "text")), column.value_in
