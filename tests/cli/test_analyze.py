"""``profkit analyze`` reads recordings and writes reports."""

import json
import tarfile
from pathlib import Path

import pytest

from profkit.cli._options import Size
from profkit.cli.main import main
from profkit.testing import TraceBuilder


@pytest.fixture
def trace(tmp_path: Path) -> str:
    """Three steps on a GPU, each of which reads a value."""
    b = TraceBuilder()
    for _ in range(3):
        with b.step():
            b.launch("aten::mm", kernel="gemm", host_ns=10_000, device_ns=50_000)
            b.item()
            b.compute("aten::add", 400_000)
            b.launch("aten::mm", kernel="gemm", host_ns=10_000, device_ns=50_000)
    return str(b.write(tmp_path / "step.pt.trace.json.gz"))


def test_the_report_goes_to_stdout_and_nothing_else_does(
    trace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["analyze", trace]) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("profkit ")
    assert "Step time: " in captured.out
    assert "SYN001" in captured.out
    assert captured.err == ""
    assert "\x1b" not in captured.out


def test_json_is_a_report_for_one_path_and_an_array_for_several(
    trace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["analyze", trace, "--format", "json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert main(["analyze", trace, trace, "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == [report, report]
    assert report["schema"] == "profkit.report/2"


def test_texts_of_several_paths_are_concatenated(
    trace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["analyze", trace, trace]) == 0
    assert capsys.readouterr().out.count("Step time: ") == 2


def test_folders_and_archives_give_one_report_per_trace(
    trace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ranks = tmp_path / "ranks"
    ranks.mkdir()
    for rank in range(3):
        (ranks / f"rank{rank}.pt.trace.json.gz").write_bytes(Path(trace).read_bytes())
    (ranks / "notes.json").write_text("{}")
    packed = tmp_path / "ranks.tar"
    with tarfile.open(packed, "w") as archive:
        archive.add(ranks, "ranks", filter=lambda info: None if "notes" in info.name else info)
    for place, inside in ((ranks, f"{ranks}/"), (packed, f"{packed}!ranks/")):
        assert main(["analyze", str(place), "--format", "json"]) == 0
        paths = [report["source"]["path"] for report in json.loads(capsys.readouterr().out)]
        assert paths == [f"{inside}rank{rank}.pt.trace.json.gz" for rank in range(3)]


@pytest.mark.parametrize(("level", "code"), [("note", 1), ("warning", 1), ("error", 0)])
def test_fail_on_includes_higher_severities(trace: str, level: str, code: int) -> None:
    assert main(["analyze", trace, "--select", "SYN001", "--fail-on", level]) == code


def test_fail_on_without_findings_succeeds(trace: str) -> None:
    assert main(["analyze", trace, "--ignore", "SYN,KER,DAT,MEM", "--fail-on", "note"]) == 0


def test_rules_are_chosen_by_id_name_and_family(
    trace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def found(*arguments: str) -> set[str]:
        assert main(["analyze", trace, "--format", "json", *arguments]) == 0
        report = json.loads(capsys.readouterr().out)
        return {finding["rule"] for part in ("findings", "health") for finding in report[part]}

    assert found("--select", "item-sync") == {"SYN001"}
    assert found("--select", "syn001") == {"SYN001"}
    assert "SYN001" in found("--select", "DAT", "--select", "SYN")
    assert "SYN001" not in found("--ignore", "SYN,KER")


def test_an_unknown_rule_is_refused_with_a_suggestion(
    trace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["analyze", trace, "--select", "itemsync"]) == 2
    assert "Did you mean item-sync?" in capsys.readouterr().err


def test_a_file_is_not_overwritten_without_force(
    trace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "report.json"
    assert main(["analyze", trace, "--format", "json", "-o", str(out)]) == 0
    first = out.read_bytes()
    assert json.loads(first)["profkit"]
    assert capsys.readouterr().out == ""
    assert main(["analyze", trace, "-o", str(out)]) == 5
    assert "Use --force to overwrite it" in capsys.readouterr().err
    assert out.read_bytes() == first
    assert main(["analyze", trace, "-o", str(out), "--force"]) == 0
    assert out.read_text(encoding="utf-8").startswith("profkit ")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "report.json",
        "step.pt.trace.json.gz",
    ]


def test_the_output_path_is_checked_before_the_analysis(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = str(tmp_path / "nowhere" / "report.txt")
    assert main(["analyze", "/no/such/trace.json", "-o", missing]) == 5
    assert "There is no folder" in capsys.readouterr().err
    assert main(["analyze", "/no/such/trace.json", "-o", str(tmp_path)]) == 5
    assert "is a folder" in capsys.readouterr().err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_a_full_disk_is_an_output_error(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", trace, "-o", "/dev/full"]) == 5
    assert "cannot be written: No space left on device" in capsys.readouterr().err


def test_other_files_exit_with_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "notes.json"
    file.write_text("[1, 2]", encoding="utf-8")
    assert main(["analyze", str(file)]) == 3
    assert main(["analyze", str(tmp_path / "gone.json")]) == 3
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "notes.json" in captured.err
    assert "gone.json" in captured.err


def test_a_dumb_terminal_gets_ascii(
    trace: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert main(["analyze", trace]) == 0
    assert "\x1b[" in capsys.readouterr().out
    monkeypatch.setenv("NO_COLOR", "1")
    assert main(["analyze", trace]) == 0
    assert "\x1b[" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("written", "n_bytes"),
    [("500", 500), ("64MB", 64_000_000), ("20GiB", 20 << 30), ("1.5k", 1500), (" 2 mib ", 2 << 20)],
)
def test_sizes_have_decimal_and_binary_units(written: str, n_bytes: int) -> None:
    assert Size().convert(written, None, None) == n_bytes


def test_an_invalid_size_is_refused(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", trace, "--max-bytes", "much"]) == 2
    assert "'much' is not a size" in capsys.readouterr().err


def test_a_trace_larger_than_allowed_is_refused_with_exit_code_3(
    trace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["analyze", trace, "--max-bytes", "10"]) == 3
    assert "--max-bytes" in capsys.readouterr().err


def test_timings_prints_the_time_of_each_stage_to_stderr(
    trace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["analyze", trace, "--verbose"]) == 0
    assert capsys.readouterr().err == ""
    assert main(["analyze", trace, "--timings"]) == 0
    stderr = capsys.readouterr().err
    for stage in ("read", "decompress", "decode", "assemble", "index", "rule SYN001", "render"):
        assert f"  {stage}\n" in stderr
