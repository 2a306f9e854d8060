"""What ``make test-versions`` installs, reads and writes."""

import re
import sys
import tomllib
from pathlib import Path

import pytest

from tests import versions
from tests.versions import Row, Versions, find_python, read_results, with_row

ROOT = Path(__file__).parents[2]
PAGE = "Before.\n\n<!-- written by make test-versions -->\n<!-- end of the table -->\n\nAfter.\n"
RESULTS = """\
<testsuites><testsuite>
<testcase classname="tests.test_a" name="test_passes"/>
<testcase classname="tests.test_a" name="test_fails"><failure message="no"/></testcase>
<testcase classname="tests.test_a" name="test_cannot_begin"><error message="no"/></testcase>
<testcase classname="tests.test_a" name="test_a_gpu"><skipped message="no GPU"/></testcase>
<testcase classname="tests.test_a" name="test_two_gpus"><skipped message="no GPU"/></testcase>
</testsuite></testsuites>
"""


def row(python: str, torch: str, packages: str = "pinned", n_failed: int = 0) -> Row:
    return Row(Versions(python, torch, packages), 10, n_failed, 1, "2026-11-27")


def rows(page: str) -> list[list[str]]:
    return [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| 3")]


def test_failed_and_skipped_tests_are_counted_apart() -> None:
    outcome = read_results(RESULTS)
    assert outcome.n_passed == 1
    assert outcome.failed == ("tests.test_a::test_fails", "tests.test_a::test_cannot_begin")
    assert outcome.reasons == {"no GPU": 2}


def test_the_rows_are_in_the_order_of_the_versions_whatever_was_tested_first() -> None:
    page = PAGE
    for tested in (
        row("3.12", "2.14.1"),
        row("3.11", "2.14.1"),
        row("3.11", "2.6.0"),
        row("3.11", "2.6.0", "lowest"),
    ):
        page = with_row(page, tested)

    assert [cells[:3] for cells in rows(page)] == [
        ["3.11", "2.6.0", "lowest"],
        ["3.11", "2.6.0", "pinned"],
        ["3.11", "2.14.1", "pinned"],
        ["3.12", "2.14.1", "pinned"],
    ]
    assert page.startswith("Before.\n\n<!--")
    assert page.endswith("-->\n\nAfter.\n")


def test_a_version_that_is_tested_again_has_one_row_with_the_new_result() -> None:
    page = with_row(with_row(PAGE, row("3.11", "2.6.0", n_failed=3)), row("3.11", "2.9.1"))
    page = with_row(page, row("3.11", "2.6.0"))
    assert rows(page) == [
        ["3.11", "2.6.0", "pinned", "10", "0", "1", "2026-11-27"],
        ["3.11", "2.9.1", "pinned", "10", "0", "1", "2026-11-27"],
    ]


def test_packages_that_are_installed_with_torch_are_not_pinned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pins = tmp_path / "pins.txt"
    pins.write_text("numpy==2.4.6\nsympy==1.14.0\ntorch==2.13.0\ntyping-extensions==4.16.0\n")
    monkeypatch.setattr(versions, "PINS", pins)
    installed = {versions._name(text) for text in ("torch", "sympy==1.13.1", "typing_extensions")}
    assert list(versions._pins_beside(installed)) == ["numpy==2.4.6\n"]


@pytest.mark.checkout
def test_the_copy_that_is_tested_has_no_package_of_its_own(tmp_path: Path) -> None:
    copy = versions.copy_checkout(tmp_path / "checkout")
    assert (copy / "tests" / "versions.py").is_file()
    assert (copy / "pyproject.toml").is_file()
    assert not (copy / "profkit").exists()


def test_the_lowest_versions_are_the_bounds_of_the_project_and_of_its_extras() -> None:
    lowest = versions._requirements("lowest")
    assert "torch==2.6" in lowest
    assert "fsspec[http]==2024.2" in lowest
    assert all(text.count("==") == 1 for text in lowest)
    assert versions._requirements("newest") == [text.replace("==", ">=") for text in lowest]
    assert versions._requirements("pinned") == []


def test_an_interpreter_is_found_by_its_version() -> None:
    major, minor = sys.version_info[:2]
    assert find_python(f"{major}.{minor}") is not None
    assert find_python("3.1") is None


def test_the_oldest_supported_versions_and_the_pinned_torch_are_tested() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (torch,) = (text for text in project["dependencies"] if text.startswith("torch>="))
    oldest_python = project["requires-python"].removeprefix(">=")
    oldest = versions.VERSIONS[0]
    assert (oldest.python, oldest.packages) == (oldest_python, "lowest")
    assert oldest.torch.startswith(torch.removeprefix("torch>=") + ".")

    pinned = re.search(r"^torch==(\S+)$", versions.PINS.read_text(encoding="utf-8"), re.MULTILINE)
    assert pinned is not None
    assert pinned[1] in {combination.torch for combination in versions.VERSIONS}

    listed = {text.rpartition(" ")[2] for text in project["classifiers"] if " 3." in text}
    assert listed <= {combination.python for combination in versions.VERSIONS}
