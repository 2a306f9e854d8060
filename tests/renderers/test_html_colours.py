"""The colours of the page are distinguishable with any colour vision."""

import re
from itertools import combinations
from pathlib import Path
from typing import Final, get_args

import numpy as np
import numpy.typing as npt
import pytest

import profkit
from profkit.model.device_summary import IdleCause
from profkit.model.step_summary import is_wait
from profkit.present.part_colors import SERIES, color_number

PACKAGE = Path(profkit.__file__).parent
STYLE: Final = PACKAGE / "renderers" / "html" / "style.css"
VISION: Final = {
    "typical": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216],
         [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413],
         [-0.011820, 0.042940, 0.968881]]
    ),
    "tritanopia": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602],
         [0.004733, 0.691367, 0.303900]]
    ),
}  # fmt: skip
"""Perceived linear red, green and blue.

Source: Machado, Oliveira and Fernandes, "A Physiologically-based Model for Simulation of Color
Vision Deficiency", IEEE TVCG 15(6), 2009, table 1, severity 1.0.
"""
TO_XYZ: Final = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750],
     [0.0193339, 0.1191920, 0.9503041]]
)  # fmt: skip
WHITE: Final = TO_XYZ.sum(axis=1)
JUST_SEEN: Final = 2.3
"""The distance in CIELAB that is just noticed where two colours touch."""


def series(theme: int) -> dict[int, str]:
    """Return the colours of a theme, the light one first, by their numbers."""
    text = STYLE.read_text(encoding="utf-8")
    colours = re.findall(r"--series-(\d): #([0-9a-f]{6})", text)
    return {int(number): color for number, color in colours[8 * theme : 8 * theme + 8]}


def lab(color: str, vision: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return a colour in CIELAB as perceived."""
    red_green_blue = np.array([int(color[at : at + 2], 16) / 255 for at in (0, 2, 4)])
    linear = np.where(
        red_green_blue <= 0.04045, red_green_blue / 12.92, ((red_green_blue + 0.055) / 1.055) ** 2.4
    )
    xyz = TO_XYZ @ np.clip(vision @ linear, 0, 1) / WHITE
    f = np.where(xyz > (6 / 29) ** 3, np.cbrt(xyz), xyz * (29 / 6) ** 2 / 3 + 4 / 29)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("vision", VISION)
@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_no_two_colours_look_alike(theme: int, vision: str) -> None:
    colors = series(theme)
    assert sorted(colors) == list(range(1, 9))
    seen = {number: lab(color, VISION[vision]) for number, color in colors.items()}
    apart = {
        (left, right): float(np.linalg.norm(seen[left] - seen[right]))
        for left, right in combinations(seen, 2)
    }
    closest = min(apart, key=lambda pair: apart[pair])
    assert apart[closest] > 5 * JUST_SEEN, f"{closest}: {apart[closest]:.1f}"


def test_the_notebook_has_the_colours_of_the_page() -> None:
    assert series(0) == {number: color[1:] for number, color in enumerate(SERIES, 1)}


def test_no_two_parts_of_a_bar_are_drawn_alike() -> None:
    on_device = [f"idle-{cause}" for cause in get_args(IdleCause)]
    on_device += ["compute", "communication", "copy", "unrecorded"]
    on_host = ["operators", "backward", "optimizer", "communication", "data", "python"]
    for kinds in (on_device, on_host):
        drawn = [(color_number(kind), is_wait(kind)) for kind in kinds]
        assert len(set(drawn)) == len(kinds)
