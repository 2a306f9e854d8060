"""The wheel as a stranger has it: built twice, read, installed alone, and used.

What is used is what the README promises: a demo, a watched program, the page, the tab of
TensorBoard, the pytest plugin and a notebook, in an empty home, a folder of its own, and an
environment that has profkit as the wheel. Packages are those of requirements/dev.txt, and others
that the trial needs.

Run: ``make wheel-trial``, or ``python tests/wheel_trial.py [--folder build/wheel-trial]``
"""

import argparse
import contextlib
import email.parser
import hashlib
import json
import re
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.request import urlopen

ROOT: Final = Path(__file__).parents[1]
PINS: Final = ROOT / "requirements" / "dev.txt"
MAX_WHEEL_BYTES: Final = 2_000_000
KINDS_OF_FILES: Final = {"css", "html", "j2", "js", "json", "py", "typed"}
"""What modules, styles, scripts, templates, the schema and the mark of types end with."""

COMMAND_LIMIT_S: Final = 300
READERS: Final = ("twine==6.2.0",)
USERS: Final = ("pytest", "ipykernel", "nbclient", "nbformat")
"""What a user of the pytest plugin and of notebooks has beside."""

PROGRAM: Final = """\
import torch

net = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8))
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
losses = []
for _ in range(40):
    loss = net(torch.randn(64, 256)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss)
print("trained", len(losses))
raise SystemExit(3)
"""
TESTS: Final = """\
import pytest
import torch


@pytest.mark.profkit(syncs=0, findings="warning")
def test_within_its_limits():
    torch.randn(64, 64) @ torch.randn(64, 64)


@pytest.mark.profkit(syncs=0)
def test_beyond_its_limits():
    for _ in range(5):
        torch.randn(8).sum().item()
"""
CELLS: Final = (
    "%load_ext profkit",
    "import torch\nnet = torch.nn.Linear(64, 64)",
    "%%profkit --name cell\nfor _ in range(3):\n    net(torch.randn(8, 64)).sum().backward()",
)
NOTEBOOK: Final = """\
import sys

import nbclient
import nbformat

cells = [nbformat.v4.new_code_cell(text) for text in sys.argv[1:]]
notebook = nbformat.v4.new_notebook(cells=cells)
nbclient.NotebookClient(notebook, timeout=240, kernel_name="python3").execute()
for output in notebook.cells[-1].outputs:
    print(output.get("data", {}).get("text/html", ""))
"""

REQUESTS: Final = """\
{"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": "2025-06-18", \
"capabilities": {}, "clientInfo": {"name": "trial", "version": "1"}}}
{"jsonrpc": "2.0", "method": "notifications/initialized"}
{"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
"""
"""What a client of `profkit mcp` asks first."""


class TrialError(Exception):
    """The wheel is not what it should be."""


class Built(NamedTuple):
    """The two archives of one build."""

    wheel: Path
    source: Path

    def __str__(self) -> str:
        """Return the name and the start of the hash of each archive."""
        return ", ".join(f"{path.name} {_hash(path)[:12]}" for path in self)


class User:
    """A stranger with an environment, an empty home and a working folder.

    Args:
        folder: Where the three are created.
    """

    def __init__(self, folder: Path) -> None:
        self.bin = folder / "installed" / "bin"
        self.work = folder / "work"
        self.variables = {
            "HOME": str(folder / "home"),
            "LANG": "C.UTF-8",
            "PATH": f"{self.bin}:/usr/local/bin:/usr/bin:/bin",
        }

    def run(self, *command: str, code: int = 0, stdin: str = "") -> str:
        """Run a command of the environment, and return what it writes to both streams.

        Args:
            command: The name of the program, and its arguments.
            code: The exit code that it must have.
            stdin: What it can read.

        Raises:
            TrialError: It ended with another exit code, or raised an error of Python.
        """
        finished = subprocess.run(
            [str(self.bin / command[0]), *command[1:]],
            cwd=self.work,
            env=self.variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            input=stdin,
            timeout=COMMAND_LIMIT_S,
            text=True,
            check=False,
        )
        if finished.returncode != code or "Traceback (most recent call last)" in finished.stdout:
            raise TrialError(
                f"{' '.join(command)} ended with {finished.returncode} instead of {code}:\n"
                f"{finished.stdout}"
            )
        return finished.stdout


def main() -> None:
    """Build, read, install and use the wheel; exit with 1 at the first step that fails."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "wheel-trial")
    folder = parser.parse_args().folder.absolute()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)

    user = User(folder)
    built = _do("build twice", build_twice, folder)
    steps: tuple[tuple[str, Callable[..., str], Sequence[object]], ...] = (
        ("contents", check_contents, (built.wheel,)),
        ("metadata", check_metadata, (built, folder / "readers")),
        ("install", install, (built.wheel, user)),
        ("commands", use_commands, (user,)),
        ("tensorboard", use_tensorboard, (user,)),
        ("pytest", use_pytest, (user,)),
        ("notebook", use_notebook, (user,)),
    )
    for name, step, arguments in steps:
        _do(name, step, *arguments)


def _do(name: str, step: Callable[..., Any], *arguments: object) -> Any:  # noqa: ANN401  (the step says)
    start = time.monotonic()
    try:
        result = step(*arguments)
    except TrialError as error:
        sys.exit(f"{name} FAILED: {error}")
    print(f"{name}: {result} ({time.monotonic() - start:.0f} s)", flush=True)
    return result


def build_twice(folder: Path) -> Built:
    """Build in the checkout and in a copy of it with other times, and compare the bytes.

    Raises:
        TrialError: The archives of the two builds differ.
    """
    copy = folder / "copy"
    # What hatchling takes too: files that are not ignored, whether committed yet or not.
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.check_output(command, cwd=ROOT, text=True)
    for name in filter(None, listed.split("\0")):
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, copy / name)

    first, second = (_build(root, folder / f"from-{root.name}") for root in (ROOT, copy))
    for one, other in zip(first, second, strict=True):
        if _hash(one) != _hash(other):
            raise TrialError(f"{one} and {other} are not the same bytes")
    return first


def _build(root: Path, target: Path) -> Built:
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(target)]
    subprocess.run(command, cwd=root, check=True, capture_output=True)
    (wheel,), (source,) = target.glob("*.whl"), target.glob("*.tar.gz")
    return Built(wheel, source)


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def check_contents(wheel: Path) -> str:
    """Check that the wheel has the package whole, nothing else, and a bounded size.

    Raises:
        TrialError: It lacks a kind of file, has another one, or is too large.
    """
    names = zipfile.ZipFile(wheel).namelist()
    shipped = [name for name in names if ".dist-info/" not in name]
    kinds = {name.rpartition(".")[2] for name in shipped}
    if kinds != KINDS_OF_FILES:
        raise TrialError(f"files end with {sorted(kinds)} instead of {sorted(KINDS_OF_FILES)}")
    if strange := [name for name in shipped if not name.startswith("profkit/") or "test_" in name]:
        raise TrialError(f"it contains {strange}")

    size = wheel.stat().st_size
    if size > MAX_WHEEL_BYTES:
        raise TrialError(f"it has {size} bytes, over {MAX_WHEEL_BYTES}")
    return f"{len(shipped)} files, {size / 1e6:.2f} MB"


def check_metadata(built: Built, environment: Path) -> str:
    """Check that an index would take the metadata, and that they lead nowhere that is not there.

    Raises:
        TrialError: twine objects, or a link leads to a file or an address.
    """
    python = _create_environment(environment, READERS)
    checked = subprocess.run(
        [str(python), "-m", "twine", "check", "--strict", *map(str, built)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if checked.returncode:
        raise TrialError(checked.stdout)

    archive = zipfile.ZipFile(built.wheel)
    (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
    metadata = email.parser.Parser().parsestr(archive.read(name).decode())
    links = [*(metadata.get_all("Project-URL") or ()), metadata["Home-page"]]
    links += re.findall(r"\]\(([^)]*)\)", str(metadata.get_payload()))
    if any(links):
        raise TrialError(f"the metadata link to {links}")
    return "twine has no objection, no link"


def install(wheel: Path, user: User) -> str:
    """Install the wheel with all extras into a new environment.

    Raises:
        TrialError: Its packages do not fit together, or profkit is not the wheel's.
    """
    _create_environment(user.bin.parent, (f"{wheel}[all]", *USERS), constraint=PINS)
    user.work.mkdir()
    Path(user.variables["HOME"]).mkdir()
    user.run("python", "-m", "pip", "check")

    place = user.run("python", "-c", "import profkit; print(profkit.__file__)")
    if not place.startswith(str(user.bin.parent)):
        raise TrialError(f"profkit is imported from {place}")
    return user.run("profkit", "--version").strip()


def _create_environment(
    folder: Path, packages: Sequence[str], constraint: Path | None = None
) -> Path:
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    python = folder / "bin" / "python"
    options = ["--constraint", str(constraint)] if constraint else []
    command = [str(python), "-m", "pip", "install", "--quiet", *options, *packages]
    subprocess.run(command, check=True)
    return python


def use_commands(user: User) -> str:
    """Record the demo and a program, and look at the recordings with each command.

    Raises:
        TrialError: A command fails, or its output lacks what it is for.
    """
    expect(user.run("profkit", "demo", "--dir", "demo"), "Fix:")

    (user.work / "train.py").write_text(PROGRAM, encoding="utf-8")
    watched = user.run("profkit", "run", "train.py", code=3)
    expect(watched, "trained 40", "Step time", "retained-graph", "train.py:7")

    expect(user.run("profkit", "list"), "train")
    expect(user.run("profkit", "explain", "1"), "train.py")
    user.run("profkit", "analyze", "--format", "json", "-o", "report.json")
    report = json.loads((user.work / "report.json").read_text(encoding="utf-8"))
    user.run("profkit", "view", "--no-open", "-o", "page.html")
    expect((user.work / "page.html").read_text(encoding="utf-8"), "</html>", "train.py", "<style")
    user.run("profkit", "export", "--to", "perfetto", "-o", "perfetto.json.gz")
    expect(user.run("profkit", "mcp", stdin=REQUESTS), '"findings"')
    return f"{len(report['findings'])} findings in the program"


def use_tensorboard(user: User) -> str:
    """Serve the recordings, and ask for the tab's code, its list and the report of a recording.

    Raises:
        TrialError: The tab is off, lists no recording, or does not report on it.
    """
    with _serve(user) as address:
        plugins = json.loads(_fetch(f"{address}data/plugins_listing"))
        if not plugins["profkit"]["enabled"]:
            raise TrialError(f"the tab is off: {plugins['profkit']}")

        tab = f"{address}data/plugin/profkit"
        expect(_fetch(f"{tab}/index.js"), "export")
        recording = _wait_for(
            lambda: next(iter(json.loads(_fetch(f"{tab}/runs"))["recordings"]), None)
        )
        report = _wait_for(lambda: _read_report(f"{tab}/report?id={recording['id']}"))
        expect(report, "retained-graph")
    return f"the tab reports on {recording['name']}"


def _read_report(address: str) -> str:
    answer = _fetch(address)
    is_pending = json.loads(answer)["stage"] in {"queued", "analyzing", "waiting"}
    return "" if is_pending else answer


def _wait_for(ask: Callable[[], Any]) -> Any:  # noqa: ANN401  (what is asked for)
    deadline = time.monotonic() + COMMAND_LIMIT_S
    while not (answer := ask()):
        if time.monotonic() > deadline:
            raise TrialError(f"there is no answer after {COMMAND_LIMIT_S} s")
        time.sleep(0.2)
    return answer


@contextlib.contextmanager
def _serve(user: User) -> Iterator[str]:
    command = [str(user.bin / "tensorboard"), "--logdir", "traces", "--port", "0"]
    log = user.work / "tensorboard.log"
    with log.open("w") as sink:
        server = subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--load_fast", "false"],
            cwd=user.work,
            env=user.variables,
            stdout=sink,
            stderr=sink,
        )
    try:
        yield _wait_for(lambda: re.search(r"at (http://\S+/)", log.read_text()))[1]
    finally:
        server.terminate()
        server.wait(60)


def _fetch(address: str) -> str:
    with urlopen(address, timeout=60) as answer:  # noqa: S310  (our own server)
        return bytes(answer.read()).decode()


def use_pytest(user: User) -> str:
    """Run a test within its limits and one that exceeds them.

    Raises:
        TrialError: Another one than the second fails, or it does not name its line.
    """
    (user.work / "test_limits.py").write_text(TESTS, encoding="utf-8")
    shown = user.run("pytest", "-p", "no:cacheprovider", "test_limits.py", code=1)
    expect(shown, "1 failed, 1 passed", "test_beyond_its_limits", "test_limits.py:13")
    return "one test passes, one exceeds its limit"


def use_notebook(user: User) -> str:
    """Run cells in a kernel, the last one with the magic, and look for the report below it.

    Raises:
        TrialError: A cell fails, or no report follows.
    """
    shown = user.run("python", "-c", NOTEBOOK, *CELLS)
    expect(shown, "<style", "profkit")
    return f"a report of {len(shown)} characters below the cell"


def expect(text: str, *wanted: str) -> None:
    """Check that an output contains words.

    Raises:
        TrialError: It lacks one of them.
    """
    for words in wanted:
        if words not in text:
            raise TrialError(f"{words!r} is missing in:\n{text[:10_000]}")


if __name__ == "__main__":
    main()
