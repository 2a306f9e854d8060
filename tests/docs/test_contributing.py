"""The rule and the renderer of CONTRIBUTING.md work, and nothing else is edited for them."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT, blocks

pytestmark = pytest.mark.checkout

COPIED = ("profkit", "docs", "examples", "traces", "tests", "README.md", "pyproject.toml")


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the checkout with the files of CONTRIBUTING.md added."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            ignored = shutil.ignore_patterns("__pycache__", "images")
            shutil.copytree(source, folder / name, ignore=ignored)
        else:
            shutil.copy(source, folder / name)
    for block in blocks("CONTRIBUTING.md", "python"):
        path, _, text = block.text.removeprefix("# ").partition("\n")
        assert not (folder / path).exists(), f"{block} would replace {path}"
        (folder / path).write_text(text, encoding="utf-8")
    return folder


def run(checkout: Path, *command: str) -> str:
    finished = subprocess.run(
        [sys.executable, *command],
        cwd=checkout,
        env={**os.environ, "PYTHONPATH": str(checkout)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return finished.stdout


@pytest.mark.slow
def test_the_new_rule_passes_its_test_and_the_catalogues_tests(checkout: Path) -> None:
    tests = ["tests/detectors/test_full_sorts.py", "tests/catalogue/test_catalogue.py"]
    passed = run(checkout, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests)
    assert " passed" in passed


def test_the_new_rule_is_selected_shown_and_documented(checkout: Path) -> None:
    (trace,) = (checkout / "traces" / "starved_loader").glob("*.pt.trace.json.gz")
    analyze = ["-m", "profkit", "analyze", str(trace), "--select", "full-sorts"]
    assert "full-sorts" in run(checkout, "-m", "profkit", "rules")
    assert "topk" in run(checkout, "-m", "profkit", "rules", "KER900")
    assert run(checkout, *analyze)
    run(checkout, "docs/generate.py")
    page = checkout / "docs" / "reference" / "rules" / "KER900-full-sorts.md"
    assert "min_sort_share" in page.read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_new_renderer_keeps_what_every_format_promises(checkout: Path) -> None:
    tests = "tests/renderers/test_every_renderer.py"
    passed = run(checkout, "-m", "pytest", "-q", "-p", "no:cacheprovider", tests, "-k", "org")
    assert int(passed.rpartition(" passed")[0].rpartition("\n")[2].split()[0]) > 30


def test_the_new_renderer_is_a_format_of_the_command_line(checkout: Path) -> None:
    (trace,) = (checkout / "traces" / "starved_loader").glob("*.pt.trace.json.gz")
    shown = run(checkout, "-m", "profkit", "analyze", str(trace), "--format", "org")
    assert "* Findings: " in shown


def test_the_new_rule_and_renderer_follow_the_style(checkout: Path) -> None:
    files = ["profkit/detectors/full_sorts.py", "tests/detectors/test_full_sorts.py"]
    files.append("profkit/renderers/org.py")
    assert run(checkout, "-m", "ruff", "check", *files) == "All checks passed!\n"
    formatted = run(checkout, "-m", "ruff", "format", "--check", *files)
    assert formatted == "3 files already formatted\n"


def test_a_recorded_trace_reports_the_same_findings_as_before(checkout: Path) -> None:
    tests = "tests/examples/test_recorded.py"
    assert " passed" in run(checkout, "-m", "pytest", "-q", "-p", "no:cacheprovider", tests)
