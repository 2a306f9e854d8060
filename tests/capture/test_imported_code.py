"""Code of imported modules, which torch's tracer needs after it has run."""

import importlib
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from profkit.capture.process.imported_code import imported_code
from profkit.capture.recording.options import Options
from profkit.capture.recording.profiler import ProfilerRecording

N_CLASSES = 200
EXTERNAL: Any = importlib.import_module("importlib._bootstrap_external")


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield a module's file, on the path."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    yield tmp_path / "imported_once.py"
    sys.modules.pop("imported_once", None)


def imported() -> str:
    """Return the traceback of an import that fails."""
    with pytest.raises(SyntaxError) as error:
        __import__("imported_once")  # as the statement does
    return "".join(traceback.format_exception(error.value))


def recorded_names(recording: ProfilerRecording) -> Iterator[str]:
    pending = recording.tree()
    while pending:
        event = pending.pop()
        pending += event.children
        try:
            yield event.name
        except UnicodeDecodeError:
            yield "no text"


@pytest.mark.parametrize("is_cached", [False, True])
def test_what_ran_in_an_import_has_its_name(module: Path, is_cached: bool) -> None:  # noqa: FBT001
    names = [f"OnlyInTheImport{number:04}" for number in range(N_CLASSES)]
    module.write_text("\n".join(f"class {name}: pass\ndel {name}" for name in names))
    del names
    if is_cached:
        importlib.import_module("imported_once")
        del sys.modules["imported_once"]
    recording = ProfilerRecording(Options(quiet=True), stacks=True)
    recording.start()
    importlib.import_module("imported_once")
    recording.stop()
    other_names = [f"SomethingElse{number:06}" for number in range(50 * N_CLASSES)]
    recorded_classes = {name.rpartition(" ")[2] for name in recorded_names(recording)}
    recording.release()

    assert {f"OnlyInTheImport{number:04}" for number in range(N_CLASSES)} <= recorded_classes
    assert not recorded_classes & set(other_names)


def test_an_error_in_an_imported_module_has_the_same_traceback(module: Path) -> None:
    module.write_text("this is (no Python")
    bare = imported()
    with imported_code() as code:
        assert imported() == bare
    assert code == []


def test_imports_are_as_before_once_no_block_is_open(module: Path) -> None:
    module.write_text("number = 1")
    before = (EXTERNAL._compile_bytecode, EXTERNAL.SourceLoader.source_to_code)
    first, second = imported_code(), imported_code()
    of_first, of_second = first.__enter__(), second.__enter__()
    first.__exit__(None, None, None)
    importlib.import_module("imported_once")
    second.__exit__(None, None, None)
    assert (EXTERNAL._compile_bytecode, EXTERNAL.SourceLoader.source_to_code) == before
    assert (of_first, [code.co_filename for code in of_second]) == ([], [str(module)])
