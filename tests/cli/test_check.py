"""``profkit check`` fails a build that exceeds its budgets, in every format that CI reads."""

import json
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from profkit.cli.main import main
from profkit.testing import TraceBuilder

MS = 1_000_000
BUDGETS = 'kernels = 2\nsyncs = 0\npeak = "+10%"\n'


def training(folder: Path, *, n_kernels: int = 2, reads: bool = False, n_bytes: int = 1000) -> str:
    """Return a folder with the trace of four steps."""
    folder.mkdir()
    b = TraceBuilder(stacks=True)
    for _ in range(4):
        with b.step(), b.frame(str(folder.parent / "train.py"), 10, "train_step"):
            address = b.alloc(n_bytes)
            for _ in range(n_kernels):
                b.launch("aten::mm", kernel="gemm", host_ns=10_000, device_ns=MS)
            if reads:
                b.item()
            b.free(address)
    b.write(folder / "t.pt.trace.json.gz")
    return str(folder)


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a project with budgets, as the working directory."""
    (tmp_path / "pyproject.toml").write_text(f"[tool.profkit.budgets]\n{BUDGETS}")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_change_that_plants_a_sync_and_memory_fails_with_its_line(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = training(project / "before")
    assert main(["check", before, "--baseline", "baseline.json", "--update-baseline"]) == 0
    assert "All 3 budgets are kept." in capsys.readouterr().out

    kept = json.loads((project / "baseline.json").read_text())
    assert kept["figures"]["peak"]["value"] == 1000
    same = training(project / "same", n_bytes=1100)
    assert main(["check", same, "--baseline", "baseline.json"]) == 0

    after = training(project / "after", reads=True, n_bytes=1200)
    capsys.readouterr()
    assert main(["check", after, "--baseline", "baseline.json"]) == 1

    out = capsys.readouterr().out
    assert "2 of 3 budgets not kept: host-device syncs per step, peak memory." in out
    assert "not decided" not in out

    (peak,) = [line for line in out.splitlines() if line.startswith("peak memory")]
    assert peak.split()[2:] == ["1.17", "KiB", "1.07", "KiB", "1000", "B", "OVER"]
    assert "train.py:10: " in out
    assert "SYN001 item-sync" in out


def test_syncs_that_cost_too_little_for_a_finding_have_their_line(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    b = TraceBuilder(stacks=True)
    for n_reads in (1, 2):  # when the device has nothing to do
        with b.step():
            for _ in range(n_reads):
                with b.frame(str(project / "train.py"), 10, "train_step"):
                    b.item()
            with b.frame(str(project / "train.py"), 20, "train_step"):
                b.launch("aten::mm", kernel="gemm", host_ns=10_000, device_ns=MS)
            b.advance(500 * MS)
    trace = str(b.write(project / "t.pt.trace.json.gz"))
    (project / "budgets.toml").write_text("syncs = 1")

    assert main(["check", trace, "--budget", "budgets.toml"]) == 1

    out = capsys.readouterr().out
    assert "train.py:10: 2 syncs per step in `aten::_local_scalar_dense`." in out
    assert "SYN001" not in out
    assert main(["check", trace, "--budget", "budgets.toml", "--format", "github"]) == 1
    assert "::error file=train.py,line=10," in capsys.readouterr().out


def test_junit_has_a_test_for_each_budget(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = training(project / "one", n_kernels=3, reads=True)
    assert main(["check", path, "--format", "junit"]) == 1
    suite = ET.fromstring(capsys.readouterr().out)[0]  # noqa: S314  (our own product)
    assert {key: suite.get(key) for key in ("tests", "failures", "errors", "skipped")} == {
        "tests": "3",
        "failures": "2",
        "errors": "1",
        "skipped": "0",
    }
    kernels, syncs, peak = suite
    assert (kernels.get("name"), kernels[0].tag) == ("kernels", "failure")
    assert (syncs.get("file"), syncs.get("line")) == ("train.py", "10")
    assert (peak[0].tag, "--baseline" in peak[0].get("message", "")) == ("error", True)


def test_github_annotates_the_line_of_the_cause(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = training(project / "one", reads=True)
    (project / "budgets.toml").write_text("syncs = 0")
    arguments = ["check", path, "--budget", "budgets.toml", "--format", "github"]
    assert main(arguments) == 1
    first, line = capsys.readouterr().out.splitlines()
    assert first == "::notice title=profkit::1 of 1 budget not kept: host-device syncs per step."
    assert line.startswith(
        "::error file=train.py,line=10,title=profkit%3A host-device syncs per step::"
        "Host-device syncs per step: 1, limit 0.%0A"
    )


def test_sarif_places_each_budget_on_its_line(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = training(project / "one", reads=True)
    (project / "budgets.toml").write_text("[budgets]\nsyncs = 0\nkernels = 9\n")
    assert main(["check", path, "--budget", "budgets.toml", "--format", "sarif"]) == 1
    (loads,) = json.loads(capsys.readouterr().out)["runs"][0]["results"]
    place = loads["locations"][0]["physicalLocation"]
    assert loads["ruleId"] == "budget/syncs"
    assert (place["artifactLocation"]["uri"], place["region"]) == ("train.py", {"startLine": 10})


@pytest.mark.parametrize("format_", ["json", "md", "html", "text"])
def test_kept_budgets_exit_with_zero_in_every_format(
    project: Path, format_: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = training(project / "one")
    (project / "budgets.toml").write_text("syncs = 0")
    assert main(["check", path, "--budget", "budgets.toml", "--format", format_]) == 0
    out = capsys.readouterr().out
    assert "host-device syncs per step" in out
    if format_ == "json":
        (only,) = json.loads(out)["results"]
        assert (only["outcome"], only["value"], only["limit"]) == ("ok", 0, 0)


def test_a_baseline_alone_limits_what_the_newest_recording_may_have(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "pyproject.toml").write_text("")
    training(project / "traces")
    assert main(["check", "--baseline", "baseline.json", "--update-baseline"]) == 0
    assert main(["check", "--baseline", "baseline.json"]) == 0
    assert "All 5 budgets are kept." in capsys.readouterr().out

    after = training(project / "after", reads=True)
    assert main(["check", after, "--baseline", "baseline.json"]) == 1
    assert "not kept: host-device syncs per step" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("budgets", "message"),
    [
        ("", "There is no budget."),
        ("[tool.profkit.budgets]\nsink = 1", "there is no budget 'sink'"),
        ("[tool.profkit]\nbudgets = 3", "tool.profkit.budgets must be a table"),
    ],
)
def test_missing_and_unknown_budgets_are_usage_errors(
    project: Path, budgets: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "pyproject.toml").write_text(budgets)
    assert main(["check", training(project / "one")]) == 2
    assert message in capsys.readouterr().err


def test_the_options_that_cannot_be(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = training(project / "one")
    assert main(["check", path, "--update-baseline"]) == 2
    assert "--update-baseline needs --baseline FILE" in capsys.readouterr().err
    assert main(["check", path, "--baseline", "absent.json"]) == 3
    errors = capsys.readouterr().err
    assert "There is no file absent.json." in errors
    assert "hint: Add --update-baseline to write it." in errors
    (project / "empty.toml").write_text("[tool.other]")
    assert main(["check", path, "--budget", "empty.toml"]) == 2
    assert "empty.toml has no budgets." in capsys.readouterr().err


def test_a_budget_without_a_figure_fails_as_not_decided(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "b.toml").write_text("syncs = 0\ngpu_ms = 100\ngrowth = 0\n")
    path = training(project / "one", reads=True)
    assert main(["check", path, "--budget", "b.toml"]) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert (
        "1 of 3 budgets not kept: host-device syncs per step. 1 of 3 budgets not decided: " in out
    )
