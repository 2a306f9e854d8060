"""The report as CSV, for spreadsheets: a table of findings, or another one of its tables.

Columns have their unit in their name: ``_ns`` are whole nanoseconds, ``_bytes`` bytes, ``_share``
from 0 to 1. A cell that is not known is empty. Text that a spreadsheet would take for a formula has
a quote before it, and control characters are spelled out.

Source: RFC 4180; "CSV Injection" of the OWASP Foundation.
"""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from profkit.model.report import Report
from profkit.names import visible
from profkit.present.renderer import RendererInfo
from profkit.present.tables import TABLES, Value, table

INFO = RendererInfo(name="csv", suffix=".csv", media_type="text/csv")

_FORMULA: Final = tuple("=+-@＝＋－＠")  # noqa: RUF001  (their wide forms count too)
_QUOTE: Final = "'"


@dataclass(frozen=True)
class Options:
    """Which table is shown.

    Attributes:
        table: Its name, such as ``findings`` or ``kernels``.
        base: An absolute folder; paths inside are given relative to it.
    """

    table: str = "findings"
    base: str = ""


def render(report: Report, options: Options) -> bytes:
    """A table of the report as CSV in UTF-8, its columns named in the first line.

    Args:
        options: Which table.

    Raises:
        UsageError: There is no such table.
    """
    shown = table(report, options.table, options.base)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([column.name for column in shown.columns])
    writer.writerows([_cell(value) for value in row] for row in shown.rows)
    return text.getvalue().encode()


def table_names(report: Report, options: Options) -> tuple[str, ...]:
    """The tables of a report that have any rows, and findings even without.

    Args:
        options: Not used.
    """
    return tuple(name for name in TABLES if name == "findings" or table(report, name).rows)


def together(products: Sequence[bytes]) -> bytes:
    """Several tables as one; each finding says which recording it is of.

    Args:
        products: The tables, all with the same columns.
    """
    first, *others = products
    return first + b"".join(product.partition(b"\n")[2] for product in others)


def _cell(value: Value) -> Value:
    """A value that a spreadsheet shows and does not run."""
    if not isinstance(value, str):
        return value
    text = visible(value)
    return f"{_QUOTE}{text}" if text.lstrip().startswith(_FORMULA) else text
