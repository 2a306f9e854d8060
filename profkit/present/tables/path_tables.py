"""The critical path: by kind, by name, by source line, and the calls that block on it."""

from typing import Final

from profkit.model.critical_path import PathEntry, PathLine
from profkit.model.report import Report
from profkit.present.critical_path import (
    WITH_KERNEL_NAMES,
    entry_name,
    main_name,
    main_share,
    path_label,
)
from profkit.present.document import Name, one_line
from profkit.present.tables.columns import PLACE
from profkit.present.tables.definition import Column, Table, with_screen_titles

_KIND: Final = Column("text", "", "kind", value=lambda part: path_label(part.kind))
_RAW_KIND: Final = Column("text", "kind")
_TIMES: Final = (
    Column("ns", "per_step_ns", "per step"),
    Column("ns", "ns", "total", "over all steps"),
    Column("share", "share", "share", "of the critical path"),
)
_SEGMENTS: Final = Column("count", "n_segments", "segments")
_LINE: Final = Column(
    "place", "", "line", "of device work that of its launch", value="location"
)  # fmt: skip


def _main_name(line: PathLine) -> Name | str:
    """Return the main name for a screen, which cuts kernels to its width."""
    name = main_name(line)
    is_kernel = name and line.kind in WITH_KERNEL_NAMES
    return Name(one_line(line.main_name), is_kernel=True) if is_kernel else name


def _launching_operator(entry: PathEntry) -> str | None:
    """Return the operator that launched device work: another one than its own name."""
    operator = entry.location.op
    return None if operator == entry.name else operator


_ON_PAGE: Final = ("kind", "per step", "total", "segments", "longest", "of the path")
"""Columns of the source lines that the page alone has."""

_PART_COLUMNS: Final = (_KIND, _RAW_KIND, *_TIMES)
_NAME_COLUMNS: Final = (
    Column("name", "", "name", value=lambda entry: entry_name(entry.kind, entry.name)),
    _KIND,
    _RAW_KIND,
    Column("text", "name"),
    *_TIMES,
    _SEGMENTS,
    _LINE,
    Column("name", "", "operator", "of device work that launched it", value=_launching_operator),
    *PLACE,
)
_LINE_COLUMNS: Final = (
    # A screen of text shows each line as a sentence: its kind first, and one time.
    Column("place", screen="critical path", value=lambda line: path_label(line.kind)),
    Column("ns", screen="time", value="mean_ns"),
    *with_screen_titles(
        (
            _LINE,
            _KIND,
            *_TIMES,
            _SEGMENTS,
            Column("name", "", "longest", "the name with most of this time", value=main_name),
            Column("share", "main_share", "of the path", "the time of that name"),
        ),
        {**dict.fromkeys(_ON_PAGE, ""), "line": "source line"},
    ),
    Column("name", screen="longest", value=_main_name),
    Column("text", screen="of the path", value=main_share),
)
_CALL_COLUMNS: Final = (
    Column("name", "call", "call"),
    Column("count", "n_calls", "calls"),
    *_TIMES,
    _LINE,
)


def define_path_parts(report: Report) -> Table:
    """Define the table of the kinds of the critical path."""
    path = report.summary.critical_path
    return Table(
        "critical_path_parts",
        "Time by kind",
        _PART_COLUMNS,
        () if path is None else path.parts,
        sorted_by="share",
        exported="kind ns per_step_ns share",
    )


def define_path_names(report: Report) -> Table:
    """Define the table of the names of the critical path, with their lines."""
    path = report.summary.critical_path
    return Table(
        "critical_path",
        "Costliest names",
        _NAME_COLUMNS,
        () if path is None else path.entries,
        sorted_by="share",
        full_name="name",
        exported="kind name ns per_step_ns n_segments share location op module",
    )


def define_path_lines(report: Report) -> Table:
    """Define the table of the source lines of the critical path."""
    path = report.summary.critical_path
    lines = () if path is None else path.lines
    # Without stacks, the rows would be the kinds again.
    with_file = tuple(line for line in lines if line.location.file is not None)
    return Table("path-lines", "Costliest lines", _LINE_COLUMNS, with_file, sorted_by="share")


def define_blocking_calls(report: Report) -> Table:
    """Define the table of the calls that block the host while the path is on a device."""
    path = report.summary.critical_path
    return Table(
        "path-blocking",
        "Calls that block the host while the path is on a device",
        _CALL_COLUMNS,
        () if path is None else path.blocking,
        sorted_by="share",
    )
