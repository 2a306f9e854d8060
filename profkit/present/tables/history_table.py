"""The figures of recordings over commits as a table, for programs."""

from profkit.model.finding import SEVERITIES
from profkit.model.history import History
from profkit.present.tables.export import ExportedColumn, ExportedTable


def build_history_table(history: History) -> ExportedTable:
    """Build a table with a row for each commit, device and version of PyTorch."""
    units = {line.name: line.unit for line in history.lines}
    columns = (
        *(ExportedColumn(name) for name in ("program", "revision", "torch", "devices")),
        *(ExportedColumn(name, "int") for name in ("recorded_unix_ns", "n_recordings")),
        *(ExportedColumn(_with_unit(name, unit), "int") for name, unit in units.items()),
        *(ExportedColumn(f"n_{severity}", "int") for severity in SEVERITIES),
    )

    rows = []
    for entry in history.entries:
        known_figures = (entry.figures.get(name) for name in units)
        figures = [None if figure is None else figure.value for figure in known_figures]
        counts = [entry.n_findings.get(severity, 0) for severity in SEVERITIES]
        about = (entry.program, entry.revision, entry.torch, ", ".join(entry.devices))
        rows.append((*about, entry.recorded_unix_ns, len(entry.paths), *figures, *counts))
    return ExportedTable("history", columns, tuple(rows))


def _with_unit(name: str, unit: str) -> str:
    # Figures of time are named after milliseconds, and their values are in nanoseconds.
    return name if unit == "count" else f"{name.removesuffix('_ms')}_{unit}"
