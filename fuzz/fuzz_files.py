"""Read mutants of all kinds of recordings through the Python API and the command line.

Run ``python fuzz/fuzz_files.py FOLDER COUNT [FIRST]``, or ``make fuzz``. A bug is any exception but
a LoadError, exit code 70, more than ten seconds of processor time or sixty by the clock, a report
that reads back from JSON as another one, or a file written anywhere but where it was asked for.
Mutants that show one are written to FOLDER; figures are printed at the end.
"""

import contextlib
import faulthandler
import io
import json
import os
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from mutants import Mutant, mutant  # type: ignore[import-not-found]  # beside this file

from profkit.api import analyze, render
from profkit.cli.main import main as run_command
from profkit.errors import LoadError
from profkit.readers.report import read_report

LIMIT_S: Final = 10
CLOCK_LIMIT_S: Final = 60
_LOADED: Final = 3
_COMMANDS: Final[tuple[tuple[str, ...], ...]] = (
    ("analyze",),
    ("analyze", "--format", "json"),
    ("analyze", "--format", "md"),
    ("export", "--to", "html", "--output", "{out}"),
    ("export", "--to", "chrome", "--output", "{out}"),
    ("what-if", "--graph"),
)


class TooSlow(BaseException):
    """The time limit has passed."""


def _stop(*_: object) -> None:
    raise TooSlow


@contextlib.contextmanager
def time_limit() -> Iterator[None]:
    """Raise :class:`TooSlow` after the limits of processor time and of time by the clock."""
    signal.signal(signal.SIGPROF, _stop)
    signal.signal(signal.SIGALRM, _stop)
    signal.setitimer(signal.ITIMER_PROF, LIMIT_S)
    signal.setitimer(signal.ITIMER_REAL, CLOCK_LIMIT_S)
    faulthandler.dump_traceback_later(2 * CLOCK_LIMIT_S, exit=True)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        faulthandler.cancel_dump_traceback_later()


def _of_api(path: Path, _: Path) -> str:
    try:
        report = read_report(path) or analyze(path, strict=True)
    except LoadError as error:
        assert error.message.rstrip().endswith((".", "?")), f"no sentence: {error.message}"
        return type(error).__name__
    written = render(report, "json", indent=0)
    saved = path.with_name("saved.json")
    saved.write_bytes(written)
    again = read_report(saved)
    assert again is not None, "the report is not recognized"
    assert render(again, "json", indent=0) == written, "the report reads back as another one"
    return "report"


def _of_command(arguments: tuple[str, ...], path: Path, out: Path) -> str:
    arguments = tuple(str(out) if argument == "{out}" else argument for argument in arguments)
    buffer = io.BytesIO()
    silent = io.TextIOWrapper(buffer, "utf-8", errors="backslashreplace", write_through=True)
    with contextlib.redirect_stdout(silent), contextlib.redirect_stderr(silent):
        code = run_command([*arguments[:1], str(path), *arguments[1:]])
    silent.flush()
    said = buffer.getvalue().decode(errors="replace").strip()
    assert code in {0, 1, 2, _LOADED}, f"exit {code}: {said[: said.rfind('hint:')].strip()}"
    return f"exit {code}"


class Writes:
    """Paths that this process writes to, as Python's audit events tell."""

    def __init__(self) -> None:
        self.paths: set[str] = set()
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, mode, flags = arguments
            writes = flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) if mode is None else mode != "r"
            if writes and isinstance(path, str) and not set(str(mode)) <= set("rbt"):
                self.paths.add(path)
        elif event in {"os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.link", "os.symlink"}:
            self.paths.update(
                str(argument) for argument in arguments if isinstance(argument, str | Path)
            )


def check(number: int, folder: Path, writes: Writes) -> dict[str, Any]:
    """Read one mutant in the ways that its number chooses."""
    made = mutant(number)
    path = folder / f"input{made.suffix}"
    path.write_bytes(made.data)
    writes.paths.clear()
    result: dict[str, Any] = {"number": number, "kind": made.kind, "n_bytes": len(made.data)}
    out = folder / "output"
    command = _COMMANDS[number // 4 % len(_COMMANDS)]
    by_command: Callable[[Path, Path], str] = lambda at, to: _of_command(command, at, to)  # noqa: E731
    began = time.perf_counter(), time.process_time()

    try:
        with time_limit():
            result["end"] = (by_command if number % 4 == 0 else _of_api)(path, out)
    except TooSlow:
        result["bug"] = f"too slow\n{traceback.format_exc()}"
    except Exception:  # noqa: BLE001  (what it looks for)
        result["bug"] = traceback.format_exc()

    result["wall_s"] = time.perf_counter() - began[0]
    result["cpu_s"] = time.process_time() - began[1]
    asked = (str(out), str(folder / ".output."), str(folder / "saved.json"), os.devnull)
    elsewhere = {path for path in writes.paths if not path.startswith(asked)}
    if elsewhere and "bug" not in result:
        result["bug"] = f"wrote {sorted(elsewhere)}"
    for product in (path, out, folder / "saved.json"):
        product.unlink(missing_ok=True)
    return result


def _work(numbers: range, folder: Path, results: int) -> None:
    """Check some mutants and write a line of JSON for each."""
    writes = Writes()
    os.environ["PROFKIT_DEBUG"] = "1"  # the traceback is printed, and not written to a file
    with os.fdopen(results, "w") as lines:
        for number in numbers:
            lines.write(json.dumps({"number": number}) + "\n")
            lines.flush()
            lines.write(json.dumps(check(number, folder, writes)) + "\n")
            lines.flush()


def run(numbers: range, folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the result of each mutant; a process that dies is a bug, and another one goes on."""
    while numbers:
        read, write = os.pipe()
        process = os.fork()

        if process == 0:
            os.close(read)
            os.chdir(folder)
            _work(numbers, folder, write)
            os._exit(0)
        os.close(write)
        last = numbers[0]
        done = True
        with os.fdopen(read) as lines:
            for line in lines:
                result = json.loads(line)
                last, done = result["number"], "kind" in result
                if done:
                    yield result

        os.waitpid(process, 0)
        if not done:
            yield {"number": last, "kind": mutant(last).kind, "bug": "the process died"}
        numbers = range(last + 1, numbers.stop) if last + 1 < numbers.stop else range(0)


def main(folder: str, count: str, first: str = "0") -> int:
    """Check mutants by number.

    Args:
        folder: Receives mutants that show bugs.
        count: How many.
        first: The number of the first.
    """
    place = Path(folder).resolve()
    work = place / f"work-{first}"
    work.mkdir(parents=True, exist_ok=True)
    mutant(0)  # the process that is forked has made the base files
    ends: Counter[str] = Counter()
    bugs: Counter[str] = Counter()
    slowest = {"cpu_s": 0.0, "wall_s": 0.0}

    for result in run(range(int(first), int(first) + int(count)), work):
        if "bug" in result:
            kind = result["bug"].strip().splitlines()[-1][:150]
            bugs[kind] += 1
            if bugs[kind] <= 5:
                made: Mutant = mutant(result["number"])
                (place / f"bug-{result['number']}{made.suffix}").write_bytes(made.data)
                (place / f"bug-{result['number']}.txt").write_text(result["bug"])
                print(result["number"], result["kind"], kind, flush=True)
        else:
            ends[f"{result['kind']}: {result['end']}"] += 1
        for name, seconds in slowest.items():
            if result.get(name, 0) > seconds:
                slowest[name] = result[name]
                print(f"slowest {name} {result[name]:.2f} s: {result['number']}", flush=True)

    for end, n in sorted(ends.items()):
        print(f"{n:7} {end}")
    for end, n in bugs.most_common():
        print(f"{n:7} BUG {end}")
    print(f"slowest: {slowest['cpu_s']:.1f} s of processor time, {slowest['wall_s']:.1f} s")
    return int(bool(bugs))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
