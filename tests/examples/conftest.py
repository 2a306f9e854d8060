"""Of the programs with and without leaks ``make test`` runs two, ``make leaks`` all."""

import os
from typing import Final

import pytest

ALL: Final = "PROFKIT_ALL_LEAKS"
FEW: Final = {"hook_keeps_outputs", "clean_bounded_cache"}
"""Programs of ``make test``."""
SOME: Final = {
    "beside_ballast", "checkpoints_as_bytes", "hook_keeps_outputs", "running_loss",
    "suspended_generators",
    "clean_bounded_cache", "clean_collects_by_itself", "clean_gradient_accumulation",
    "clean_periodic_evaluation", "clean_random_lengths",
}  # fmt: skip
"""Programs of ``make test-all``: every kind of leak, and of program that looks like one."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what ``make leaks`` alone runs: all programs take a quarter of an hour on two cores."""
    run_all = bool(os.environ.get(ALL))
    skip = pytest.mark.skip(reason="make leaks runs it")
    for item in items:
        name = getattr(item, "callspec", None) and item.callspec.params.get("name")  # type: ignore[attr-defined]
        if "leak" not in item.path.name or name is None or name in FEW:
            continue
        item.add_marker(pytest.mark.slow)
        if name not in SOME and not run_all:
            item.add_marker(skip)
