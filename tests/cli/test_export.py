"""``profkit export`` writes every format to the expected file."""

import csv
import gzip
import io
import json
import sys
import tarfile
from pathlib import Path

import pytest

from profkit.cli._inputs import plain_name
from profkit.cli.export import ExportChoice
from profkit.cli.main import main
from profkit.present.renderer import renderers
from profkit.testing import TraceBuilder

FORMATS = [renderer.INFO.name for renderer in renderers()]


@pytest.fixture
def trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two steps on a GPU, each of which reads a value; the current folder is an empty one."""
    b = TraceBuilder()
    for _ in range(2):
        with b.step():
            b.launch("aten::mm", kernel="gemm", host_ns=10_000, device_ns=50_000)
            b.item()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return b.write(tmp_path / "step.pt.trace.json.gz")


def here() -> list[str]:
    return sorted(path.name for path in Path.cwd().iterdir())


def test_all_documented_formats_exist() -> None:
    assert {"chrome", "parquet", "csv", "folded", "html", "md", "sarif", "json"} <= set(FORMATS)
    assert "tensorboard" in ExportChoice()._names()


def test_a_format_may_be_asked_for_by_its_viewer_and_has_to_be_given(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", str(trace), "--to", "perfetto", "-o", "out"]) == 0
    assert "traceEvents" in Path("out").read_text()
    assert main(["export", str(trace)]) == 2
    assert "Choose one of chrome, csv, folded" in capsys.readouterr().err


@pytest.mark.parametrize("form", FORMATS)
def test_every_format_can_be_written_to_a_file(form: str, trace: Path) -> None:
    assert main(["export", str(trace), "--to", form, "-o", "out"]) == 0
    assert Path("out").stat().st_size > 0
    assert here() == ["out"]


@pytest.mark.parametrize("form", FORMATS)
def test_on_a_terminal_the_file_is_named_after_the_recording(
    form: str,
    trace: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert main(["export", str(trace), "--to", form]) == 0
    (name,) = here()
    assert name.startswith("step.")
    suffix = next(renderer.INFO.suffix for renderer in renderers() if renderer.INFO.name == form)
    assert name.removesuffix(".gz").endswith(suffix)
    assert capsys.readouterr().out == ""
    assert main(["export", str(trace), "--to", form]) == 5
    assert "Use --force to overwrite it" in capsys.readouterr().err
    assert main(["export", str(trace), "--to", form, "--force"]) == 0


def test_in_a_pipe_it_is_written_to_stdout(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", str(trace), "--to", "chrome"]) == 0
    assert json.loads(capsys.readouterr().out)["traceEvents"]
    assert here() == []


def test_a_gz_file_is_compressed_reproducibly(trace: Path) -> None:
    assert main(["export", str(trace), "--to", "chrome", "-o", "a.json.gz"]) == 0
    assert main(["export", str(trace), "--to", "chrome", "-o", "b.json.gz"]) == 0
    packed = Path("a.json.gz").read_bytes()
    assert json.loads(gzip.decompress(packed))["traceEvents"]
    assert packed == Path("b.json.gz").read_bytes()


def test_a_folder_gets_all_tables_or_the_selected_one(trace: Path) -> None:
    assert main(["export", str(trace), "--to", "csv", "-o", "tables/"]) == 0
    names = {path.name for path in Path("tables").iterdir()}
    assert {"step.findings.csv", "step.kernels.csv", "step.operators.csv"} <= names
    assert main(["export", str(trace), "--to", "csv", "-o", "one/", "--table", "steps"]) == 0
    assert [path.name for path in Path("one").iterdir()] == ["step.steps.csv"]
    steps = list(csv.DictReader(io.StringIO(Path("one/step.steps.csv").read_text())))
    assert [row["name"] for row in steps] == ["ProfilerStep#0", "ProfilerStep#1"]


def test_unknown_tables_and_formats_without_tables_are_refused(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", str(trace), "--to", "csv", "--table", "kernel"]) == 2
    assert "The tables are findings, " in capsys.readouterr().err
    assert main(["export", str(trace), "--to", "chrome", "--table", "kernels"]) == 2
    assert "chrome does not take --table" in capsys.readouterr().err


@pytest.fixture
def ranks(trace: Path, tmp_path: Path) -> str:
    """Return an archive of two recordings whose names differ by their folder alone."""
    packed = tmp_path / "ranks.tar"
    with tarfile.open(packed, "w") as archive:
        for rank in ("a", "b"):
            archive.add(trace, f"{rank}/step.pt.trace.json.gz")
    return str(packed)


def test_several_recordings_are_written_to_one_file_each(ranks: str) -> None:
    assert main(["export", ranks, "--to", "chrome", "-o", "out/"]) == 0
    names = sorted(path.name for path in Path("out").iterdir())
    assert names == ["step-2.trace.json.gz", "step.trace.json.gz"]


def test_several_recordings_are_one_file_in_formats_of_reports(
    ranks: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", ranks, "--to", "csv", "-o", "all.csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(Path("all.csv").read_text())))
    assert len({row["recording"] for row in rows}) == 2
    assert main(["export", ranks, "--to", "chrome", "-o", "all.json"]) == 2
    assert "one of several recordings" in capsys.readouterr().err
    assert here() == ["all.csv"]


def test_a_format_of_several_files_needs_a_folder(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", str(trace), "--to", "tensorboard", "-o", "logs"]) == 0
    (events,) = Path("logs").rglob("events.out.tfevents.*")
    assert events.stat().st_size > 0
    assert main(["export", str(trace), "--to", "tensorboard"]) == 2
    assert "name a folder with -o" in capsys.readouterr().err


def test_a_saved_report_can_be_exported(trace: Path) -> None:
    assert main(["analyze", str(trace), "--format", "json", "-o", "report.json"]) == 0
    assert main(["export", "report.json", "--to", "csv", "-o", "saved.csv"]) == 0
    assert main(["export", str(trace), "--to", "csv", "-o", "fresh.csv"]) == 0
    assert Path("saved.csv").read_text() == Path("fresh.csv").read_text()


def test_lines_are_relative_to_the_base(tmp_path: Path) -> None:
    b = TraceBuilder(stacks=True)
    for _ in range(2):
        with b.step(), b.frame("/src/project/train.py", 3, "main"):
            b.launch("aten::mm", kernel="gemm", host_ns=10_000, device_ns=50_000)
            b.item()
    path = b.write(tmp_path / "lines.json")
    out = tmp_path / "x.sarif"
    arguments = ["export", str(path), "--to", "sarif", "-o", str(out), "--base", "/src/project"]
    assert main(arguments) == 0
    (run,) = json.loads(out.read_bytes())["runs"]
    place = run["results"][0]["locations"][0]["physicalLocation"]
    assert place["artifactLocation"] == {"uri": "train.py", "uriBaseId": "SRCROOT"}
    assert run["originalUriBaseIds"]["SRCROOT"]["uri"] == "file:///src/project/"


def test_existing_files_are_reported_before_the_analysis(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    taken = tmp_path / "taken.json"
    taken.write_text("mine")
    assert main(["export", "/no/such/trace.json", "--to", "chrome", "-o", str(taken)]) == 5
    assert "already exists" in capsys.readouterr().err
    assert taken.read_text() == "mine"


def test_an_unknown_format_is_refused_with_a_list(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", str(trace), "--to", "crome"]) == 2
    assert "Did you mean 'chrome'?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("traces/train/host_1.17.pt.trace.json.gz", "host_1.17"),
        ("oom.snapshot.pickle.gz", "oom"),
        ("run.memory.json.gz", "run"),
        ("ranks.tar!b/rank0.json", "rank0"),
        ("s3://bucket/run/step.json.zst", "step"),
        ("https://host/x.json?version=1", "x"),
        (".json", "recording"),
    ],
)
def test_the_name_of_a_recording_is_its_file_name_without_endings(path: str, name: str) -> None:
    assert plain_name(path) == name
