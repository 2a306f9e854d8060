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
from profkit.present.tables import Table, Value, build_history_table, filled_tables, table

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
    """A table of the report as CSV in UTF-8, with the column names in the first line.

    Raises:
        UsageError: There is no such table.
    """
    return _written(table(report, options.table, options.base))


def render_history(history: History, options: Options) -> bytes:
    """A row for each commit, device and version of PyTorch, as CSV in UTF-8."""
    return _written(build_history_table(history))


def _written(chosen: Table) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([column.name for column in chosen.columns])
    writer.writerows([_cell(value) for value in row] for row in chosen.rows)
    return text.getvalue().encode()


def table_names(report: Report, options: Options) -> tuple[str, ...]:
    """The tables of a report that have rows, and always ``findings``."""
    return filled_tables(report)


def together(products: Sequence[bytes]) -> bytes:
    """Several tables with the same columns as one; findings have a column ``recording``."""
    first, *others = products
    return first + b"".join(product.partition(b"\n")[2] for product in others)


def _cell(value: Value) -> Value:
    """A value that a spreadsheet shows and does not run as a formula."""
    if not isinstance(value, str):
        return value
    text = visible(value)
    return f"{_QUOTE}{text}" if text.lstrip().startswith(_FORMULA) else text
