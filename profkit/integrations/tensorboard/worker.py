"""Analyzes one recording, or compares two, in a process of its own, and writes what the tab shows.

``python -m profkit.integrations.tensorboard.worker FOLDER analyze PATH...`` writes ``answer.json``
(an error, or the report at a glance), ``report.json``, ``views.json``, the page and its policy.
``... FOLDER compare BEFORE AFTER`` writes ``answer.json`` and ``difference.json``.
"""

import contextlib
import gzip
import html
import os
import re
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from profkit.api import Study, compare, render, study
from profkit.errors import ProfkitError
from profkit.integrations.tensorboard import views
from profkit.integrations.tensorboard.run_summary import RunSummary, run_summary
from profkit.integrations.tensorboard.torch_tb_profiler_errors import misreadings

_POLICY: Final = re.compile(
    rb'<meta http-equiv="Content-Security-Policy" content="([^"]*)"', re.IGNORECASE
)
_NOTHING_RUNS: Final = "default-src 'none'; style-src 'unsafe-inline'"
"""The policy of a page that brings none."""


@dataclass(frozen=True)
class AnalysisResult:
    """What came of a task.

    Attributes:
        error: What is wrong with the file, or empty.
        hint: What to do about it.
        run_summary: The report at a glance, where there is one.
    """

    error: str = ""
    hint: str = ""
    run_summary: RunSummary | None = None


def main(arguments: list[str]) -> int:
    """Do what the arguments say.

    Args:
        arguments: The folder to write to, what to do, and its files.
    """
    _end_with_parent()
    folder, task, *paths = arguments
    try:
        answer = analyzed(paths, Path(folder)) if task == "analyze" else compared(paths, folder)
    except ProfkitError as error:
        answer = AnalysisResult(error.message, error.hint)
    _write(Path(folder) / "answer.json", answer)
    return 0


def analyzed(paths: list[str], folder: Path) -> AnalysisResult:
    """Analyze a recording.

    Args:
        paths: Its files.
        folder: Where to write what the tab shows of it.

    Raises:
        LoadError: A file cannot be read.
    """
    studied = study(paths)
    (folder / "report.json").write_bytes(render(studied.report, "json", indent=0))
    _write(folder / "views.json", views_of(studied))
    page = render(studied.report, "html", recording=studied.recording)
    (folder / "page.html.gz").write_bytes(gzip.compress(page, 6, mtime=0))
    (folder / "policy.txt").write_text(policy_of(page))
    return AnalysisResult(run_summary=run_summary(studied.report))


def views_of(studied: Study) -> views.Views:
    """What the tab draws beside a report.

    Args:
        studied: The report and what it was made from.
    """
    ctx, report = studied.recording.context, studied.report
    return views.Views(
        words=views.words(report),
        modules=views.modules(ctx),
        kernels=views.spreads(ctx, report.summary.top_kernels),
        memory=views.memory_courses(ctx),
        op_memory=views.op_memory(ctx),
        allocations=views.largest(ctx),
        misreadings=misreadings(ctx, report),
    )


def compared(paths: list[str], folder: str) -> AnalysisResult:
    """Compare two recordings, or reports of them.

    Args:
        paths: The two.
        folder: Where to write what changed.

    Raises:
        LoadError: A file cannot be read.
        UsageError: They are of two kinds.
    """
    before, after = paths
    difference = render(compare(before, after), "json")
    (Path(folder) / "difference.json").write_bytes(difference)
    return AnalysisResult()


def policy_of(page: bytes) -> str:
    """The policy that a page has for itself: what its server has to say of it too."""
    found = _POLICY.search(page)
    return html.unescape(found[1].decode()) if found else _NOTHING_RUNS


def _write(path: Path, value: object) -> None:
    """Write JSON; what is no text in it, such as half a character in a name, becomes ``?``."""
    try:
        text = msgspec.json.encode(value)
    except UnicodeEncodeError:
        text = msgspec.json.encode(_as_text(msgspec.to_builtins(value)))
    path.write_bytes(text)


def _as_text(value: object) -> object:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {str(_as_text(key)): _as_text(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_as_text(each) for each in value]
    return value


def _end_with_parent() -> None:
    """End this process when the one that started it is gone: then nobody holds the pipe."""

    def wait() -> None:
        with contextlib.suppress(OSError):
            while os.read(0, 1):  # not through sys.stdin, whose lock this thread would die with
                pass
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
