"""``make test-programs`` runs the programs; they need packages that no other test needs."""

import os
from typing import Final

import pytest

ASKED_FOR: Final = "PROFKIT_PROGRAMS"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the programs unless they are asked for."""
    if os.environ.get(ASKED_FOR):
        return
    for item in items:
        if item.get_closest_marker("programs"):
            item.add_marker(pytest.mark.slow)
            item.add_marker(pytest.mark.skip(reason="make test-programs runs it"))
