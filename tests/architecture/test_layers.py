import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

FORBIDDEN_IMPORTS = [
    ("engine", "import profkit.renderers", "A package imports only from the floors below it"),
    ("model", "from click import echo", "Only the command line knows click"),
    ("readers", "import torch", "Only capture and integrations know torch"),
    ("integrations", "import profkit.cli", "A package imports only from the floors below it"),
    ("drawer", "", "A package imports only from the floors below it"),
    ("detectors/two", "import profkit.model", "Rules import through profkit.rule"),
    ("detectors/two", "import profkit.engine.context", "Rules import through profkit.rule"),
]


def lint_imports(root: Path) -> subprocess.CompletedProcess[str]:
    command = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports())"
    return subprocess.run(
        [sys.executable, "-c", command],
        cwd=root,
        env={"PYTHONPATH": str(root), "PATH": "", "NO_COLOR": "1", "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_every_import_contract_holds() -> None:
    result = lint_imports(ROOT)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(("room", "line", "contract"), FORBIDDEN_IMPORTS)
def test_a_forbidden_import_breaks_its_contract(
    tmp_path: Path, room: str, line: str, contract: str
) -> None:
    rooms = ("__init__", "cli", "api", "capture", "detectors", "renderers", "testing", "engine")
    for name in (*rooms, "index", "readers", "model", "errors", "names", "units", room):
        package = tmp_path / "profkit" / ("." if name == "__init__" else name)
        package.mkdir(parents=True, exist_ok=True)
        (package / "__init__.py").write_text(line if name == room else "")
    for name in ("detectors", "renderers"):
        (tmp_path / "profkit" / name / "one.py").write_text("")
    (tmp_path / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text())
    result = lint_imports(tmp_path)
    assert result.returncode == 1, result.stdout + result.stderr
    broken = [line for line in result.stdout.splitlines() if line.endswith(" BROKEN")]
    assert any(line.startswith(contract) for line in broken)
