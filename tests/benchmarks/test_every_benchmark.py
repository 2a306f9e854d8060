"""All benchmarks in one run: each takes part, and its figures come into the table."""

import subprocess

import pytest

from benchmarks import __main__ as benchmarks
from benchmarks.figures import COLLECTED, compared
from benchmarks.load import ROOT


def test_every_benchmark_takes_part() -> None:
    scripts = {path.stem for path in (ROOT / "benchmarks").glob("*.py")}
    assert benchmarks.BENCHMARKS.keys() == scripts - {"__main__", "figures"}


@pytest.mark.parametrize(
    ("value", "at_least", "shown"),
    [
        (2.5, False, "| a | 2.5 x | at most 3 x | met |"),
        (3.01, False, "| a | 3.01 x | at most 3 x | **missed** |"),
        (2.5, True, "| a | 2.5 x | at least 3 x | **missed** |"),
    ],
)
def test_a_figure_comes_from_its_process_into_the_table(
    *, value: float, at_least: bool, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measured(_: list[str], *, env: dict[str, str], **__: object) -> object:
        monkeypatch.setenv(COLLECTED, env[COLLECTED])
        compared("a", value, "x", 3, at_least=at_least)
        return subprocess.CompletedProcess([], 0)

    monkeypatch.setattr(subprocess, "run", measured)
    assert shown in benchmarks.section("any", [], "python").splitlines()


def test_a_benchmark_that_fails_says_so(capfd: pytest.CaptureFixture[str]) -> None:
    table = benchmarks.section("no_such_benchmark", [], "python")
    assert "| ended with exit code 1 | | | |" in table
    assert "no_such_benchmark" in capfd.readouterr().err


def test_figures_that_got_worse_by_more_than_noise_are_named() -> None:
    before = benchmarks.PAGE.read_text(encoding="utf-8")
    assert list(benchmarks.find_regressions(before, before)) == []
    assert len(list(benchmarks._read_rows(before))) > 50

    page = "## `python -m benchmarks.load`\n"
    rows = {
        "slower": ("1.2 x | at most 1 x | **missed**", "1.7 x | at most 1 x | **missed**"),
        "a bit slower": ("1.2 x | at most 1 x | **missed**", "1.3 x | at most 1 x | **missed**"),
        "near nothing": ("0.01 s | at most 0.5 s | met", "0.1 s | at most 0.5 s | met"),
        "faster": ("9 x | at least 5 x | met", "4 x | at least 5 x | **missed**"),
    }
    old, new = (
        page + "".join(f"| {what} | {values[i]} |\n" for what, values in rows.items())
        for i in (0, 1)
    )
    assert list(benchmarks.find_regressions(old, new)) == [
        "slower: 1.2 x before, 1.7 x now",
        "faster: 9 x before, 4 x now",
    ]
    assert list(benchmarks.find_regressions("", new)) == []
