"""Of the programs that leak and those that do not, ``make test`` runs some, ``make leaks`` all."""

import os
from typing import Final

import pytest

ALL: Final = "PROFKIT_ALL_LEAKS"
SOME: Final = {
    "beside_ballast", "checkpoints_as_bytes", "hook_keeps_outputs", "running_loss",
    "suspended_generators",
    "clean_bounded_cache", "clean_collects_by_itself", "clean_gradient_accumulation",
    "clean_periodic_evaluation", "clean_random_lengths",
}  # fmt: skip
"""Every kind of growth, and every kind of what looks like it."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave the rest to ``make leaks``: all of them take a quarter of an hour on two processors."""
    if os.environ.get(ALL):
        return
    rest = pytest.mark.skip(reason="make leaks runs it")
    for item in items:
        name = getattr(item, "callspec", None) and item.callspec.params.get("name")  # type: ignore[attr-defined]
        if "leak" in item.path.name and name is not None and name not in SOME:
            item.add_marker(rest)
