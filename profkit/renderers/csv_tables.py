"""The report as CSV, for spreadsheets: the findings, or another table of the report.

Column names end in their unit: ``_ns`` whole nanoseconds, ``_bytes`` bytes, ``_share`` from 0 to 1.
Unknown values are empty. Text that a spreadsheet would run as a formula is prefixed with a quote,
and control characters are escaped.

Source: RFC 4180; "CSV Injection" of the OWASP Foundation.
"""

import csv
import io
from collections.abc import Sequence
from typing import Final

from profkit.dataclass import dataclass
from profkit.model.history import History
from profkit.model.report import Report
from profkit.names import visible
from profkit.present.renderer import RendererInfo
from profkit.present.tables import filled_tables, table
from profkit.present.tables.export import ExportedTable, Value
from profkit.present.tables.history_table import build_history_table

INFO = RendererInfo(name="csv", suffix=".csv", media_type="text/csv")

_FORMULA: Final = tuple("=+-@＝＋－＠")  # noqa: RUF001  (spreadsheets accept the wide forms too)
_QUOTE: Final = "'"


@dataclass(frozen=True)
class Options:
    """Which table to write.

    Attributes:
        table: Its name, such as ``findings`` or ``kernels``.
        base: An absolute folder; paths inside are given relative to it.
    """

    table: str = "findings"
    base: str = ""


def render(report: Report, options: Options) -> bytes:
    """Return a table of the report as CSV in UTF-8, with the column names in the first line.

    Raises:
        UsageError: There is no such table.
    """
    return _write(table(report, options.table, options.base))


def render_history(history: History, options: Options) -> bytes:
    """Return a row for each commit, device and version of PyTorch, as CSV in UTF-8."""
    return _write(build_history_table(history))


def _write(content: ExportedTable) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([column.name for column in content.columns])
    writer.writerows([_cell(value) for value in row] for row in content.rows)
    return text.getvalue().encode()


def table_names(report: Report, options: Options) -> tuple[str, ...]:
    """Return the tables of a report that have rows, and always ``findings``."""
    return filled_tables(report)


def together(products: Sequence[bytes]) -> bytes:
    """Join several tables with the same columns; findings have a column ``recording``."""
    # Only the first table keeps its line of column names.
    first, *further = products
    return first + b"".join(product.partition(b"\n")[2] for product in further)


def _cell(value: Value) -> Value:
    """Return a value that a spreadsheet shows and does not run as a formula."""
    if not isinstance(value, str):
        return value
    text = visible(value)
    return f"{_QUOTE}{text}" if text.lstrip().startswith(_FORMULA) else text
