"""``profkit run`` ends as python itself does: exit code, messages and output."""

import json
import os
import shlex
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import profkit
from profkit.testing import SnapshotBuilder
from tests.processes import start

SCRIPTS = {
    "plain": "print('plain')",
    "exit-0": "import sys; sys.exit(0)",
    "exit-7": "import sys; sys.exit(7)",
    "exit-300": "import sys; sys.exit(300)",
    "exit-minus-1": "import sys; sys.exit(-1)",
    "exit-none": "import sys; sys.exit()",
    "exit-text": "import sys; sys.exit('no more')",
    "exit-true": "import sys; sys.exit(True)",
    "exit-object": "import sys; sys.exit([1, 2])",
    "os-exit": "import os; os._exit(9)",
    "raises": "raise ValueError('wrong')",
    "import-error": "import no_such_module_of_anyone",
    "syntax-error": "x = = 1",
    "interrupt": "raise KeyboardInterrupt",
    "exit-in-a-thread": """
import sys, threading
thread = threading.Thread(target=sys.exit, args=(5,))
thread.start()
thread.join()
print("main goes on")
""",
    "error-in-a-thread": """
import threading
thread = threading.Thread(target=lambda: 1 / 0)
thread.start()
thread.join()
""",
    "atexit": "import atexit, sys; atexit.register(print, 'last'); sys.exit(3)",
    "own-excepthook": """
import sys
sys.excepthook = lambda kind, error, traceback: print("hooked", error)
raise ValueError("wrong")
""",
    "failing-excepthook": """
import sys
def fail(*_):
    raise KeyError("in the hook")
sys.excepthook = fail
raise ValueError("wrong")
""",
    "exiting-excepthook": """
import sys
sys.excepthook = lambda *_: sys.exit(8)
raise ValueError("wrong")
""",
    "interrupt-with-a-thread": """
import atexit, threading, time
class Thing:
    def __del__(self):
        print("deleted", flush=True)
def work():
    time.sleep(0.5)
    print("thread", flush=True)
thing = Thing()
atexit.register(print, "last", flush=True)
threading.Thread(target=work).start()
raise KeyboardInterrupt
""",
    "main-module": """
__builtins__.added = lambda: 3
print(added(), __spec__, type(__loader__).__name__, __loader__.name)
""",
    "terminated": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "killed": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "aborted": "import os; os.abort()",
    "segmentation-fault": "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)",
}
TORCH_SCRIPTS = {
    f"torch-{name}": "import torch; torch.ones(2).sum()\n" + SCRIPTS[name]
    for name in ("exit-7", "exit-text", "raises", "interrupt", "terminated", "os-exit", "killed")
}
COMMANDS = {
    "no-script": ("missing.py",),
    "no-script-in-a-folder": ("no/such/folder/x.py",),
    "no-module": ("-m", "missing"),
    "no-module-in-a-missing-package": ("-m", "missing.module"),
    "no-module-in-a-package": ("-m", "package.missing"),
    "relative-module": ("-m", ".package"),
    "package": ("-m", "package", "an", "argument"),
    "package-without-main": ("-m", "bare"),
    "package-that-cannot-be-imported": ("-m", "broken.module"),
    "module-of-the-library": ("-m", "json.tool", "--help"),
    "folder": ("application",),
    "folder-without-main": ("bare",),
    "archive": ("application.pyz",),
    "archive-without-main": ("empty.zip",),
    "not-an-archive": ("broken.zip",),
    "code": ("-c", "import sys; print(sys.argv, repr(sys.path[0]), __name__); sys.exit(4)", "-x"),
    "code-that-raises": ("-c", "1 / 0"),
    "code-with-a-syntax-error": ("-c", "x = = 1"),
}
MAIN = """
import pickle, sys, threading
class Thing:
    pass
def work():
    threading.main_thread().join()
    print(pickle.loads(pickle.dumps(Thing)) is Thing)
threading.Thread(target=work).start()
print(__name__, len(sys.argv), __package__, __spec__.name, type(__loader__), type(__builtins__))
print(sys.argv[0], sys.path[0], __file__)
sys.exit(6)
"""
FAST = (
    "exit-7",
    "exit-text",
    "interrupt",
    "terminated",
    "no-script",
    "no-module",
    "code",
    "failing-excepthook",
    "exiting-excepthook",
    "interrupt-with-a-thread",
    "main-module",
    "package",
    "archive",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the files of all cases."""
    folder = tmp_path_factory.mktemp("programs")
    for name, source in (SCRIPTS | TORCH_SCRIPTS).items():
        (folder / f"{name}.py").write_text(source)
    for name, init in (("package", ""), ("bare", ""), ("broken", "import no_such_module")):
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text(init)
    (folder / "application").mkdir()
    for name in ("package", "application"):
        (folder / name / "__main__.py").write_text(MAIN)
    for name, member in (("application.pyz", "__main__.py"), ("empty.zip", "other.py")):
        with zipfile.ZipFile(folder / name, "w") as archive:
            archive.writestr(member, MAIN)
    (folder / "broken.zip").write_bytes(b"PK\x03\x04broken")
    return folder


def ended(folder: Path, *command: str) -> tuple[int, str, list[str]]:
    """Return exit code, output, and the lines on stderr without the starting frames."""
    process = start(folder, *command)
    errors = [line for line in process.err.splitlines() if "<frozen runpy>" not in line]
    return process.code, process.out, errors


def assert_ends_as_under_python(folder: Path, name: str) -> None:
    command = COMMANDS.get(name, (f"{name}.py",))
    bare, watched = ended(folder, *command), ended(folder, "-m", "profkit", "run", *command)
    assert watched[:2] == bare[:2], watched[2]
    # profkit's report is on stderr too.
    assert [line for line in watched[2] if line in bare[2]] == bare[2]


@pytest.mark.parametrize("name", FAST)
def test_a_program_ends_as_under_python(folder: Path, name: str) -> None:
    assert_ends_as_under_python(folder, name)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*SCRIPTS, *TORCH_SCRIPTS, *COMMANDS])
def test_every_program_ends_as_under_python(folder: Path, name: str) -> None:
    assert_ends_as_under_python(folder, name)


needs_full_device = pytest.mark.skipif(
    not Path("/dev/full").exists(), reason="this system has no /dev/full"
)


def code_of(folder: Path, shell: str) -> tuple[int, str]:
    """Return exit code and output of a line of shell with ``$python`` and ``$profkit``."""
    python = shlex.quote(sys.executable)
    names = f"python={python}; profkit='{python} -m profkit'"
    env = {**os.environ, "PYTHONPATH": str(Path(profkit.__file__).parents[1])}
    env.pop("PYTHONUNBUFFERED", None)
    ended = subprocess.run(
        ["sh", "-c", f"{names}; {shell}"],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    return ended.returncode, ended.stdout + ended.stderr


@needs_full_device
@pytest.mark.parametrize(
    "shell", ["exit-7.py 2> /dev/full", "exit-7.py 2>&-", "plain.py > /dev/full"]
)
def test_a_program_ends_as_under_python_where_nothing_can_be_printed(
    folder: Path, shell: str
) -> None:
    bare, watched = code_of(folder, f"$python {shell}"), code_of(folder, f"$profkit run {shell}")
    assert watched[0] == bare[0], watched[1]
    assert "bug" not in watched[1]


@needs_full_device
@pytest.mark.parametrize(
    ("shell", "code"),
    [
        ("rules > /dev/full", 5),
        ("rules >&-", 5),
        ("--help > /dev/full", 5),
        ("analyze missing.json 2> /dev/full", 3),
    ],
)
def test_a_command_says_that_its_output_cannot_be_written(
    folder: Path, shell: str, code: int
) -> None:
    exit_code, said = code_of(folder, f"$profkit {shell}")
    assert exit_code == code, said
    assert "bug" not in said
    assert "Exception ignored" not in said


def test_a_program_runs_in_a_folder_that_has_been_removed(folder: Path) -> None:
    script = shlex.quote(str(folder / "exit-7.py"))
    gone = "mkdir gone; cd gone; rmdir ../gone"
    assert code_of(folder, f"{gone}; $python {script}")[0] == 7
    code, said = code_of(folder, f"{gone}; $profkit run --json x.json {script}")
    assert code == 7, said
    assert "bug" not in said


def test_a_program_whose_name_is_not_utf8_ends_as_under_python(folder: Path) -> None:
    """torch's tracer fails at such a name when it stops, and the process dies some time later."""
    steps = (
        "import torch\n"
        "layer = torch.nn.Linear(64, 64)\n"
        "optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)\n"
        "for _ in range(300):\n"
        "    layer(torch.randn(64, 64)).sum().backward()\n"
        "    optimizer.step()\n"
        "print('done')\n"
    )
    Path(os.fsdecode(bytes(folder) + b"/steps\xff.py")).write_text(steps)
    code, said = code_of(folder, "$profkit run --json steps.json steps*.py")
    assert (code, said.count("done")) == (0, 1), said
    assert "is not UTF-8" in said
    assert "lost" not in said
    assert json.loads((folder / "steps.json").read_bytes())["summary"]["steps"]


def test_too_few_files_that_may_be_open_are_no_bug(folder: Path) -> None:
    snapshot = SnapshotBuilder().write(folder / "snapshot.pickle")
    code, said = code_of(folder, f"ulimit -n 8; $profkit analyze {snapshot}")
    assert code == 3, said
    assert "profkit: Too many files are open." in said
