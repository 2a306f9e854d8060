"""Runs a small program as a module of its own."""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tests.capture.memory.worlds import START, World


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Runs a program as the module ``world``."""

    def run(source: str) -> ModuleType:
        file = tmp_path / "world.py"
        module = ModuleType("world")
        module.__dict__["__file__"] = str(file)
        sys.modules["world"] = module
        exec(compile(START + source, str(file), "exec"), module.__dict__)  # noqa: S102
        return module

    yield run
    sys.modules.pop("world", None)
