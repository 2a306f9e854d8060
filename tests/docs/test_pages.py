"""The pages match the code and each other."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from docs import generate
from profkit.present.renderer import renderers
from tests.docs.blocks import ROOT, blocks

WRITTEN = sorted(
    path.relative_to(ROOT).as_posix()
    for pattern in ("*.md", "docs/*.md", "examples/*.md", "traces/*.md")
    for path in ROOT.glob(pattern)
)
SECTION_LINES = 26


def test_generated_pages_are_up_to_date() -> None:
    command = [sys.executable, "docs/generate.py", "--check"]
    settings = {**os.environ, "PYTHONPATH": str(ROOT)}
    checked = subprocess.run(
        command, cwd=ROOT, env=settings, capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert checked.stdout == "up to date\n"


def test_an_outdated_page_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(generate.REFERENCE, tmp_path / "reference")
    (tmp_path / "reference" / "commands.md").write_text("something else")
    (tmp_path / "reference" / "gone.md").write_text("of a rule that is no more")
    (tmp_path / "reference" / "report.md").unlink()
    monkeypatch.setattr(generate, "REFERENCE", tmp_path / "reference")
    assert {"reference/commands.md", "reference/gone.md", "reference/report.md"} <= set(
        generate.stale()
    )


@pytest.mark.parametrize("page", WRITTEN)
def test_every_link_of_a_page_is_a_file(page: str) -> None:
    folder = (ROOT / page).parent
    links = re.findall(r"\]\(([^)#]+)\)", (ROOT / page).read_text(encoding="utf-8"))
    missing = [
        link for link in links if not link.startswith("http") and not (folder / link).exists()
    ]
    assert not missing


@pytest.mark.checkout
@pytest.mark.parametrize("page", WRITTEN)
def test_every_file_that_a_page_names_exists(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:examples|docs|tests|benchmarks|traces|profkit)/[\w./-]+)`", text))
    invented = {name for name in named if "my_" in name or name.endswith(("/NAME/", "/train/"))}
    folder = (ROOT / page).parent
    missing = [
        name
        for name in named - invented
        if not (ROOT / name).exists() and not (folder / name).exists()
    ]
    assert not missing


def test_each_way_to_contribute_is_short_without_its_code() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    text = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    sections = dict(re.findall(r"^## (.+?)\n\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL))
    for title in ("Add a rule", "Add a renderer", "Record a trace"):
        assert len(sections[title].strip().splitlines()) < SECTION_LINES, title


def test_the_readme_starts_with_a_sentence_a_picture_and_two_commands() -> None:
    title, sentence, body = (ROOT / "README.md").read_text(encoding="utf-8").split("\n\n", 2)
    assert title == "# profkit"
    assert re.fullmatch(r"[^.\n]+\.", sentence)
    assert body.startswith("![A terminal with the report of `profkit run starved.py`")
    assert len(blocks("README.md", "console")[0].text.splitlines()) == 2


def test_the_page_on_export_lists_every_format() -> None:
    table = re.findall(r"^\| (`.+?) \|", (ROOT / "docs/export.md").read_text(), re.MULTILINE)
    listed = set(re.findall(r"`(\w+)`", " ".join(table)))
    assert {renderer.INFO.name for renderer in renderers()} <= listed


@pytest.mark.checkout
def test_the_architecture_names_every_package_and_top_level_module() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = re.findall(r"^\| \d+ \| (.+?) \|", text, re.MULTILINE)
    named = {name for cell in table for name in re.findall(r"`(\w+)`", cell)}
    package = Path(ROOT, "profkit")
    rooms = {path.stem for path in package.glob("*.py")} | {
        path.parent.name for path in package.glob("*/__init__.py")
    }
    assert named == rooms - {"__init__"}
