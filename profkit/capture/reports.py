"""The way from a finished capture to its report.

Recording stands below the analysis and must not import it; whoever puts both together sets
:data:`analyze`. ``profkit/__init__.py`` does.
"""

from collections.abc import Callable

from profkit.errors import CaptureError
from profkit.model.report import Report

analyze: Callable[[str], Report] | None = None
"""Makes the report of a trace file."""


def report_of(path: str) -> Report:
    """The report of a trace file.

    Args:
        path: The file that a capture wrote.

    Raises:
        CaptureError: If nothing has set :data:`analyze`.
    """
    if analyze is None:
        raise CaptureError(
            "This capture does not know how to analyze its trace.",
            f"Import profkit itself, or call profkit.analyze({path!r}).",
        )
    return analyze(path)
