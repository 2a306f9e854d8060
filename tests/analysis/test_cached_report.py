"""Reports are the same with the cache cold, warm, damaged, full, unwritable and raced."""

import multiprocessing
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from profkit.analysis import study as study_module
from profkit.analysis.cached_report import Results, find_results
from profkit.analysis.options import AnalysisOptions
from profkit.analysis.study import study
from profkit.api import analyze, render
from profkit.cli.main import main
from profkit.engine.registry import rules
from profkit.engine.runner import RuleResults
from profkit.errors import InternalError
from profkit.folders import limit_cache
from profkit.model.change import ProgramChange
from profkit.model.report import Report
from profkit.readers.cache import Cache, Entry
from profkit.readers.open import load
from profkit.readers.progress import Stages
from profkit.readers.stored_value import entry_of
from profkit.testing import SnapshotBuilder, TraceBuilder
from tests.cached import use_cache
from tests.job_traces import write_rank

RECORDED = sorted((Path(__file__).parents[2] / "traces").glob("*/*.pt.trace.json.gz"))
FORMATS = ("json", "text", "html")
RELATIONS = ["critical_path", "graph", "op_work", "source", "syncs", "tree", "work_categories"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return use_cache(tmp_path / "cache", monkeypatch)


@pytest.fixture
def path(tmp_path: Path) -> str:
    b = TraceBuilder(stacks=True)
    for _ in range(4):
        with b.step(), b.frame("train.py", 10, "train_step"):
            b.load(300_000)
            b.launch("aten::mm", kernel="gemm", host_ns=5_000, device_ns=200_000)
            b.item()
    return str(b.write(tmp_path / "a.pt.trace.json"))


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the files of which more than the report was needed."""
    stages: list[str] = []

    def counted(path: str, **options: object) -> object:
        stages.append(path)
        return load(path, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(study_module, "load", counted)
    return stages


def kinds(folder: Path) -> list[str]:
    """Return what is cached: a relation by its name; columns and results have none."""
    return sorted(path.stem.partition("-")[2] for path in folder.iterdir())


def find_products(*paths: str) -> tuple[bytes, ...]:
    result = study(paths)
    return tuple(
        render(result.report, format_name, recording=result.recording) for format_name in FORMATS
    )


def fresh(path: str) -> tuple[bytes, ...]:
    limit_cache(0)
    try:
        return find_products(path)
    finally:
        limit_cache(None)


@pytest.mark.parametrize("recorded", RECORDED[::9], ids=lambda path: path.parent.name)
def test_every_format_is_the_same_from_the_cache(recorded: Path, folder: Path) -> None:
    expected = fresh(str(recorded))
    assert not folder.exists()
    assert find_products(str(recorded)) == expected, "cold"
    assert kinds(folder)[:2] == ["", ""]
    assert find_products(str(recorded)) == expected, "warm"


def test_a_second_report_needs_nothing_of_the_recording(
    path: str, folder: Path, loads: list[str]
) -> None:
    first = study(path)
    second = study(path)
    assert (second.report, loads) == (first.report, [path])
    assert first.report.findings
    assert second.recording.context.has_trace
    assert second.recording.context is second.recording.context
    assert loads == [path, path]
    assert kinds(folder) == ["", "", *RELATIONS]


def test_the_changes_of_findings_match_a_fresh_report(path: str, folder: Path) -> None:
    def changes(report: Report) -> list[object]:
        return [
            change
            and (
                change.calls.tolist(),
                [(rows.tolist(), factor) for rows, factor in change.scaled],
                change.host_time,
                change.captured.tolist(),
            )
            for change in (finding.change for finding in (*report.findings, *report.health))
        ]

    first, second = study(path).report, study(path).report
    assert changes(first) == changes(second)
    assert any(change is not None for change in changes(second))
    assert [finding.spans for finding in first.findings] == [
        finding.spans for finding in second.findings
    ]
    assert folder.exists()


@pytest.mark.parametrize(
    ("options", "n_run", "n_reports"),
    [
        (AnalysisOptions(select=("SYN",)), 0, 1), (AnalysisOptions(ignore=("SYN",)), 0, 1),
        (AnalysisOptions(thresholds={"item-sync": {"min_wait_share": 0.5}}), 1, 1),
        (AnalysisOptions(limit_bytes=1 << 30), len(rules()), 2),
        (AnalysisOptions(tokens_per_step=9), len(rules()), 2),
        (AnalysisOptions(parameters=9), len(rules()), 2),
        (AnalysisOptions(peaks={"cpu": {"float32_tflops": 1.0}}), len(rules()), 2),
    ],
)  # fmt: skip
def test_another_look_runs_only_what_its_options_change(
    options: AnalysisOptions, n_run: int, n_reports: int, path: str, folder: Path, loads: list[str]
) -> None:
    limit_cache(0)
    expected = study(path, options).report
    limit_cache(None)
    study(path)
    stages: list[str] = []
    assert study(path, options, on_stage=lambda name, _: stages.append(name)).report == expected
    assert len([stage for stage in stages if stage.startswith("rule ")]) == n_run
    assert len(loads) == 3
    assert study(path, options).report == expected
    assert len(loads) == 3
    assert kinds(folder) == ["", *[""] * n_reports, *RELATIONS]


@pytest.mark.usefixtures("folder")
def test_the_command_line_python_and_tensorboard_have_the_same_report(
    path: str, loads: list[str]
) -> None:
    assert main(["analyze", path]) == 0
    assert len(loads) == 1
    study([path])
    analyze(path)
    assert len(loads) == 1


def test_a_strict_look_takes_what_is_known(path: str, folder: Path, loads: list[str]) -> None:
    assert study(path, AnalysisOptions(strict=True)).report == study(path).report
    assert (len(loads), folder.exists()) == (1, True)


def test_a_rule_that_crashed_runs_again(
    path: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = study(path).report
    limit = len(list(folder.iterdir()))
    for entry in folder.iterdir():
        entry.unlink()
    with monkeypatch.context() as broken:
        broken.setattr(rules()[0], "detect", lambda *_: 1 // 0)
        crashed = study(path).report
        assert "ZeroDivisionError" in str(crashed.unchecked)
        with pytest.raises(InternalError):
            study(path, AnalysisOptions(strict=True))
    assert study(path).report == expected
    assert len(list(folder.iterdir())) == limit


def test_a_changed_rule_of_another_package_makes_another_report(
    path: str, folder: Path, loads: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    source = tmp_path / "rule.py"
    source.write_text("a = 1")
    monkeypatch.setattr(rules()[0], "__name__", "another.rule")
    monkeypatch.setattr(rules()[0], "__file__", str(source))
    study(path)
    study(path)
    assert len(loads) == 1
    source.write_text("a = 12")
    study(path)
    assert len(loads) == 2
    assert folder.exists()


def test_the_report_on_a_snapshot_is_cached(tmp_path: Path, folder: Path, loads: list[str]) -> None:
    b = SnapshotBuilder()
    with b.frame("train.py", 3, "main"):
        b.alloc(1 << 20)
    path = str(b.write(tmp_path / "a.snapshot.pickle"))
    assert find_products(path) == find_products(path) == fresh(path)
    assert len(list(folder.iterdir())) == 1
    study(path)
    assert len(loads) == 3, "for the page and for the one without a cache"


def test_files_of_one_program_have_a_report_together(
    path: str, tmp_path: Path, folder: Path, loads: list[str]
) -> None:
    snapshot = str(SnapshotBuilder().write(tmp_path / "b.snapshot.pickle"))
    alone, both = study(path).report, study([path, snapshot]).report
    assert alone != both
    assert len(loads) == 3
    assert (study(path).report, study([path, snapshot]).report) == (alone, both)
    assert len(loads) == 3
    Path(snapshot).touch()
    study([path, snapshot])
    assert len(loads) == 5
    assert folder.exists()


def test_damaged_entries_are_replaced(path: str, folder: Path) -> None:
    expected = find_products(path)
    for entry in folder.iterdir():
        content = entry.read_bytes()
        entry.write_bytes(content[: len(content) // 2])
    assert find_products(path) == expected
    assert find_products(path) == expected
    assert kinds(folder) == ["", "", *RELATIONS]


def test_a_report_whose_rows_are_not_of_the_recording_is_not_used(path: str, folder: Path) -> None:
    report = study(path).report
    finding = replace(report.findings[0], change=ProgramChange(calls=np.array([7])))
    results = Results((report.source, report.summary), 8, {"a": RuleResults([finding])}, {"a": 0})
    users = Cache()
    key = users.key([Path(path)])
    assert key is not None
    hostile = entry_of(replace(results, n_rows=7))
    for entry in (hostile, Entry(hostile.data, {}), Entry(hostile.data[:-1], hostile.arrays)):
        users.store(key, lambda entry=entry: entry, Stages())  # type: ignore[misc]
        assert find_results(users, key) is None
        assert users.find(key) is None
    users.store(key, lambda: entry_of(results), Stages())
    kept_results = find_results(users, key)
    assert kept_results is not None

    from_cache = kept_results.report(["a"])
    assert from_cache is not None
    assert (from_cache.findings, from_cache.source) == ((finding,), report.source)
    assert kept_results.report(["a", "b"]) is None
    assert folder.exists()


def test_the_ranks_of_a_job_come_from_the_cache(
    tmp_path: Path, folder: Path, loads: list[str]
) -> None:
    job = tmp_path / "job"
    job.mkdir()
    for rank in range(3):
        write_rank(rank, job)
    limit_cache(0)
    expected = render(analyze(job), "json")
    limit_cache(None)
    assert not folder.exists()
    assert [render(analyze(job), "json") for _ in range(3)] == [expected] * 3
    assert kinds(folder).count("") == 6
    assert len(loads) == 12, "joining ranks takes their columns"


def raced(path: str) -> bytes:
    return render(analyze(path), "json")


@pytest.mark.skipif(sys.platform == "win32", reason="processes are not forked here")
def test_eight_processes_at_once_make_the_same_report(path: str, folder: Path) -> None:
    expected = fresh(path)[0]
    assert not folder.exists()
    with multiprocessing.get_context("fork").Pool(8) as pool:
        assert pool.map(raced, [path] * 16, chunksize=1) == [expected] * 16
    assert {path.suffix for path in folder.iterdir()} == {".entry"}


def test_the_command_line_turns_it_off(
    path: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["analyze", "--no-cache", "--format", "json", path]) == 0
    expected = capsys.readouterr().out
    assert not folder.exists()
    for _ in range(2):
        assert main(["analyze", "--format", "json", path]) == 0
        assert capsys.readouterr().out == expected
    assert folder.exists()


def test_timings_say_why_nothing_is_cached(
    path: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder.parent.mkdir()
    folder.touch()
    assert main(["analyze", path]) == 0
    assert "cache" not in capsys.readouterr().err
    assert main(["analyze", "--timings", path]) == 0
    assert "cache: not written, " in capsys.readouterr().err


def test_the_size_of_the_cache_is_set_in_the_configuration(
    path: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = tmp_path / "pyproject.toml"
    config.write_text("[tool.profkit]\ncache_bytes = 0\n")
    assert main(["check", path, "--baseline", "b.json", "--update-baseline"]) == 0
    assert not folder.exists()
    config.write_text("[tool.profkit]\ncache_bytes = 100_000_000\n")
    assert main(["explain", "1", path]) == 0
    assert kinds(folder)[:2] == ["", ""]
    for invalid in ("-1", "true", '"2 GiB"', "1.5"):
        config.write_text(f"[tool.profkit]\ncache_bytes = {invalid}\n")
        assert main(["analyze", path]) == 2
