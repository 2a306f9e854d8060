"""The report as one screen of text, for a terminal or, without colours, for a file.

From top to bottom: the verdict, where a step's time goes, what to change and what each change
gives back, the kernels and operators that take longest, how memory went, what could not be
checked, and what the recording itself did to the figures.
"""

import io
from typing import Final

from rich.console import Console
from rich.table import Table

from profkit.model.report import Report
from profkit.present.renderer import RendererInfo
from profkit.renderers.text.layout import GLUE, Options
from profkit.renderers.text.page import Page

__all__ = ["INFO", "Options", "render"]

INFO = RendererInfo(name="text", suffix=".txt", media_type="text/plain")

_WIDEST_PROSE: Final = 120
"""Longer lines are hard to read."""
_WIDEST: Final = 200
"""Tables hold no names that need more; a wider terminal stays empty at the right."""
_NARROWEST: Final = 40
_ASCII: Final = str.maketrans("█▒…·µ→▁▂▃▄▅▆▇", "#.~-u>_.,-=+*")


def render(report: Report, options: Options) -> bytes:
    """The report as text in UTF-8, or in ASCII without ``unicode``.

    Args:
        options: The layout.
    """
    wide = max(_NARROWEST, min(options.width, _WIDEST))
    width = min(wide, _WIDEST_PROSE)
    console = Console(
        file=io.StringIO(),
        width=wide,
        force_terminal=options.color,
        color_system="standard" if options.color else None,
        no_color=not options.color,
        highlight=False,
        markup=False,
        emoji=False,
        legacy_windows=False,
        force_jupyter=False,
    )
    with console.capture() as captured:
        for part in Page(report, options, width, wide).parts():
            console.print(part, width=wide if isinstance(part, Table) else width)
    text = "".join(
        f"{line.rstrip()}\n" for line in captured.get().replace(GLUE, " ").rstrip("\n").split("\n")
    )
    if options.unicode:
        return text.encode("utf-8", "backslashreplace")
    return text.translate(_ASCII).encode("ascii", "backslashreplace")
