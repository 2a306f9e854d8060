"""Modules as text: names in a tree, and the ones that a sentence names."""

from collections.abc import Sequence
from itertools import takewhile
from typing import Final

from profkit.engine.wording import counted
from profkit.model.work_summary import ModuleSummary

_MAIN_SHARE: Final = 0.9
"""A module with this share of its siblings' time is named by the modules within it."""


def module_label(module: ModuleSummary) -> str:
    """Return the name with its depth: ``· · Linear_3``."""
    name = module.name or counted(module.n_modules, "other")
    return "· " * module.depth + name


def main_modules(modules: Sequence[ModuleSummary]) -> list[ModuleSummary]:
    """Find the outermost siblings of which none takes nearly all the time, largest first."""
    siblings = [module for module in modules if module.depth == 0]
    while len(siblings) > 0:
        largest = max(siblings, key=lambda module: module.share)
        below = _children(modules, largest)
        share_of_siblings = largest.share / (sum(module.share for module in siblings) or 1)
        share_of_children = sum(module.share for module in below) / (largest.share or 1)
        if min(share_of_siblings, share_of_children) < _MAIN_SHARE:
            break
        siblings = below
    named = (module for module in siblings if module.name)
    return sorted(named, key=lambda module: -module.share)


def _children(modules: Sequence[ModuleSummary], parent: ModuleSummary) -> list[ModuleSummary]:
    """Return the modules that a module called itself."""
    place = next(i for i, module in enumerate(modules) if module is parent)
    # The modules are in depth-first order: those within the parent follow it.
    within = takewhile(lambda module: module.depth > parent.depth, modules[place + 1 :])
    return [module for module in within if module.depth == parent.depth + 1]
