"""The pages of each package read better with each change, never worse."""

from pathlib import Path

import pytest

from tests.architecture.page_style import PageStyle, measure

ROOT = Path(__file__).parents[2]
PROFKIT = ROOT / "profkit"
AIM = PageStyle(dense=0.25, pronouns=0.01, comments=14.5, nouns=0.25, verbless=0.1, elliptic=0)
"""What every package is to reach. One that has reached it needs no row in the table below."""
BEYOND = PageStyle(dense=0, pronouns=0, comments=15, nouns=0, verbless=0, elliptic=0)
"""What some packages have reached beyond that, and keep."""
NOW = {
    "analysis": BEYOND._replace(comments=20, verbless=0.08),  # the public name `study`
    "budgets": BEYOND._replace(comments=16.5),
    "capture": BEYOND._replace(comments=17.5, verbless=0.03),  # `trace`; names in recordings
    "cli": BEYOND._replace(comments=17),
    "comparison": BEYOND,
    "detectors": PageStyle(0.00, 0.000, 19.6, 0.00, 0.01, 0),
    "engine": AIM._replace(comments=12),
    "index": PageStyle(0.00, 0.000, 17, 0.00, 0.04, 0),
    "integrations": BEYOND._replace(comments=16, verbless=0.1),  # hooks that pytest names
    "model": PageStyle(0.00, 0.001, 1.6, 0.00, 0.00, 0),  # records, which docstrings describe
    "present": PageStyle(0.03, 0.003, 15.0, 0.05, 0.11, 0),
    "renderers": PageStyle(0.06, 0.001, 15.4, 0.01, 0.02, 0),
    "readers": PageStyle(0.00, 0.001, 17, 0.00, 0.07, 0),
    "scale": PageStyle(0.00, 0.000, 15.5, 0.00, 0.00, 0),
    "testing": BEYOND._replace(comments=15.5, verbless=0.07),  # `malloc`
}
"""What each package has reached. Lower a share (raise that of comments) when you have improved it.
"""
TESTS = AIM._replace(dense=0.05, pronouns=0, comments=0, nouns=0.05, verbless=0.05)
"""What tests and programs have reached. Names of tests say what comments would."""
ROOMS = {
    **{str(room.relative_to(ROOT)): TESTS for room in (ROOT / "tests").iterdir() if room.is_dir()},
    **dict.fromkeys(("benchmarks", "examples", "fuzz"), TESTS),
    # A blank line would move the lines that are in recordings of these programs.
    "examples": TESTS._replace(dense=0.355),
    "tests/renderers": TESTS._replace(dense=0.14),  # reports, each of one expression
}
"""What each folder outside of profkit has reached."""


def worse(style: PageStyle, limit: PageStyle) -> dict[str, tuple[float, float]]:
    """Return the figures that are beyond their limit, with it."""
    pairs = zip(style._fields, style, limit, strict=True)
    signs = {name: -1 if name == "comments" else 1 for name in style._fields}
    return {
        name: (figure, bound)
        for name, figure, bound in pairs
        if signs[name] * figure > signs[name] * bound + (0.05 if name == "comments" else 0.005)
    }


@pytest.mark.parametrize("package", sorted(p.parent.name for p in PROFKIT.glob("*/__init__.py")))
def test_no_page_reads_worse_than_before(package: str) -> None:
    style = measure((PROFKIT / package).rglob("*.py"))
    assert worse(style, NOW.get(package, AIM)) == {}


@pytest.mark.parametrize("room", sorted(ROOMS))
def test_no_page_of_tests_and_programs_reads_worse_than_before(room: str) -> None:
    assert worse(measure((ROOT / room).rglob("*.py")), ROOMS[room]) == {}


def test_each_figure_counts_what_it_says(tmp_path: Path) -> None:
    lines = "\n    ".join(f"x{i} = {i}" for i in range(15))
    page = tmp_path / "page.py"
    page.write_text(
        f'def rows():\n    """The rows."""\n    # Why.\n    {lines}  # noqa: E501\n'
        f'def find_rows():\n    """Return rows."""\n    {lines}\n\n    found = 1\n'
        f'@property\ndef names():\n    """As above."""\n    {lines}\n\n    return 1\n'
    )
    n_names = 3 * 15 + 1
    assert measure([page]) == pytest.approx(
        PageStyle(1 / 3, 1 / n_names, 1000 / page.read_text().count("\n"), 1 / 3, 1 / 3, 1)
    )
