"""Modules as text: names in a tree, and the ones that a sentence names."""

from collections.abc import Sequence
from typing import Final

from profkit.engine.wording import counted
from profkit.model.report import ModuleSummary

_MAIN_SHARE: Final = 0.9
"""A module with this share of its siblings' time is named by the modules within it."""


def module_label(module: ModuleSummary) -> str:
    """The name with its depth: ``· · Linear_3``."""
    name = module.name or counted(module.n_modules, "other")
    return "· " * module.depth + name


def main_modules(every: Sequence[ModuleSummary]) -> list[ModuleSummary]:
    """The first modules side by side of which no one takes nearly all the time, largest first."""
    found = [each for each in every if each.depth == 0]
    while len(found) > 0:
        largest = max(found, key=lambda each: each.share)
        below = _below(every, largest)
        if (
            min(
                largest.share / (sum(each.share for each in found) or 1),
                sum(each.share for each in below) / (largest.share or 1),
            )
            < _MAIN_SHARE
        ):
            break
        found = below
    return sorted((each for each in found if each.name), key=lambda each: -each.share)


def _below(every: Sequence[ModuleSummary], module: ModuleSummary) -> list[ModuleSummary]:
    """The modules that it called itself."""
    found = []
    for each in every[next(i for i, other in enumerate(every) if other is module) + 1 :]:
        if each.depth <= module.depth:
            break
        if each.depth == module.depth + 1:
            found.append(each)
    return found
