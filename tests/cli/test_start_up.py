"""A program waits for what profkit imports before it starts: that is little until torch comes."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from profkit.testing import TraceBuilder

LIGHT = """\
import sys
names = {name.partition(".")[0] for name in sys.modules}
print(sorted(names & {"numpy", "pandas", "torch", "rich", "msgspec", "isal", "jinja2"}))
print([name for name in sys.modules if name.startswith("profkit.")])
"""
MAX_OWN_MODULES = 28
IS_PART_OF_NUMPY = np.__version__.startswith("1.")
"""Whether importing NumPy imports ``numpy.ma``, as it did before NumPy 2."""
"""Of some 350; each takes a millisecond or more."""


COUNTED = """\
import sys
from profkit.cli.main import main
try:
    main(sys.argv[1:])
finally:
    print(sorted(sys.modules), file=sys.stderr)
"""


def watched(folder: Path, *program: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-X", "importtime", "-m", "profkit", "run", *program]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)


def imported(stderr: str) -> set[str]:
    """All modules that a process has imported, by ``-X importtime``."""
    lines = [line for line in stderr.splitlines() if line.startswith("import time:")]
    return {line.rpartition("|")[2].strip() for line in lines}


def test_a_program_starts_before_anything_heavy_is_imported(tmp_path: Path) -> None:
    ended = watched(tmp_path, "-c", LIGHT)
    heavy, own_modules = ended.stdout.splitlines()
    assert heavy == "[]"
    assert own_modules.count("profkit.") <= MAX_OWN_MODULES


@pytest.mark.parametrize(
    ("source", "exit_code"), [("print('done')", 0), ("def (", 1), ("import missing_module_", 1)]
)
def test_a_program_without_torch_imports_nothing_heavy_to_its_end(
    source: str, exit_code: int, tmp_path: Path
) -> None:
    program = tmp_path / "program.py"
    program.write_text(source, encoding="utf-8")
    bare = subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, check=False
    )
    ended = watched(tmp_path, str(program))
    assert (ended.returncode, ended.stdout) == (bare.returncode, bare.stdout)
    assert ended.returncode == exit_code
    names = imported(ended.stderr)
    assert "profkit.capture.run.run" in names
    assert not names & {"numpy", "pandas", "torch", "rich", "profkit.engine", "profkit.api"}
    assert len([name for name in names if name.startswith("profkit.")]) <= MAX_OWN_MODULES
    assert "did not import torch" in ended.stderr


def test_torch_that_only_a_forked_child_imports_is_not_recorded(tmp_path: Path) -> None:
    source = """\
import os
if os.fork() == 0:
    import torch
    torch.ones(3).exp()
    raise SystemExit(0)
print(os.wait()[1])
"""
    ended = watched(tmp_path, "-c", source)
    assert (ended.returncode, ended.stdout) == (0, "0\n")
    assert "did not import torch" in ended.stderr
    assert not (tmp_path / "traces").exists()


def find_modules(*command: str) -> tuple[list[str], set[str]]:
    """Find the modules of profkit that a command imports, and all that it imports."""
    ended = subprocess.run(
        [sys.executable, "-c", COUNTED, *command], capture_output=True, text=True, check=True
    )
    modules = ast.literal_eval(ended.stderr.splitlines()[-1])
    return [name for name in modules if name.startswith("profkit.")], set(modules)


def test_profkit_itself_imports_next_to_nothing() -> None:
    program = "import profkit, sys; print([name for name in sys.modules if 'profkit' in name])"
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert ended.stdout == "['profkit._version', 'profkit']\n"


def test_the_help_imports_no_analysis() -> None:
    own_modules, every = find_modules("--help")
    commands = [name for name in own_modules if re.fullmatch(r"profkit\.cli\.[a-z]\w*", name)]
    assert len(own_modules) - len(commands) <= 21
    assert not every & {"numpy", "pandas", "rich", "torch", "isal", "jinja2", "msgspec"}
    assert not every & {"hashlib", "tempfile", "random", "socket", "statistics"}


def test_an_analysis_imports_what_a_trace_and_its_format_need(tmp_path: Path) -> None:
    trace = TraceBuilder()
    with trace.step():
        trace.compute("aten::mm", 1_000)
    own_modules, every = find_modules("analyze", str(trace.write(tmp_path / "a.pt.trace.json")))
    folders = [name.split(".")[1] for name in own_modules]
    assert folders.count("capture") == folders.count("integrations") == 0

    renderers = {name for name in own_modules if name.startswith("profkit.renderers.")}
    assert renderers
    assert all(name.startswith("profkit.renderers.text") for name in renderers)

    # All rules with what they share, and half of the rest: of 670 modules in all.
    of_rules = [
        name for name in own_modules if re.match(r"profkit\.(detectors|engine\.families)\b", name)
    ]
    assert len(own_modules) - len(of_rules) <= 279
    assert not every & {"pandas", "torch", "jinja2", "dask", "distributed", "multiprocessing"}
    assert not every & {"importlib.metadata", "concurrent.futures"}
    assert ("numpy.ma" in every) is IS_PART_OF_NUMPY
    assert not every & {"profkit.api", "profkit.budgets.check", "profkit.engine.job"}


def test_numbers_are_found_among_many_without_an_import() -> None:
    source = """\
import sys
import numpy as np
from profkit.index.distinct import are_among, distinct
far = np.arange(1000) << 40
print(are_among(far, distinct(far[::2])).sum(), "numpy.ma" in sys.modules)
"""
    ended = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, check=True
    )
    assert ended.stdout == f"500 {IS_PART_OF_NUMPY}\n"
