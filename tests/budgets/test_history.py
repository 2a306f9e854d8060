"""Figures over commits: what is one commit, what is comparable, and when findings were there."""

import csv
import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import profkit
from profkit.cli.main import main
from profkit.errors import NotATraceError
from profkit.model.finding import Cost, Finding, Unchecked
from profkit.model.location import Location
from profkit.model.report import Report
from profkit.model.step_summary import StepSummary
from profkit.model.trace import Trace
from profkit.testing import TraceBuilder
from tests.renderers import reports

MS = 1_000_000
DAY_NS = 86_400 * 10**9
START_NS = 1_700_000_000 * 10**9


def sync(line: int, file: str = "/work/train.py") -> Finding:
    where = Location(file, line, "train_step")
    return Finding("SYN001", "item-sync", "warning", "high", "t", "m", "f", (where,), cost=Cost(MS))


def build_report(
    commit: str | None,
    day: int,
    *times_ms: float,
    findings: tuple[Finding, ...] = (),
    device: str = "NVIDIA H100",
    torch: str = "2.13.0",
    path: str = "",
) -> Report:
    """Build a report on a recording at a commit, on some day."""
    steps = tuple(
        StepSummary(f"step {n}", 0, round(ms * MS), 5 * MS, 5 * MS, 0, 0, n_kernels=40, n_syncs=1)
        for n, ms in enumerate(times_ms)
    )
    report = reports.build_gpu_report()
    source = replace(
        report.source,
        devices=(device,),
        torch=torch,
        revision=commit and commit * 40,
        recorded_unix_ns=START_NS + day * DAY_NS,
        path=path or f"{day}.json",
    )
    summary = replace(report.summary, steps=steps)

    return replace(report, source=source, summary=summary, findings=findings, unchecked=())


def test_commits_are_in_order_of_time_and_runs_of_one_are_repeats() -> None:
    history = profkit.history(
        [
            build_report("c", 3, 12.0, 12.0, 12.0),
            *(build_report("a", 1, ms, ms, ms, path=f"{ms}.json") for ms in (10.0, 10.4, 10.1)),
            build_report("b", 2, 11.0, 11.0, 11.0),
        ]
    )
    assert [entry.revision for entry in history.entries] == ["a" * 40, "b" * 40, "c" * 40]
    first = history.entries[0].figures["step_ms"]
    assert first.value == round(10.1 * MS)  # the median of three runs
    assert first.error is not None
    assert len(history.entries[0].paths) == 3
    (line,) = [line for line in history.lines if line.name == "step_ms"]
    assert (line.entries, line.unit) == ((0, 1, 2), "ns")


def test_another_device_is_another_line_and_another_torch_is_another_entry() -> None:
    history = profkit.history(
        [
            build_report("a", 1, 10.0),
            build_report("a", 1, 4.0, device="NVIDIA B200"),
            build_report("b", 2, 9.0),
            build_report("b", 2, 8.0, torch="2.14.0"),
        ]
    )

    lines = {line.devices: line.entries for line in history.lines if line.name == "step_ms"}
    assert lines == {("NVIDIA H100",): (0, 2, 3), ("NVIDIA B200",): (1,)}

    text = profkit.render(history, "text").decode()
    assert "Commits: NVIDIA H100" in text
    assert "Commits: NVIDIA B200" in text
    assert (
        "Median step time is 8.00 ms at bbbbbbbbbb, 20% less than at aaaaaaaaaa, 3 commits" in text
    )
    # A chart of one point is none.
    assert profkit.render(history, "html").count(b"<polyline") == len(
        [line for line in history.lines if line.devices == ("NVIDIA H100",)]
    )


def test_a_step_time_that_differs_by_less_than_it_varies_has_not_changed() -> None:
    noisy = [build_report("a", 1, ms) for ms in (10.0, 14.0, 12.0)]
    later = [build_report("b", 2, ms) for ms in (8.0, 12.0, 10.0)]
    text = " ".join(profkit.render(profkit.history([*noisy, *later]), "text").decode().split())
    assert "Median step time is 10.0 ms at bbbbbbbbbb, within the noise of 12.0 ms at a" in text
    assert "less than" not in text


def test_recordings_without_a_commit_are_entries_of_their_own() -> None:
    history = profkit.history([build_report(None, 1, 10.0), build_report(None, 1, 10.0)])
    assert [entry.revision for entry in history.entries] == [None, None]
    text = profkit.render(history, "md").decode()
    assert "11-15 22:13:20" in text
    assert "commit" not in text


def test_a_finding_has_its_first_and_last_commit_and_the_one_that_fixed_it() -> None:
    skipped = build_report("d", 4, 9.0)
    skipped = replace(skipped, unchecked=(Unchecked("SYN001", "why", "how"),))
    history = profkit.history(
        [
            build_report("a", 1, 9.0),
            build_report("b", 2, 9.0, findings=(sync(10), sync(7, "/work/other.py"))),
            build_report(
                "c", 3, 9.0, findings=(sync(14, "/elsewhere/train.py"),)
            ),  # its line has moved
            skipped,
            build_report("e", 5, 9.0),
        ]
    )
    finding_at = {
        finding.location.place: finding for finding in history.findings if finding.location
    }

    moved = finding_at["train.py:14"]
    assert (moved.first, moved.last, moved.n, moved.fixed) == (1, 2, 2, 4)

    other_finding = finding_at["other.py:7"]
    assert (other_finding.first, other_finding.last, other_finding.n, other_finding.fixed) == (
        1,
        1,
        1,
        2,
    )
    assert len(history.findings) == 2


def test_findings_of_one_rule_in_one_function_are_all_kept() -> None:
    note = replace(sync(20), severity="note")
    history = profkit.history(
        [
            build_report("a", 1, 9.0, findings=(sync(10), note)),
            build_report("b", 2, 9.0, findings=(note, sync(12))),
            build_report("c", 3, 9.0, findings=(sync(12),)),
        ]
    )
    changes = [(finding.severity, finding.n, finding.fixed) for finding in history.findings]
    assert changes == [("warning", 3, None), ("note", 2, 2)]


def test_a_finding_that_is_there_is_before_those_that_are_fixed() -> None:
    history = profkit.history(
        [
            build_report("a", 1, 9.0, findings=(sync(7, "/work/other.py"),)),
            build_report("b", 2, 9.0, findings=(sync(10),)),
        ]
    )
    assert [finding.fixed for finding in history.findings] == [None, 1]
    assert "1 finding not fixed." in profkit.render(history, "text").decode()


def test_programs_are_told_apart_by_the_folders_of_their_recordings() -> None:
    ns = START_NS
    paths = [f"traces/{name}/host_7.{ns}.pt.trace.json.gz" for name in ("train", "infer")]
    history = profkit.history([build_report("a", 1, 9.0, path=path) for path in paths])
    assert [entry.program for entry in history.entries] == ["train", "infer"]
    assert len({line.program for line in history.lines}) == 2


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Saved reports, and a file that is none."""
    runs = [build_report("a", 1, 10.0), build_report("b", 2, 12.0, findings=(sync(10),))]
    for number, report in enumerate(runs):
        (tmp_path / f"{number}.json").write_bytes(profkit.render(report, "json"))
    (tmp_path / "baseline.json").write_text("{}")
    return tmp_path


def test_the_command_reads_a_folder_of_reports(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["history", str(folder), "--format", "json"]) == 0
    said = capsys.readouterr()
    entries = json.loads(said.out)["entries"]
    assert [entry["figures"]["step_ms"]["value"] for entry in entries] == [10 * MS, 12 * MS]
    assert "skipped: " in said.err
    assert main(["history", str(folder), "--format", "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [(row["step_ns"], row["n_warning"]) for row in rows] == [
        (str(10 * MS), "0"),
        (str(12 * MS), "1"),
    ]
    assert profkit.history(folder).entries[1].n_findings == {"warning": 1}


def test_scalars_have_the_place_in_the_history_as_their_step(folder: Path, tmp_path: Path) -> None:
    logdir = tmp_path / "logdir"
    for _ in range(2):  # writing again replaces the file
        assert main(["history", str(folder), "--tensorboard", str(logdir)]) == 0
    (file,) = [path for path in logdir.rglob("*") if path.is_file()]
    assert file.relative_to(logdir).parts[:2] == ("NVIDIA_H100", "profkit_history")
    read = EventAccumulator(str(file.parent), size_guidance={"tensors": 0})
    read.Reload()
    events = read.Tensors("profkit_history/step_ms")
    assert [(event.step, event.wall_time) for event in events] == [
        (0, (START_NS + DAY_NS) / 1e9),
        (1, (START_NS + 2 * DAY_NS) / 1e9),
    ]
    assert [event.tensor_proto.float_val[0] for event in events] == [10.0, 12.0]


def test_a_folder_without_reports_and_recordings_is_refused(tmp_path: Path) -> None:
    (tmp_path / "baseline.json").write_text("{}")
    with pytest.raises(NotATraceError):
        profkit.history(tmp_path)


def test_a_recording_has_its_time(tmp_path: Path) -> None:
    b = TraceBuilder(device_names=())
    with b.step():
        b.compute("aten::mm", 5_000)
    path = b.write(tmp_path / "t.json")
    base_ns = json.loads(path.read_text())["baseTimeNanoseconds"]
    trace = profkit.load(path)
    assert isinstance(trace, Trace)
    first = trace.events.ts_ns[0]
    recorded_ns = profkit.analyze(path).source.recorded_unix_ns
    assert recorded_ns is not None
    assert 0 <= recorded_ns + int(first) - base_ns < 10**9
    live = reports.watched_report()
    assert live.source.recorded_unix_ns is None or live.source.recorded_unix_ns > START_NS


def test_numbers_of_findings_and_large_changes_read_as_words() -> None:
    notes = tuple(replace(sync(line), severity="note") for line in (10, 20))
    history = profkit.history(
        [
            build_report("a", 1, 1.0, 1.0, 1.0),
            build_report("b", 2, 40.0, 40.0, 40.0, findings=notes),
        ]
    )
    text = profkit.render(history, "text").decode()
    assert "Median step time is 40.0 ms at bbbbbbbbbb, 40 times that at aaaaaaaaaa" in text
    assert "2 notes" in text
