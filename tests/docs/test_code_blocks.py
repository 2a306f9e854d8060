"""The commands and the Python of the pages run as they are written."""

import html
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from profkit.testing import SnapshotBuilder
from tests.detectors.jobs import MS, JobBuilder
from tests.docs.blocks import ROOT, blocks, commands
from tests.processes import start
from tests.tensorboard.server import serving

TENSORBOARD = "profkit.integrations.tensorboard"
PAGES = ["README.md", "docs/export.md", "docs/guide.md", "docs/memory.md", "docs/notebooks.md",
         "docs/report.md", "docs/tensorboard.md", "docs/what-if.md"]  # fmt: skip
COMMANDS = {
    command: pytest.param(
        page, command, id=place, marks=[] if page == "README.md" else pytest.mark.slow
    )
    for page in reversed(PAGES)
    for command, place in reversed(list(commands(page)))
}
"""Each command once, on the first page that has it: the working folders are alike."""
PRELUDE = """
import torch

network = torch.nn.Linear(16, 4)
loader = torch.utils.data.DataLoader(torch.randn(64, 16), batch_size=8)
batch = torch.randn(8, 16)


def train_step(batch):
    network.zero_grad()
    network(batch).sum().backward()
"""
MAKE = shutil.which("make")


def environment() -> dict[str, str]:
    """This Python's own commands first, and the package from the checkout."""
    search = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    return {**os.environ, "PATH": search, "PYTHONPATH": str(ROOT)}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pages that ``profkit view`` caches go with the test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A working folder per page: each command continues from those above it."""
    return {page: prepared(tmp_path_factory.mktemp("reader")) for page in PAGES}


def prepared(folder: Path) -> Path:
    """A folder with the program, trace, job and snapshot that the pages assume."""
    program = (ROOT / "examples" / "leak_cured.py").read_text()
    (folder / "train.py").write_text(program.replace("default=200", "default=30"))
    shutil.copytree(ROOT / "traces" / "starved_loader_cured", folder / "traces" / "train")
    job = JobBuilder(2)
    with job.step():
        job.compute([2 * MS, MS])
        job.collective("all-reduce", MS)
    job.write(folder / "job")
    snapshot = SnapshotBuilder()
    with snapshot.frame("train.py", 31, "main"):
        snapshot.alloc(1 << 30)
    snapshot.write(folder / "oom.pickle")
    return folder


@pytest.mark.parametrize(("page", "command"), list(COMMANDS.values())[::-1])
def test_a_command_does_what_the_page_says(
    page: str, command: str, folders: dict[str, Path]
) -> None:
    folder = folders[page]
    tool, *arguments = command.split()
    if tool == "tensorboard":
        with serving(folder / arguments[-1]) as server:
            assert server.loaded("train") == "train"
    elif arguments[:2] == ["-m", TENSORBOARD]:
        with serving(folder / arguments[-1], TENSORBOARD) as server:
            assert server.address.startswith("http://127.0.0.1:")
    elif tool == "make":
        # The tests already run under make: a dry run is enough.
        assert MAKE, "make is not installed"
        subprocess.run([MAKE, "--dry-run", *arguments], cwd=ROOT, check=True, capture_output=True)
    else:
        before = set(folder.iterdir())
        if tool == "pip":
            where = ["--target", "installed", "--no-deps", "--no-build-isolation", str(ROOT)]
            command = " ".join([sys.executable, "-m", "pip", "install", "--quiet", *where])
            assert arguments == ["install", "."]
        elif tool == "profkit":
            command = command.replace("profkit", f"{sys.executable} -m profkit", 1)
        finished = subprocess.run(  # noqa: S602  (the pages are ours and use wildcards)
            command,
            shell=True,
            cwd=folder,
            env=environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        assert finished.returncode == 0, finished.stderr
        assert finished.stdout or finished.stderr or set(folder.iterdir()) > before


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=[] if page == "README.md" else pytest.mark.slow) for page in PAGES],
)
def test_the_python_of_a_page_runs_from_top_to_bottom(page: str, tmp_path: Path) -> None:
    program = tmp_path / "page.py"
    program.write_text("\n\n".join([PRELUDE, *(block.text for block in blocks(page, "python"))]))
    command = [sys.executable, str(program)]
    finished = subprocess.run(
        command, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False
    )
    assert finished.returncode == 0, finished.stderr
    assert "Warning" not in finished.stderr
    assert list((tmp_path / "traces").rglob("*.json.gz"))


@pytest.mark.slow
def test_the_callbacks_of_the_page_on_trainers_are_accepted(tmp_path: Path) -> None:
    for package in ("lightning", "transformers", "ignite", "accelerate"):
        pytest.importorskip(package)
    names = "model = network\noptimizer = torch.optim.SGD(model.parameters(), 0.1)\nrows = [batch]"
    parts = [PRELUDE, names, *(block.text for block in blocks("docs/trainers.md", "python"))]
    (tmp_path / "page.py").write_text("\n\n".join(parts))
    ended = start(tmp_path, "page.py")
    assert ended.code == 0, ended.err
    assert list((tmp_path / "traces").rglob("*.json.gz"))  # of the loop with Accelerate


@pytest.mark.slow
def test_the_suite_of_the_page_on_tests_passes_with_its_commands(tmp_path: Path) -> None:
    (suite,) = blocks("docs/pytest.md", "python")
    text = f"{PRELUDE}\n\nmodel = network\n\n{suite.text}"
    (tmp_path / "test_training.py").write_text(text)
    for command, place in commands("docs/pytest.md"):
        ended = start(tmp_path, "-m", *command.split(), "-p", "no:cacheprovider")
        assert ended.code == 0, f"{place}: {ended.out}"
        assert "= profkit =" in ended.out


def test_the_readme_shows_a_finding_and_its_fix() -> None:
    picture = (ROOT / "docs" / "images" / "run.svg").read_text(encoding="utf-8")
    lines = re.findall(r"<text [^>]*>([^<]*)</text>", picture)
    shown = " ".join(html.unescape("".join(lines)).split())
    assert "$ profkit run examples/starved_loader.py" in shown
    assert "starved-by-loader DAT001" in shown
    assert "Fix: " in shown
    assert "url(" not in picture.replace("url(#", "")
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    assert page.index("docs/images/run.svg") < page.index("```")
