"""The way from a finished capture to its report.

Recording stands below the analysis and must not import it; whoever puts both together sets
:data:`analyze`. ``profkit/__init__.py`` does.
"""

from collections.abc import Callable

from profkit.errors import CaptureError
from profkit.model.report import Report

analyze: Callable[[list[str]], Report] | None = None
"""Makes the report of the files of one program."""


def report_of(*paths: str) -> Report:
    """The report of what a capture wrote.

    Args:
        *paths: Its files.

    Raises:
        CaptureError: If nothing has set :data:`analyze`.
    """
    if analyze is None:
        raise CaptureError(
            "This capture does not know how to analyze its trace.",
            f"Import profkit itself, or call profkit.analyze({paths[0]!r}).",
        )
    return analyze(list(paths))
