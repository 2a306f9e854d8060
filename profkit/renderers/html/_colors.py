"""The colour of each part of a step's time, the same in every chart of the page.

The eight colours are Okabe and Ito's, which people with any colour vision can distinguish; both
themes have their own shades of them in ``style.css``.

Source: https://jfly.uni-koeln.de/color/ ("Color Universal Design").
"""

from typing import Final

_COLORS: Final = {
    "compute": 3, "communication": 5, "copy": 6, "unrecorded": 7,
    "operators": 3, "backward": 1, "optimizer": 5, "data": 2, "python": 8,
    "idle-sync": 4, "idle-data": 2, "idle-allocator": 7, "idle-overhead": 8, "idle-host": 1,
    "idle-launch": 6, "idle-device": 5, "idle-unknown": 8,
}  # fmt: skip
_N_SERIES: Final = 8


def color_of(kind: str) -> str:
    """The CSS custom property of a part's colour, such as ``--series-3``."""
    return f"--series-{_COLORS.get(kind, _N_SERIES)}"


def is_idle(kind: str) -> bool:
    """Whether a part is drawn hatched: no device, or no operator, ran in it."""
    return kind.startswith("idle-") or kind in {"data", "python"}
