"""The colour of each part of a step's time, the same in every bar and chart.

The eight colours are Okabe and Ito's, which people with any colour vision can distinguish. The
HTML page has other shades of them for dark grounds, in ``style.css``.

Source: https://jfly.uni-koeln.de/color/ ("Color Universal Design").
"""

from typing import Final

from profkit.present.idle_causes import idle_text

SERIES: Final = (
    "#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#f0e442", "#5f6975",
)  # fmt: skip
_NUMBERS: Final = {
    "compute": 3, "communication": 5, "copy": 6, "unrecorded": 7,
    "operators": 3, "backward": 1, "optimizer": 7, "data": 2, "python": 8,
}  # fmt: skip


def color_number(kind: str) -> int:
    """Return the number of a part's colour in :data:`SERIES`, from 1."""
    idle = idle_text(kind)
    return idle.color if idle is not None else _NUMBERS.get(kind, len(SERIES))


def color_of(kind: str) -> str:
    """Return the CSS custom property of a part's colour, such as ``--series-3``."""
    return f"--series-{color_number(kind)}"
