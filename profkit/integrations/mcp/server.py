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
from profkit.model.events import Category, Rows
from profkit.present.bounded import cut_report, take_fitting_rows
from profkit.present.event_rows import build_event_rows
from profkit.present.explanation import explain
from profkit.present.finding_ids import finding_ids
from profkit.present.headline import cost_text, headline
from profkit.renderers.json_report import encoded

_BUDGET_BYTES: Final = 8_000
_MAX_EVENTS: Final = 100
"""As many as fit into an answer."""
_INSTRUCTIONS: Final = """\
Tells why a recorded PyTorch program is slow or its memory grows. Begin with recordings, then open
or findings; finding explains one, by its id. Times are integer nanoseconds, sizes bytes, shares 0
to 1. A cursor such as findings:5 is for the tool table."""

_Arguments = ParamSpec("_Arguments")


def server(root: Path) -> MCPServer:
    """The server, not yet started.

    Args:
        root: The folder whose recordings it reads.
    """
    made = MCPServer(
        "profkit", instructions=_INSTRUCTIONS, version=__version__, log_level="WARNING"
    )
    tools = Tools(Recordings(root))
    for tool in (tools.recordings, tools.open, tools.findings, tools.finding, tools.table,
                 tools.events, tools.compare, tools.what_if):  # fmt: skip
        made.add_tool(
            _answering(tool),
            description=inspect.getdoc(tool),
            annotations=ToolAnnotations(read_only_hint=True, open_world_hint=False),
            structured_output=False,
        )
    return made


def _answering(tool: Callable[_Arguments, bytes]) -> Callable[_Arguments, str]:
    """A tool whose errors are sentences for the model, and whose answer is text."""

    @functools.wraps(tool)
    def answer(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> str:
        try:
            return tool(*args, **kwargs).decode()
        except ProfkitError as error:
            raise ToolError(f"{error.message} {error.hint}".rstrip()) from error

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

        Args:
            folder: A folder, relative to the server's.
            start: The first to list, from 0.
        """
        rows = [
            {
                "path": self._recordings.shown(each.paths[0]),
                "n_files": len(each.paths),
                "bytes": sum(Path(path).stat().st_size for path in each.paths),
            }
            for each in self._recordings.listed(folder)
        ]
        return _rows(rows[start:], start, len(rows))

    def open(self, path: str, budget_bytes: int = _BUDGET_BYTES) -> bytes:
        """Analyze a recording: its report as JSON, the first rows of each table.

        Args:
            path: A file, with those of the same process beside it, or a folder with the files of
                one program or of the ranks of one job.
            budget_bytes: Maximum size of the answer. ``cut`` has a cursor for what is left out.
        """
        return render(self._recordings.open(path).report, "json", budget_bytes=budget_bytes)

    def findings(self, path: str, start: int = 0) -> bytes:
        """List the findings, highest cost first: id, severity, place, cost, a sentence.

        Args:
            path: As for open.
            start: The first to list, from 0.
        """
        report = self._recordings.open(path).report
        every = (*report.findings, *report.health)
        rows = [
            {
                "id": own_id,
                "name": each.name,
                "severity": each.severity,
                "confidence": each.confidence,
                "place": next((w.place for w in each.locations), None),
                "cost": cost_text(report, each),
                "message": each.message,
            }
            for each, own_id in zip(every, finding_ids(every), strict=True)
        ]
        return _rows(rows[start:], start, len(rows), headline=headline(report))

    def finding(self, path: str, finding: str, budget_bytes: int = _BUDGET_BYTES) -> bytes:
        """Explain one finding: lines, events, calls, evidence, and how to fix it.

        Args:
            path: As for open.
            finding: Its id, such as SYN001@train.py:41.
            budget_bytes: Maximum size of the answer.
        """
        opened = self._recordings.open(path)
        made = explain(opened.report, opened.recording, finding, str(self._recordings.root))
        tree = msgspec.json.decode(render(made, "json"))
        place = next((w.file for w in made.finding.locations if w.file), "")
        if not self._is_below_root(place):
            tree["source"] = None
        return encoded(cut_report(tree, budget_bytes))

    def _is_below_root(self, file: str) -> bool:
        """Whether a source file that a recording names is in the folder that may be read."""
        root = self._recordings.root
        return Path(os.path.realpath(root / file)).is_relative_to(root)

    def table(self, path: str, cursor: str, budget_bytes: int = _BUDGET_BYTES) -> bytes:
        """Return the rows of a table of the report.

        Args:
            path: As for open.
            cursor: The table and its first row, such as summary.top_kernels:5, as in ``cut`` and
                ``next``.
            budget_bytes: Maximum size of the answer.
        """
        report = self._recordings.open(path).report
        return render(report, "json", cursor=cursor, budget_bytes=budget_bytes)

    def events(
        self,
        path: str,
        name: str = "*",
        category: str = "",
        from_ns: int = 0,
        to_ns: int | None = None,
        start: int = 0,
    ) -> bytes:
        """List events of a trace, the longest first, with their number and total duration.

        Args:
            path: A trace.
            name: A whole name; * stands for any characters and ? for any one.
            category: op, annotation, kernel, memcpy, memset, runtime, driver, python, ...; empty
                for all.
            from_ns: They end after this, in nanoseconds from the trace's start.
            to_ns: They start before this.
            start: The first to list, from 0.
        """
        ctx = _trace_of(self._recordings.open(path), path)
        found = _chosen_events(ctx, name, category, from_ns, to_ns)
        total_ns = int(ctx.events.dur_ns[found].sum())
        rows = build_event_rows(ctx, found[start : start + _MAX_EVENTS])
        return _rows(map(msgspec.to_builtins, rows), start, len(found), total_ns=total_ns)

    def compare(self, before: str, after: str, budget_bytes: int = _BUDGET_BYTES) -> bytes:
        """Compare two recordings: step time, and what is new, fixed, worse or better.

        Args:
            before: A recording, as for open.
            after: Another one.
            budget_bytes: Maximum size of the answer.
        """
        for each in (before, after):
            self._recordings.listed(each)  # below the root
        made = compared(self._recordings.path(before), self._recordings.path(after))
        tree = msgspec.json.decode(render(made, "json"))
        return encoded(cut_report(tree, budget_bytes))

    def what_if(
        self,
        path: str,
        remove: list[str] | None = None,
        scale: dict[str, float] | None = None,
        *,
        graph: bool = False,
        data_wait: bool = True,
    ) -> bytes:
        """Predict the step time with changes, all of them made at once.

        Args:
            path: A trace.
            remove: Findings that are fixed, by id or rule, such as SYN001@train.py:41.
            scale: Factors by name pattern, such as {"nccl*": 0.5}.
            graph: Launch the device work of each step as one CUDA graph.
            data_wait: Whether waits for batches stay.
        """
        ctx = _trace_of(self._recordings.open(path), path)
        made = predicted(
            ctx.trace, remove=remove or [], scale=scale, graph=graph, data_wait=data_wait
        )
        return encoded(cut_report(msgspec.to_builtins(made), _BUDGET_BYTES))


def _trace_of(opened: Opened, path: str) -> Context:
    if opened.recording is None or not opened.recording.context.has_trace:
        raise NotATraceError(f"{path} is not a trace.", "Give the trace of one rank.")
    return opened.recording.context


def _chosen_events(ctx: Context, name: str, category: str, from_ns: int, to_ns: int | None) -> Rows:
    """The rows of some events, the longest first, then in their order."""
    events = ctx.events
    known = [each.name.lower() for each in Category]
    if category and category not in known:
        raise UsageError(f"There is no category {category}.", f"It is one of {', '.join(known)}.")
    is_chosen = names_matching(events, re.compile(translate(name)))[events.name]
    if category:
        is_chosen &= events.category == known.index(category)
    is_chosen &= events.end_ns >= from_ns
    if to_ns is not None:
        is_chosen &= events.ts_ns < to_ns
    rows = np.flatnonzero(is_chosen)
    return rows[np.argsort(-events.dur_ns[rows], kind="stable")]


def _rows(rows: Iterable[Any], start: int, n: int, **figures: object) -> bytes:
    """Rows from one on, as many as fit, with how many there are and figures of all."""
    head = {"n": n, **figures}
    fitting = take_fitting_rows(rows, _BUDGET_BYTES - len(encoded({**head, "next": n})))
    end = start + len(fitting)
    return encoded({**head, "rows": fitting, "next": end if end < n else None})
