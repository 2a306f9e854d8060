"""Analyzes one recording, or compares two, in a separate process, and writes what the tab shows.

``python -m profkit.integrations.tensorboard.worker FOLDER analyze PATH...`` writes ``answer.json``
(an error, or the main figures), ``report.json``, ``tab.json``, the page and its policy.
``... FOLDER ranks PATH...`` does the same for the job of several traces, without ``tab.json``.
``... FOLDER compare BEFORE AFTER`` writes ``answer.json``, ``difference.json`` and ``tab.json``.
"""

import contextlib
import gzip
import html
import os
import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from profkit.api import compare, render, report_on_ranks, study
from profkit.comparison.messages import (
    TITLES,
    amount,
    label,
    share_of,
    signed,
    subject_of,
    summarize_difference,
)
from profkit.dataclass import dataclass
from profkit.errors import LoadError, ProfkitError
from profkit.integrations.tensorboard.run_summary import RunSummary, summarize_run
from profkit.integrations.tensorboard.torch_tb_profiler_errors import find_misreadings
from profkit.json_text import encode
from profkit.model.difference import Change, Difference
from profkit.model.location import NO_SOURCE_LINE
from profkit.model.report import Report
from profkit.names import visible
from profkit.patterns import regex
from profkit.readers.process_memory import reuse_free_memory

_POLICY: Final = regex(
    rb'<meta http-equiv="Content-Security-Policy" content="([^"]*)"', re.IGNORECASE
)
_SECTION: Final = regex(
    r'<section id="([\w-]+)"[^>]*>\s*(?:<details[^>]*>\s*<summary>)?<h2[^>]*>([^<]*)</h2>'
)
_NO_SCRIPTS: Final = "default-src 'none'; style-src 'unsafe-inline'"
"""The policy of a page without one."""


@dataclass(frozen=True)
class TaskAnswer:
    """The result of a task: an error about a file and how to proceed, or the main figures."""

    error: str = ""
    hint: str = ""
    run_summary: RunSummary | None = None


def main(arguments: list[str]) -> int:
    """Run the worker.

    Args:
        arguments: The output folder, the task, and its files.
    """
    _exit_with_parent()
    reuse_free_memory()  # this process ends with the task
    folder, task, *paths = arguments
    try:
        answer = _TASKS[task](paths, Path(folder))
    except ProfkitError as error:
        answer = TaskAnswer(visible(error.message), visible(error.hint))
    _write(Path(folder) / "answer.json", answer)
    return 0


def analyze(paths: list[str], folder: Path) -> TaskAnswer:
    """Analyze the files of one recording, and write the results to a folder.

    Raises:
        LoadError: A file cannot be read.
    """
    studied = study(paths)
    report = studied.report
    page = render(report, "html", recording=studied.recording)
    _write_report(report, page, folder)
    errors = find_misreadings(studied.recording.context, report)
    _write(folder / "tab.json", {"sections": list_sections(page), "misreadings": errors})
    return TaskAnswer(run_summary=summarize_run(report))


def _write_report(report: Report, page: bytes, folder: Path) -> None:
    (folder / "report.json").write_bytes(render(report, "json", indent=0))
    (folder / "page.html.gz").write_bytes(gzip.compress(page, 6, mtime=0))
    (folder / "policy.txt").write_text(find_policy(page))


def analyze_ranks(paths: list[str], folder: Path) -> TaskAnswer:
    """Analyze the traces of a job, as ``profkit analyze`` does, and write the results to a folder.

    Args:
        paths: The traces of a run; only traces of the same job as the first one are used.
    """
    report = None
    with contextlib.suppress(LoadError):  # no file can be read
        report = report_on_ranks(((path,) for path in paths), of=paths[0])
    if report is None:
        hint = "Ranks of a job have the same world size and were recorded at the same time."
        return TaskAnswer(
            "This recording and the others in its folder do not belong to one job.", hint
        )

    _write_report(report, render(report, "html"), folder)
    return TaskAnswer(run_summary=summarize_run(report))


def compare_recordings(paths: list[str], folder: Path) -> TaskAnswer:
    """Compare two recordings, or reports of them, and write the results to a folder.

    Raises:
        LoadError: A file cannot be read.
        UsageError: They are of two kinds.
    """
    difference = compare(*paths)
    (folder / "difference.json").write_bytes(render(difference, "json"))
    tab = {
        "headline": summarize_difference(difference),
        "notes": [visible(note) for note in difference.notes],
        "tables": list(_build_tables(difference)),
    }
    _write(folder / "tab.json", tab)
    return TaskAnswer()


_TASKS: Final = {"analyze": analyze, "ranks": analyze_ranks, "compare": compare_recordings}


def _build_tables(difference: Difference) -> Iterator[dict[str, Any]]:
    """Return the tables of a comparison, for ``sortableTable`` of ``elements.js``."""
    figures = [
        [
            label(figure),
            amount(figure.before, figure.unit),
            amount(figure.after, figure.unit),
            signed(figure),
            share_of(figure),
        ]
        for figure in difference.figures
    ]
    titles = ("Figure", "Before", "After", "Change", "Relative")
    if figures:
        columns = [{"title": title, "kind": "text"} for title in titles]
        yield {"caption": "Figures", "columns": columns, "rows": figures, "sortedBy": None}

    for kind, title in TITLES:
        changes = difference.of_kind(kind)
        unit = next((change.unit for change in changes if change.unit), "ns")
        per_step = "per step" if any(change.per_step for change in changes) else ""
        rows = [
            [
                subject_of(change),
                change.status,
                change.before,
                change.after,
                change.delta,
                _place(change),
            ]
            for change in changes
        ]
        if rows:
            numeric = ("Before", "After", "Change")
            columns = [
                {"title": "Name", "kind": "name"},
                {"title": "Status", "kind": "text"},
                *({"title": column, "kind": unit, "about": per_step} for column in numeric),
                {"title": "Location", "kind": "place"},
            ]
            yield {"caption": title, "columns": columns, "rows": rows, "sortedBy": 4}


def _place(change: Change) -> str:
    where = change.location
    if where is None or where.file is None or where.line is None:
        unknown = NO_SOURCE_LINE if change.kind == "memory" else ""
        return visible(where.op) if where is not None and where.op else unknown
    moved = f", before line {change.before_line}" if change.before_line is not None else ""
    return visible(where.place) + moved


def list_sections(page: bytes) -> list[dict[str, str]]:
    """Return id and title of each section of a page."""
    headings = _SECTION.findall(page.decode())
    return [{"id": ident, "title": html.unescape(title)} for ident, title in headings]


def find_policy(page: bytes) -> str:
    """Return the page's own policy, which its server sends as a header too."""
    match = _POLICY.search(page)
    return html.unescape(match[1].decode()) if match else _NO_SCRIPTS


def _write(path: Path, value: object) -> None:
    path.write_bytes(encode(msgspec.to_builtins(value)))


def _exit_with_parent() -> None:
    """Exit when the process that started this one has ended, which closes the pipe of stdin."""

    def wait() -> None:
        with contextlib.suppress(OSError):
            while os.read(0, 1):  # not sys.stdin, whose lock this thread would hold at exit
                pass
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
