"""Figures with a target, printed where they are measured, and collected for one table."""

import json
import os
from pathlib import Path
from typing import Final, NamedTuple

COLLECTED: Final = "PROFKIT_BENCHMARK_FIGURES"
"""The variable with the file to which the figures of a process are added, a line of JSON each."""


class Figure(NamedTuple):
    """What was measured.

    Attributes:
        what: What it is, with what it is relative to.
        value: In ``unit``.
        unit: Such as ``s``; ``x`` for a ratio.
        target: The value that it should have at most, or at least.
        at_least: Whether more is better.
    """

    what: str
    value: float
    unit: str
    target: float
    at_least: bool = False

    @property
    def is_met(self) -> bool:
        """Return whether the target is met."""
        return self.value >= self.target if self.at_least else self.value <= self.target

    @property
    def shown(self) -> str:
        """Return the value, the target with its direction, and the outcome, between bars."""
        bound = "at least" if self.at_least else "at most"
        outcome = "met" if self.is_met else "**missed**"
        return f"{self.value:.3g} {self.unit} | {bound} {self.target:.3g} {self.unit} | {outcome}"


def compared(
    what: str, value: float, unit: str, target: float, *, at_least: bool = False
) -> Figure:
    """Print a figure beside its target, and collect it if asked to.

    Args:
        what: As in :class:`Figure`, like the others.
    """
    figure = Figure(what, value, unit, target, at_least)
    print(f"{what}: {figure.shown.replace(' | ', ', ').replace('*', '')}", flush=True)
    if os.environ.get(COLLECTED):
        with Path(os.environ[COLLECTED]).open("a", encoding="utf-8") as file:
            file.write(json.dumps(figure) + "\n")
    return figure
