"""The report of a finished capture, and what a notebook shows for the capture.

Captures must not import the analysis, which is in a higher layer. ``profkit/__init__.py`` sets
:data:`analyze`, the one way up.
"""

import html
from collections.abc import Callable
from typing import Protocol

from profkit.errors import CaptureError, ProfkitError
from profkit.model.report import Report
from profkit.names import visible

analyze: Callable[[list[str]], Report] | None = None
"""Returns the report of the files of one program."""


class Reportable(Protocol):
    """A capture that may have a report."""

    @property
    def path(self) -> str | None:
        """Return the file, once it is written."""
        ...

    @property
    def report(self) -> Report | None:
        """Return the report of the file."""
        ...


def report_of(*paths: str) -> Report:
    """Return the report of the files that a capture wrote.

    Raises:
        CaptureError: If :data:`analyze` is not set.
    """
    if analyze is None:
        raise CaptureError(
            "This capture cannot analyze its trace: profkit itself is not imported.",
            f"Import profkit, or call profkit.analyze({paths[0]!r}).",
        )
    return analyze(list(paths))


def as_text(what: str, name: str | None, state: str) -> str:
    """Return a capture in one line: ``<profkit.trace “train”: recording>``."""
    named = f" “{visible(name)}”" if name else ""
    return f"<{what}{named}: {visible(state)}>"


def as_html(capture: Reportable) -> str:
    """Return a capture's report as HTML, or one sentence that says why there is none."""
    text = repr(capture).strip("<>")
    if capture.path is not None:
        try:
            report = capture.report
        except ProfkitError as error:
            text = str(error)
        else:
            if report is not None:
                return report._repr_html_()
    return f"<p>{html.escape(visible(text))}</p>"
