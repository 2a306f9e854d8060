"""Which colour is whose, the same in every picture of the page.

The eight colours are Okabe and Ito's, which people tell apart whatever colours they see; the two
themes have their own shades of them in ``style.css``.

Source: https://jfly.uni-koeln.de/color/ ("Color Universal Design").
"""

from typing import Final

_COLORS: Final = {
    "compute": 3,
    "communication": 5,
    "copy": 6,
    "operators": 3,
    "backward": 1,
    "optimizer": 5,
    "data": 2,
    "python": 8,
    "idle-sync": 4,
    "idle-data": 2,
    "idle-allocator": 7,
    "idle-overhead": 8,
    "idle-host": 1,
    "idle-launch": 6,
    "idle-device": 5,
    "idle-unknown": 8,
}
N_SERIES: Final = 8


def color_of(kind: str) -> str:
    """The custom property with the colour of a part of time, such as ``--series-3``.

    Args:
        kind: As in :class:`~profkit.model.report.TimePart`.
    """
    return f"--series-{_COLORS.get(kind, N_SERIES)}"
