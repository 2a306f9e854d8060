"""The server and its tools: what ``profkit analyze``, ``explain``, ``diff`` and ``what-if`` say.

Every answer is JSON of a bounded size, its rows have ids, and what is left out has a cursor.
Nothing is written, and nothing outside of one folder is read.

Needs the package mcp, which the extra ``mcp`` installs.
"""

import functools
import inspect
import os
import re
from collections.abc import Callable, Iterable
from fnmatch import translate
from pathlib import Path
from typing import Any, Final, ParamSpec

import msgspec
import numpy as np
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations

from profkit import __version__
from profkit.api import compare as compared
from profkit.api import render
from profkit.api import what_if as predicted
from profkit.engine.context import Context
from profkit.errors import NotATraceError, ProfkitError, UsageError
from profkit.index.runtime_calls import names_matching
from profkit.integrations.mcp.opened import Opened, Recordings
from profkit.json_text import encode
from profkit.model.events import Category, Rows
from profkit.model.finding import Finding
from profkit.model.report import Report
from profkit.present.bounded import cut_report, take_fitting_rows
from profkit.present.diagnosis import headline
from profkit.present.event_rows import build_event_rows
from profkit.present.explanation import explain
from profkit.present.finding_ids import finding_ids
from profkit.present.labels import cost_text

_BUDGET_BYTES: Final = 8_000
_MAX_EVENTS: Final = 100
"""As many as fit into an answer."""
_INSTRUCTIONS: Final = """\
Explains why a recorded PyTorch program is slow or its memory grows. Begin with open or findings,
which take the newest recording if no path is given, as all tools do; recordings lists the others.
finding explains one finding by its id. Times are integer nanoseconds, sizes
bytes, shares 0 to 1. A cursor such as findings:5 is for the tool table."""

_Arguments = ParamSpec("_Arguments")


def build_server(root: Path) -> MCPServer:
    """Return the server, not yet started.

    Args:
        root: The folder whose recordings it reads.
    """
    server = MCPServer(
        "profkit", instructions=_INSTRUCTIONS, version=__version__, log_level="WARNING"
    )

    tools = Tools(Recordings(root))
    for tool in (
        tools.recordings,
        tools.open,
        tools.findings,
        tools.finding,
        tools.table,
        tools.events,
        tools.compare,
        tools.what_if,
    ):
        server.add_tool(
            _answering(tool),
            description=inspect.getdoc(tool),
            annotations=ToolAnnotations(read_only_hint=True, open_world_hint=False),
            structured_output=False,
        )
    return server


def _answering(tool: Callable[_Arguments, bytes]) -> Callable[_Arguments, str]:
    """Wrap a tool: its errors become sentences for the model, and its answer becomes text."""

    @functools.wraps(tool)
    def answer(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> str:
        try:
            return tool(*args, **kwargs).decode()
        except ProfkitError as error:
            raise ToolError(f"{error.message} {error.hint}".rstrip()) from error

    # The server reads the type of the answer from its annotations, which `wraps` has copied.
    answer.__annotations__ = {**tool.__annotations__, "return": str}
    return answer


class Tools:
    """The tools; their docstrings are what a model reads.

    Args:
        recordings: What they read.
    """

    def __init__(self, recordings: Recordings) -> None:
        self._recordings = recordings

    def recordings(self, folder: str = ".", start: int = 0) -> bytes:
        """List the recordings (traces, memory snapshots, memory records, reports) of a folder.

        The newest comes first, reports come last.

        Args:
            folder: A folder, relative to the server's.
            start: The first row to list, from 0.
        """
        rows = [
            {
                "path": self._recordings.shown(recording.paths[0]),
                "n_files": len(recording.paths),
                "bytes": sum(Path(path).stat().st_size for path in recording.paths),
            }
            for recording in self._recordings.listed(folder)
        ]
        return _rows(rows[start:], start, len(rows))

    def open(self, path: str = "", budget_bytes: int = _BUDGET_BYTES) -> bytes:
        """Analyze a recording: its report as JSON, the first rows of each table.

        Args:
            path: A file, which is read with the other files of its process, or a folder, of which
                the newest run is taken; empty for the newest of all.
            budget_bytes: Maximum size of the answer. ``cut`` has a cursor for what is left out.
        """
        return render(self._recordings.open(path).report, "json", budget_bytes=budget_bytes)

    def findings(self, path: str = "", start: int = 0) -> bytes:
        """List the findings, highest cost first: id, severity, place, cost, a sentence.

        Args:
            path: A file or folder, as for the tool open.
            start: The first row to list, from 0.
        """
        report = self._recordings.open(path).report
        findings = (*report.findings, *report.health)
        idents = finding_ids(findings)
        rows = [_summarize(report, *pair) for pair in zip(findings, idents, strict=True)]
        return _rows(
            rows[start:],
            start,
            len(rows),
            path=self._recordings.shown(report.source.path),
            headline=headline(report),
        )

    def finding(self, finding: str, path: str = "", budget_bytes: int = _BUDGET_BYTES) -> bytes:
        """Explain one finding: lines, events, calls, evidence, and how to fix it.

        Args:
            finding: Its id, such as SYN001@train.py:41.
            path: A file or folder, as for the tool open.
            budget_bytes: Maximum size of the answer.
        """
        opened = self._recordings.open(path)
        explanation = explain(opened.report, opened.recording, finding, str(self._recordings.root))
        tree = msgspec.json.decode(render(explanation, "json"))

        # A recording may name any file of this machine, which its lines would reveal.
        locations = explanation.finding.locations
        place = next((where.file for where in locations if where.file), "")
        if not self._is_below_root(place):
            tree["source"] = None
        return encode(cut_report(tree, budget_bytes))

    def _is_below_root(self, file: str) -> bool:
        """Return whether a source file that a recording names is in the folder that may be read."""
        root = self._recordings.root
        return Path(os.path.realpath(root / file)).is_relative_to(root)

    def table(self, cursor: str, path: str = "", budget_bytes: int = _BUDGET_BYTES) -> bytes:
        """Return the rows of a table of the report.

        Args:
            cursor: The table and its first row, such as summary.top_kernels:5, as in ``cut`` and
                ``next``.
            path: A file or folder, as for the tool open.
            budget_bytes: Maximum size of the answer.
        """
        report = self._recordings.open(path).report
        return render(report, "json", cursor=cursor, budget_bytes=budget_bytes)

    def events(
        self,
        path: str = "",
        name: str = "*",
        category: str = "",
        from_ns: int = 0,
        to_ns: int | None = None,
        start: int = 0,
    ) -> bytes:
        """List events of a trace, the longest first, with their number and total duration.

        Args:
            path: A trace; empty for the newest one.
            name: A whole name; * stands for any characters and ? for any one.
            category: op, annotation, kernel, memcpy, memset, runtime, driver, python, ...; empty
                for all.
            from_ns: Only events that end after this, in nanoseconds from the trace's start.
            to_ns: Only events that start before this.
            start: The first row to list, from 0.
        """
        ctx = _trace_of(self._recordings.open(path), path)
        selected = _select_events(ctx, name, category, from_ns, to_ns)
        total_ns = int(ctx.events.dur_ns[selected].sum())
        rows = build_event_rows(ctx, selected[start : start + _MAX_EVENTS])
        return _rows(map(msgspec.to_builtins, rows), start, len(selected), total_ns=total_ns)

    def compare(
        self, before: str = "", after: str = "", budget_bytes: int = _BUDGET_BYTES
    ) -> bytes:
        """Compare two recordings: step time, and what is new, fixed, worse or better.

        Args:
            before: A file or folder, as for the tool open; empty with ``after`` for the two newest
                recordings of one program.
            after: Another recording.
            budget_bytes: Maximum size of the answer.
        """
        if before or after:
            sides = self._recordings.compared(before), self._recordings.compared(after)
        else:
            sides = self._recordings.take_two()
        difference = compared(*sides)
        tree = msgspec.json.decode(render(difference, "json"))
        return encode(cut_report(tree, budget_bytes))

    def what_if(
        self,
        path: str = "",
        remove: list[str] | None = None,
        scale: dict[str, float] | None = None,
        *,
        graph: bool = False,
        data_wait: bool = True,
    ) -> bytes:
        """Predict the step time with changes, all of them made at once.

        Args:
            path: A trace; empty for the newest one.
            remove: Findings that are fixed, by id or rule, such as SYN001@train.py:41.
            scale: Factors by name pattern, such as {"nccl*": 0.5}.
            graph: Launch the device work of each step as one CUDA graph.
            data_wait: Keep the waits for batches.
        """
        ctx = _trace_of(self._recordings.open(path), path)
        prediction = predicted(
            ctx.trace, remove=remove or [], scale=scale, graph=graph, data_wait=data_wait
        )
        return encode(cut_report(msgspec.to_builtins(prediction), _BUDGET_BYTES))


def _summarize(report: Report, finding: Finding, ident: str) -> dict[str, Any]:
    return {
        "id": ident,
        "name": finding.name,
        "severity": finding.severity,
        "confidence": finding.confidence,
        "place": next((where.place for where in finding.locations), None),
        "cost": cost_text(report, finding),
        "message": finding.message,
    }


def _trace_of(opened: Opened, path: str) -> Context:
    if opened.recording is None or not opened.recording.context.has_trace:
        raise NotATraceError(f"{path} is not a trace.", "Give the trace of one rank.")
    return opened.recording.context


def _select_events(ctx: Context, name: str, category: str, from_ns: int, to_ns: int | None) -> Rows:
    """Return the rows of some events, the longest first, then in their order."""
    events = ctx.events
    categories = [member.name.lower() for member in Category]
    if category and category not in categories:
        hint = f"Categories are {', '.join(categories)}."
        raise UsageError(f"There is no category {category}.", hint)

    is_chosen = names_matching(events, re.compile(translate(name)))[events.name]
    if category:
        is_chosen &= events.category == categories.index(category)
    is_chosen &= events.end_ns >= from_ns
    if to_ns is not None:
        is_chosen &= events.ts_ns < to_ns

    rows = np.flatnonzero(is_chosen)
    return rows[np.argsort(-events.dur_ns[rows], kind="stable")]


def _rows(rows: Iterable[Any], start: int, n: int, **figures: object) -> bytes:
    """Return rows from ``start`` on, as many as fit, with the number and the figures of all."""
    head = {"n": n, **figures}
    fitting = take_fitting_rows(rows, _BUDGET_BYTES - len(encode({**head, "next": n})))
    end = start + len(fitting)
    return encode({**head, "rows": fitting, "next": end if end < n else None})
