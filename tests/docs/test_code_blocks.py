"""The commands and the Python of the pages run as they are written."""

import html
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from profkit.testing import SnapshotBuilder, TraceBuilder
from tests.detectors.jobs import MS, JobBuilder
from tests.docs.blocks import ROOT, blocks, commands
from tests.docs.shell import environment, shell
from tests.processes import start, start_forked
from tests.tensorboard.server import serving

TENSORBOARD = "profkit.integrations.tensorboard"
PAGES = [
    "README.md",
    "docs/configuration.md",
    "docs/critical-path.md",
    "docs/export.md",
    "docs/index.md",
    "docs/inputs.md",
    "docs/memory.md",
    "docs/notebooks.md",
    "docs/reading.md",
    "docs/recording.md",
    "docs/report.md",
    "docs/tensorboard.md",
    "docs/troubleshooting.md",
    "docs/what-if.md",
]
WITH_TESTS_OF_THEIR_OWN = {
    f"docs/{name}.md" for name in ("agents", "check", "guide", "jobs", "pytest", "trainers")
}
NOT_RUN = {"docs/ranks.md"}
"""Its commands need a cluster, a job of eight ranks, or dumps of one that hangs."""


def find_marks(page: str, command: str) -> Iterator[pytest.MarkDecorator]:
    """Yield the marks of a command's test."""
    if page != "README.md":
        yield pytest.mark.slow
    if command.startswith("pip "):
        yield pytest.mark.checkout


COMMANDS = {
    command: pytest.param(page, command, id=place, marks=list(find_marks(page, command)))
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


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the pages that ``profkit view`` caches in the test's folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return a working folder per page: each command continues from those above it."""
    return {page: prepared(tmp_path_factory.mktemp("reader")) for page in PAGES}


def prepared(folder: Path) -> Path:
    """Return a folder with the program, trace, job and snapshot that the pages assume."""
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


def test_the_code_of_every_page_is_run() -> None:
    written = {path.relative_to(ROOT).as_posix() for path in ROOT.glob("docs/*.md")}
    with_code = {page for page in written if blocks(page, "python") or blocks(page, "console")}
    assert with_code == with_code & {*PAGES, *WITH_TESTS_OF_THEIR_OWN} | NOT_RUN


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
        ended = shell(command, folder)
        assert ended.code == 0, ended.err
        assert ended.out or ended.err or set(folder.iterdir()) > before


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[] if page == "README.md" else pytest.mark.slow)
        for page in PAGES
        if blocks(page, "python")
    ],
)
def test_the_python_of_a_page_runs_from_top_to_bottom(page: str, tmp_path: Path) -> None:
    parts = [PRELUDE, *(block.text for block in blocks(page, "python"))]
    (tmp_path / "page.py").write_text("\n\n".join(parts))
    ended = start_forked(tmp_path, "page.py")
    assert ended.code == 0, ended.err
    assert "Warning" not in ended.err
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
    assert "$ profkit run starved.py" in shown
    assert "starved-by-loader DAT001" in shown
    assert "Fix: " in shown
    assert "url(" not in picture.replace("url(#", "")
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    assert page.index("docs/images/run.svg") < page.index("```")


@pytest.mark.slow
def test_the_commands_of_the_page_on_budgets_work_in_its_project(tmp_path: Path) -> None:
    folder = prepared(tmp_path)
    (project,) = blocks("docs/check.md", "toml")
    (folder / "pyproject.toml").write_text(project.text)
    shutil.copytree(folder / "traces", folder / "reports")
    shutil.rmtree(folder / "traces" / "train")
    for command, place in commands("docs/check.md"):
        ended = shell(command, folder)
        # Steps may take longer than the baseline's while others use the machine.
        assert ended.code == 0 or "median step time" in ended.out, f"{place}: {ended.err}"
    assert "<table" in (folder / "history.html").read_text()


@pytest.mark.slow
def test_the_commands_of_the_page_on_agents_explain_a_finding(tmp_path: Path) -> None:
    b = TraceBuilder(stacks=True)
    for _ in range(4):
        with b.step(), b.frame("train.py", 41, "train_step"):
            b.launch("aten::mm", kernel="gemm", host_ns=10_000, device_ns=MS)
            b.item()
    (tmp_path / "traces" / "train").mkdir(parents=True)
    b.write(tmp_path / "traces" / "train" / "t.pt.trace.json.gz")
    *read, install, serve = [command for command, _ in commands("docs/agents.md")]

    outputs = [shell(command.replace("findings:5", "findings:0"), tmp_path) for command in read]
    assert all(ended.code == 0 for ended in outputs), outputs

    runs, whole, others_shown, finding = (json.loads(ended.out) for ended in outputs)
    assert len(runs["runs"]) == 1
    assert [row["id"] for row in others_shown["rows"]] == [
        finding["id"] for finding in whole["findings"]
    ]
    assert finding["change"] == "SYN001@train.py:41"
    assert install == "pip install 'profkit[mcp]'"
    assert serve.startswith("profkit mcp --root ")  # served in tests/integrations/mcp


@pytest.mark.slow
def test_the_commands_of_the_page_on_running_jobs_answer(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        PRELUDE + "import itertools, time\n"
        "optimizer = torch.optim.SGD(network.parameters(), 0.1)\n"
        "for _ in itertools.count():\n"
        "    train_step(batch)\n    optimizer.step()\n    time.sleep(0.02)\n"
    )
    listen, *asked = [command for command, _ in commands("docs/jobs.md")]
    run = str(tmp_path / "traces" / "train")

    with subprocess.Popen(
        ["/usr/bin/env", *listen.split()],
        cwd=tmp_path,
        env=environment(),
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    ) as process:
        try:
            assert process.stderr is not None
            assert next(iter(process.stderr)).endswith(f"profkit top {run}\n")
            for command in asked:
                once = " --once" if command.startswith("profkit top") else ""
                ended = shell(command.replace("/home/me/traces/train", run) + once, tmp_path)
                assert ended.code == 0, f"{command}: {ended.err}"
                assert "train.py" in ended.out or once, ended.out
        finally:
            process.kill()
