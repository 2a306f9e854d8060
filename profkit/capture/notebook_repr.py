"""How captures look in a notebook: as their report, or in a sentence while there is none."""

import html
from typing import Protocol

from profkit.errors import ProfkitError
from profkit.model.report import Report
from profkit.names import visible


class Shows(Protocol):
    """A capture that may have a report."""

    @property
    def path(self) -> str | None:
        """The file, once there is one."""
        ...

    @property
    def report(self) -> Report | None:
        """The report of the file."""
        ...


def as_text(what: str, name: str | None, state: str) -> str:
    """A capture in a line: ``<profkit.trace “train”: recording>``.

    Args:
        what: Such as ``profkit.trace``.
        name: Its name, if it has one.
        state: What it does.
    """
    named = f" “{visible(name)}”" if name else ""
    return f"<{what}{named}: {visible(state)}>"


def as_html(capture: Shows) -> str:
    """A capture's report as HTML, or a sentence that says why there is none."""
    if capture.path is None:
        return _sentence(repr(capture).strip("<>"))
    try:
        report = capture.report
    except ProfkitError as error:
        return _sentence(str(error))
    return _sentence(repr(capture).strip("<>")) if report is None else report._repr_html_()


def _sentence(text: str) -> str:
    return f"<p>{html.escape(visible(text))}</p>"
