"""Records the programs one after the other, and stores their recordings."""

import hashlib
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

from examples.gpu.recording.kept import digest_of, expect, files_of, keep, report_on
from examples.gpu.recording.rows import (
    CURED,
    EXPECTED,
    OVERHEAD,
    PROGRAMS,
    ROOMS,
    ROOT,
    Rows,
    Run,
    digest,
    options_of,
    today,
)
from examples.gpu.recording.turns import Ended, Turns
from profkit.capture.memory.cuda.history import SUFFIX as SNAPSHOT_SUFFIX
from profkit.model.report import Report
from traces.recordings import fault_line, write

N_BARE = 2
ON_CPU = ("--device", "cpu", "--scale", "0.05")
"""As many steps as on a GPU, since leaks show over steps only, but smaller ones."""
N_ROUNDS = "3"
"""Rounds of the overhead benchmark."""
UNDER_PROFKIT = ("-m", "profkit", "run", "--dir", "out")


class Session:
    """All runs on one machine.

    Args:
        turns: Runs programs.
        device: Where they run.
        machine: The facts about this machine.
        scratch: A folder for temporary files.

    Attributes:
        reports: The reports on the recordings so far, by the name of the run.
    """

    def __init__(
        self, rows: Rows, turns: Turns, device: str, machine: dict[str, Any], scratch: Path
    ) -> None:
        self.reports: dict[str, Report] = {}
        self._rows = rows
        self._turns = turns
        self._device = device
        self._machine = machine
        self._scratch = scratch

    def is_done(self, name: str, cured: bool) -> bool:  # noqa: FBT001  (half of a run's name)
        """Return whether this very run is recorded already, and succeeded.

        Args:
            name: The program.
            cured: Whether the fixed one.
        """
        key = _key(name, cured)
        run = self._rows.runs.get(key)
        if run is None or run.failure or not files_of(self._rows.folder / key):
            return False
        return run.digest == digest(name, self._arguments(name, cured), self._machine)

    def record(self, name: str, cured: bool) -> bool:  # noqa: FBT001  (half of a run's name)
        """Run a program without profkit and under it, and store its recordings.

        Args:
            name: The program.
            cured: Whether the fixed one.

        Returns:
            Whether all runs succeeded.
        """
        key, arguments = _key(name, cured), self._arguments(name, cured)
        with tempfile.TemporaryDirectory(dir=self._scratch) as temporary:
            folder = Path(temporary)
            shutil.copytree(PROGRAMS, folder / "examples" / "gpu", ignore=_COMPILED)
            program = [f"examples/gpu/{name}.py", *arguments]
            bare = self._bare(program, folder)
            watched = bare[-1]
            if not watched.is_hung:
                is_of_memory = EXPECTED[name]["kind"] == "memory"
                snapshot = folder / f"end{SNAPSHOT_SUFFIX}" if is_of_memory else None
                command = [*UNDER_PROFKIT, *options_of(name), *program]
                log = self._rows.folder / "logs" / f"{key}.txt"
                watched = self._turns.run(command, folder, snapshot, log)
            failure = next((run.failure for run in (*bare, watched) if run.failure), "")
            try:
                too_large = self._keep(key, name, cured, folder)
            except Exception as error:  # noqa: BLE001  (any error fails this run only)
                too_large, failure = [], failure or f"{type(error).__name__}: {error}"

        bare_ms = [run.step_ms for run in bare if run.step_ms is not None]
        run = Run(
            digest(name, arguments, self._machine),
            today(),
            self._machine,
            arguments,
            bare_ms,
            None if watched is bare[-1] else watched.step_ms,
            failure,
            too_large,
        )
        self._rows.put(key, run)
        _print(key, run)
        return not failure and not too_large

    def record_overhead(self) -> bool:
        """Measure the recording overhead, unless that is done; returns whether it succeeded."""
        rooms = [ROOT / "profkit" / room for room in ROOMS]
        what = digest_of(OVERHEAD, *rooms, json.dumps([self._device, self._machine]))
        if self._rows.overhead.get("digest") == what:
            return True

        with tempfile.TemporaryDirectory(dir=self._scratch) as temporary:
            folder = Path(temporary)
            shutil.copytree(PROGRAMS, folder / "examples" / "gpu", ignore=_COMPILED)
            figures = folder / "figures.json"
            options = ["--device", self._device, "--rounds", N_ROUNDS, "--json", str(figures)]
            ended = self._turns.run([str(OVERHEAD), *options], folder)
            if ended.failure:
                print(f"{OVERHEAD.stem}: {ended.failure}", flush=True)
                return False
            facts = {"digest": what, "date": today(), "machine": self._machine}
            self._rows.put_overhead({**facts, **json.loads(figures.read_text())})

        return True

    def _arguments(self, name: str, cured: bool) -> list[str]:  # noqa: FBT001
        on_cpu = ON_CPU if self._device == "cpu" else ()
        return [*EXPECTED[name]["arguments"], *on_cpu, *(["--cured"] if cured else [])]

    def _bare(self, program: list[str], folder: Path) -> list[Ended]:
        """Runs without profkit; one that fails is the last."""
        runs: list[Ended] = []
        while len(runs) < N_BARE and not (runs and runs[-1].failure):
            ended = self._turns.run(program, folder)
            if ended.step_ms is None and not ended.failure:
                ended = Ended(None, "it printed no step time")
            runs.append(ended)
        return runs

    def _keep(self, key: str, name: str, cured: bool, folder: Path) -> list[str]:  # noqa: FBT001
        """Store the recordings of a run and return the names of files that are too large.

        Raises:
            FileNotFoundError: If there is none.
        """
        target = self._rows.folder / key
        too_large = keep(folder, target)
        write(target / "provenance.json", self._describe_provenance(name, cured))
        report = report_on(target)
        if report is None:
            raise FileNotFoundError("profkit run wrote no recording.")
        expect(target, report)
        self.reports[key] = report
        return [path.name for path in too_large]

    def _describe_provenance(self, name: str, cured: bool) -> dict[str, Any]:  # noqa: FBT001
        """Describe the provenance of a recording."""
        text = (PROGRAMS / f"{name}.py").read_text(encoding="utf-8")
        line, facts = fault_line(text), EXPECTED[name]
        arguments = self._arguments(name, cured)
        planted = text.splitlines()[line - 1].partition("# fault:")[2].strip() if line else None

        return {
            "program": f"examples/gpu/{name}.py",
            "program_sha256": hashlib.sha256(text.encode()).hexdigest(),
            "command": " ".join(
                ["profkit run", *options_of(name), f"examples/gpu/{name}.py", *arguments]
            ),
            "date": today(),
            **self._machine,
            "planted": None if cured else planted,
            "rule": None if cured else facts["rule"],
            "line": None if cured else line,
            "same_rules": facts["same_rules"],
            "digest": digest(name, arguments, self._machine),
        }


_COMPILED = shutil.ignore_patterns("__pycache__")


def _key(name: str, cured: bool) -> str:  # noqa: FBT001
    return name + CURED if cured else name


def _print(key: str, run: Run) -> None:
    bare = "-" if run.best_ms is None else f"{run.best_ms:.3f}"
    watched = "-" if run.watched_ms is None else f"{run.watched_ms:.3f}"
    large = f"; too large: {', '.join(run.too_large)}" if run.too_large else ""
    failed = f"; {run.failure}" if run.failure else ""
    print(
        f"{key}: {bare} ms per step unprofiled, {watched} ms monitored{large}{failed}", flush=True
    )
