"""One definition of a table is what all six formats show."""

import csv
import io
import re
from collections.abc import Callable
from html import unescape
from types import ModuleType

import pytest

from profkit.api import analyze, render
from profkit.model.location import Location
from profkit.model.report import Report
from profkit.present.document import Name, SourceLine, TableColumn
from profkit.present.tables import (
    DEFINITIONS,
    TABLES,
    device_tables,
    rank_tables,
    table,
    work_tables,
)
from profkit.present.tables.columns import CALLS
from profkit.present.tables.definition import Column, Table, with_screen_titles
from profkit.present.tables.export import export_table
from profkit.present.tables.screen import lay_out_table
from tests.renderers import reports
from tests.tensorboard.recordings import write_gpu_training

LONGEST = Column("ns", "longest_ns", "longest call", "its longest call", value=lambda _: 123_456)
TITLE, TEXT = "longest call", "123 µs"
IN_SIX_FORMATS = [
    (work_tables, "_CATEGORY_COLUMNS", "categories"),
    (work_tables, "_KERNEL_DETAILS", "kernels"),
    (work_tables, "_OPERATOR_COLUMNS", "operators"),
    (work_tables, "_MODULE_COLUMNS", "modules"),
    (work_tables, "_LINE_COLUMNS", "lines"),
]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """Steps on a GPU, with modules and source lines."""
    return analyze(write_gpu_training(tmp_path_factory.mktemp("train")))


def find_in_text(report: Report, _: str) -> bool:
    lines = render(report, "text", verbose=True, width=200).decode().splitlines()
    return any(TITLE in line for line in lines) and any(TEXT in line for line in lines)


def find_in_markdown(report: Report, _: str) -> bool:
    text = render(report, "md", verbose=True).decode()
    return f"| {TITLE} |" in text and f"| {TEXT} |" in text


def find_in_notebook(report: Report, _: str) -> bool:
    text = render(report, "fragment", verbose=True).decode()
    return f'class="pk-n">{TITLE}</th>' in text and f'class="pk-n">{TEXT}</td>' in text


def find_on_page(report: Report, name: str) -> bool:
    page = render(report, "html").decode()
    (figure,) = re.findall(rf'<figure class="table" id="{name}".*?</figure>', page, re.DOTALL)
    return (
        '<th scope="col" class="figure" title="its longest call">Longest call</th>' in figure
        and f'<td class="ns">{TEXT}</td>' in unescape(figure)
    )


def find_in_csv(report: Report, name: str) -> bool:
    product = render(report, "csv", table=name).decode()
    rows = list(csv.DictReader(io.StringIO(product)))
    return {row.get("longest_ns") for row in rows} == {"123456"}


def find_in_parquet(report: Report, name: str) -> bool:
    pytest.importorskip("pyarrow")
    from pyarrow import parquet

    product = parquet.read_table(io.BytesIO(render(report, "parquet", table=name)))
    if "longest_ns" not in product.schema.names:
        return False
    unit = product.schema.field("longest_ns").metadata[b"unit"]
    return (unit, set(product.column("longest_ns").to_pylist())) == (b"ns", {123_456})


@pytest.mark.parametrize(("module", "columns", "name"), IN_SIX_FORMATS)
@pytest.mark.parametrize(
    "find",
    [
        find_in_text,
        find_in_markdown,
        find_in_notebook,
        find_on_page,
        find_in_csv,
        find_in_parquet,
    ],
)
def test_a_new_column_is_one_line_for_six_formats(
    monkeypatch: pytest.MonkeyPatch,
    trained: Report,
    find: Callable[[Report, str], bool],
    module: ModuleType,
    columns: str,
    name: str,
) -> None:
    assert not find(trained, name)
    monkeypatch.setattr(module, columns, (*getattr(module, columns), LONGEST))
    assert find(trained, name)


def test_released_columns_keep_their_place_in_exports(monkeypatch: pytest.MonkeyPatch) -> None:
    report = reports.build_gpu_report()
    for name, module, columns in (
        ("categories", work_tables, "_CATEGORY_COLUMNS"),
        ("copies", device_tables, "_COPY_COLUMNS"),
        ("ranks", rank_tables, "_RANK_COLUMNS"),
    ):
        released = table(report, name).columns
        monkeypatch.setattr(module, columns, (LONGEST, *getattr(module, columns)))
        assert [column.name for column in table(report, name).columns] == [
            *(column.name for column in released),
            "longest_ns",
        ]


def test_a_released_column_exists() -> None:
    for define in DEFINITIONS.values():
        defined = define(reports.build_gpu_report())
        names = {column.name for column in defined.columns}
        assert set(defined.exported.split()) <= names
        assert defined.sorted_by in {"", *(column.title for column in defined.columns)}


@pytest.mark.parametrize("name", TABLES)
def test_every_column_of_a_table_is_in_some_format_and_no_name_is_there_twice(name: str) -> None:
    for report in (
        reports.build_gpu_report(),
        reports.build_cpu_report(),
        reports.build_snapshot_report(),
    ):
        columns = DEFINITIONS[name](report).columns
        for column in columns:
            assert column.name or column.title or column.screen_title or column.screen == ""
        names = [column.name for column in table(report, name).columns]
        assert len(set(names)) == len(names)


ITEMS = (
    Location("lib/model.py", 12, "forward", op="aten::mm"),
    Location(op="aten::add"),
)
PLACES = Table(
    "places",
    "Places",
    (
        Column("place", "location", "line", screen="source line", value=lambda where: where),
        Column("text", "op", "operator"),
        Column("ns", "total_ns", "total", value=lambda where: 5_000 if where.line else None),
        Column("share", "share", "share", value=lambda _: None),
        Column("count", "n_calls", value=lambda _: 3),
    ),
    ITEMS,
    exported="n_calls location",
)


def test_a_screen_has_figures_before_texts_and_no_empty_figure() -> None:
    columns, rows = lay_out_table(PLACES, ITEMS)
    assert columns == (
        TableColumn("source line", "name"),
        TableColumn("total"),
        TableColumn("operator", "text"),
    )
    assert rows == [
        (SourceLine("lib/model.py", 12), "5.00 µs", "aten::mm"),
        ("", "", "aten::add"),
    ]


def test_a_place_is_three_columns_for_programs_with_the_path_below_the_base() -> None:
    exported = export_table(PLACES, base="lib")
    assert [(column.name, column.kind) for column in exported.columns] == [
        ("n_calls", "int"),
        ("file", "text"),
        ("line", "int"),
        ("function", "text"),
        ("op", "text"),
        ("total_ns", "int"),
        ("share", "float"),
    ]
    assert exported.rows[1] == (3, None, None, None, "aten::add", None, None)
    assert exported.rows[0][2:] == (12, "forward", "aten::mm", 5_000, None)


def test_kernels_and_names_are_code_and_an_unknown_path_is_not_an_error() -> None:
    shown = Table(
        "kernels",
        "Kernels",
        (Column("kernel", "op", "kernel"), Column("number", "", "speed", value="module.speed")),
        ITEMS,
    )
    assert lay_out_table(shown, ITEMS)[1] == [
        (Name("aten::mm", is_kernel=True),),
        (Name("aten::add", is_kernel=True),),
    ]


def test_only_headings_on_a_screen_depend_on_the_case() -> None:
    (calls,) = with_screen_titles([CALLS], {"calls": "n"})
    assert (calls.screen_title, calls.title, calls.name) == ("n", "calls", "n_calls")
    (unchanged,) = with_screen_titles([CALLS], {})
    assert unchanged == CALLS
