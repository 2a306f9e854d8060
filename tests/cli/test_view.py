"""``profkit view`` writes the page and opens it if there is a screen."""

import stat
from pathlib import Path

import pytest

from profkit.cli import view
from profkit.cli.main import main
from profkit.testing import TraceBuilder
from tests.testing.test_live_builder import leaking


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Return a machine with a cache of its own and no screen; what a browser was asked to open."""
    for name in ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY", "SSH_CONNECTION", "SSH_TTY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("sys.platform", "linux")
    opened: list[str] = []

    def open_page(url: str) -> bool:
        opened.append(url)
        return True

    monkeypatch.setattr("webbrowser.open", open_page)
    return opened


@pytest.fixture
def trace(tmp_path: Path) -> str:
    """Return a step on a GPU."""
    b = TraceBuilder()
    with b.step():
        b.launch("aten::mm", kernel="gemm", host_ns=10_000, device_ns=50_000)
    return str(b.write(tmp_path / "step.pt.trace.json.gz"))


def test_the_page_is_cached_for_the_user_only_and_its_path_is_printed(
    trace: str, machine: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["view", trace]) == 0
    page = Path(capsys.readouterr().out.strip())
    assert page.name.startswith("step-")
    assert b"<html" in page.read_bytes()
    assert stat.S_IMODE(page.parent.stat().st_mode) == 0o700
    assert machine == []


@pytest.mark.parametrize("given", ["step.pt.trace.json.gz", "step.memory.json.gz", "."])
def test_the_page_has_the_leaks_of_the_memory_record_beside_a_trace(
    given: str, trace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert Path(trace).parent == tmp_path
    leaking().write(tmp_path / "step.memory.json.gz")
    assert main(["view", str(tmp_path / given), "-o", str(tmp_path / "page.html")]) == 0
    capsys.readouterr()
    page = (tmp_path / "page.html").read_text()
    assert "gemm" in page
    assert "64.0 KiB per step" in page
    assert page.count("<html") == 1


def test_a_relative_cache_path_is_ignored(
    trace: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    assert main(["view", trace]) == 0
    page = Path(capsys.readouterr().out.strip())
    assert page.parent == tmp_path / "me" / ".cache" / "profkit" / "pages"


def test_a_recording_has_one_page_and_old_pages_are_removed(
    trace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["view", trace]) == 0
    assert main(["view", trace]) == 0
    first, second = capsys.readouterr().out.split()
    assert first == second
    folder = Path(first).parent
    for number in range(30):
        (folder / f"old{number}.html").write_text("")
    assert main(["view", trace]) == 0
    assert len(list(folder.iterdir())) <= 21


def test_no_page_is_removed_from_a_folder_that_the_cache_links_to(
    trace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site = tmp_path / "site"
    site.mkdir()
    pages = {f"{number}.html" for number in range(30)}
    for page in pages:
        (site / page).write_text("")
    (tmp_path / "cache" / "profkit").mkdir(parents=True)
    (tmp_path / "cache" / "profkit" / "pages").symlink_to(site)

    assert main(["view", trace]) == 5
    assert "pages cannot be used: it is a link" in capsys.readouterr().err
    assert {page.name for page in site.iterdir()} == pages


def test_a_browser_opens_if_there_is_a_screen(
    trace: str,
    machine: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("DISPLAY", ":0")
    assert main(["view", trace]) == 0
    assert machine == [Path(capsys.readouterr().out.strip()).as_uri()]
    assert main(["view", trace, "--no-open"]) == 0
    assert len(machine) == 1


def test_no_browser_opens_over_ssh_unless_requested(
    trace: str, machine: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setenv("SSH_CONNECTION", "1.2.3.4 5 6.7.8.9 22")
    assert main(["view", trace]) == 0
    assert machine == []
    assert main(["view", trace, "--open"]) == 0
    assert len(machine) == 1


def test_over_ssh_the_command_to_copy_the_page_is_printed(
    trace: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("TERM", "dumb")
    assert main(["view", trace]) == 0
    said = capsys.readouterr()
    assert f"{Path(said.out.strip())} ." in said.err
    assert "scp " in said.err


@pytest.mark.parametrize("system", ["darwin", "win32"])
def test_other_systems_have_a_screen(system: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", system)
    assert view.has_screen()


def test_a_page_can_be_written_to_a_file_and_a_saved_report_be_shown(
    trace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report, page = tmp_path / "report.json", tmp_path / "page.html"
    assert main(["analyze", trace, "--format", "json", "-o", str(report)]) == 0
    assert main(["view", str(report), "-o", str(page)]) == 0
    assert capsys.readouterr().out.strip() == str(page)
    assert b"<html" in page.read_bytes()
    assert main(["view", str(report), "-o", str(page)]) == 5
