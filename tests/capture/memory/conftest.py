"""Runs a small program as a module of its own, and hides the objects of tests before."""

import gc
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from profkit.capture.memory.holders import holder_chains, native_refs
from profkit.capture.memory.monitor.live_tensors import LiveTensors
from tests.capture.memory.worlds import START, World


@pytest.fixture(autouse=True)
def nothing_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide what ``small_heap`` has frozen, which is not the program's: its walk takes seconds."""
    monkeypatch.setattr(native_refs, "has_frozen_objects", lambda: False)


@pytest.fixture
def all_objects(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Show the objects of tests before too, for holders such as a module of a library.

    They are so many, where all tests run, that a search takes longer than a program would wait.
    """
    find_holdings = holder_chains.find_holdings

    def find_in_time(*args: Any, **options: Any) -> list[holder_chains.Holding]:  # noqa: ANN401
        return find_holdings(*args, **options | {"budget_s": 60.0})

    monkeypatch.setattr(holder_chains, "find_holdings", find_in_time)
    gc.unfreeze()
    yield
    gc.freeze()


@pytest.fixture
def live() -> Iterator[LiveTensors]:
    """Track the tensors of a test."""
    tracked = LiveTensors()
    tracked.begin()
    yield tracked
    tracked.end()


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
