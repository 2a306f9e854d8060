"""The tables of a report, each defined once for all formats: see :mod:`.definition`.

:data:`DEFINITIONS` lists them. CSV and Parquet have all of them, by name; the HTML page, the
terminal, Markdown and notebooks show those that people read.
"""

from collections.abc import Callable
from typing import Final

from profkit.errors import UsageError
from profkit.model.report import Report
from profkit.present.tables.definition import Table
from profkit.present.tables.device_tables import (
    define_copies,
    define_devices,
    define_idle,
    define_sync_sites,
    define_syncs,
)
from profkit.present.tables.export import ExportedTable, export_table
from profkit.present.tables.finding_tables import define_findings
from profkit.present.tables.memory_tables import (
    define_memory_sites,
    define_memory_steps,
    define_memory_timeline,
)
from profkit.present.tables.path_tables import define_path_names, define_path_parts
from profkit.present.tables.rank_tables import (
    define_collective_sizes,
    define_collectives,
    define_ranks,
)
from profkit.present.tables.step_tables import define_flops, define_step_parts, define_steps
from profkit.present.tables.work_tables import (
    define_categories,
    define_functions,
    define_kernels,
    define_lines,
    define_modules,
    define_operators,
    define_regions,
)

DEFINITIONS: Final[dict[str, Callable[[Report], Table]]] = {
    "findings": define_findings,
    "devices": define_devices,
    "idle": define_idle,
    "steps": define_steps,
    "step_parts": define_step_parts,
    "critical_path": define_path_names,
    "critical_path_parts": define_path_parts,
    "kernels": define_kernels,
    "operators": define_operators,
    "categories": define_categories,
    "modules": define_modules,
    "lines": define_lines,
    "functions": define_functions,
    "flops": define_flops,
    "ranks": define_ranks,
    "collectives": define_collectives,
    "collective_sizes": define_collective_sizes,
    "regions": define_regions,
    "syncs": define_syncs,
    "sync_sites": define_sync_sites,
    "copies": define_copies,
    "memory_sites": define_memory_sites,
    "memory_timeline": define_memory_timeline,
    "memory_steps": define_memory_steps,
}
"""What defines each table that CSV and Parquet have, by its name there."""

TABLES: Final = tuple(DEFINITIONS)
"""The names of these tables."""


def table(report: Report, name: str, base: str = "") -> ExportedTable:
    """Build one of :data:`TABLES` for programs, with paths relative to the folder ``base``.

    Raises:
        UsageError: There is no such table.
    """
    if name not in DEFINITIONS:
        raise UsageError(f"There is no table {name!r}.", f"The tables are {', '.join(TABLES)}.")
    return export_table(DEFINITIONS[name](report), base)


def filled_tables(report: Report) -> tuple[str, ...]:
    """Return the names of a report's tables that have rows, and always ``findings``."""
    # Readers can rely on the table of findings, even if it is empty.
    return tuple(name for name in TABLES if name == "findings" or DEFINITIONS[name](report).items)
