"""``profkit explain`` and the bounded JSON of ``profkit analyze``."""

import json
from pathlib import Path

import pytest

from profkit.cli.main import main
from profkit.testing import TraceBuilder

US = 1_000


@pytest.fixture
def trace(tmp_path: Path) -> str:
    """Three steps with a read of a loss, at a line of a file that exists."""
    source = tmp_path / "train.py"
    source.write_text("def step(batch):\n    loss = model(batch)\n    return loss.item()\n")
    b = TraceBuilder(stacks=True)
    for _ in range(3):
        with b.step(), b.frame(str(source), 3, "step"):
            b.launch("aten::mm", kernel="gemm", host_ns=10 * US, device_ns=900 * US)
            with b.op("aten::item"):
                b.synchronize("cudaStreamSynchronize")
            b.advance(200 * US)
    return str(b.write(tmp_path / "made.pt.trace.json"))


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(arguments)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_the_text_has_the_line_the_events_the_fix_and_the_rule(
    trace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text, _ = run(capsys, "explain", "item-sync", trace)
    assert code == 0
    assert "SYN001 item-sync" in text
    assert "> 3      return loss.item()" in text
    assert "Why it matters" in text
    assert "Use instead" in text
    assert "profkit what-if PATH --remove SYN001@train.py:3" in " ".join(text.split())
    reads = [line for line in text.splitlines() if line.startswith("aten::item")]
    assert [line.split()[-1] for line in reads] == [f"ProfilerStep#{i}" for i in range(3)]


def test_the_cost_is_said_once(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    _, text, _ = run(capsys, "explain", "1", trace, "--format", "json")
    tree = json.loads(text)
    time = tree["cost"].removeprefix("about ").partition(" (")[0]
    _, shown, _ = run(capsys, "explain", "1", trace)
    headline = " ".join(shown.partition("Fix")[0].split())
    assert time in headline
    assert headline.count(time) == 1


def test_the_json_has_events_of_the_file_and_the_change(
    trace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text, _ = run(capsys, "explain", "1", trace, "--format", "json")
    assert code == 0
    tree = json.loads(text)
    events = json.loads(Path(trace).read_text())["traceEvents"]
    assert tree["schema"] == "profkit.explanation/1"
    assert tree["id"] == tree["change"] == "SYN001@train.py:3"
    assert [row["name"] for row in tree["events"]] == ["aten::item"] * 3
    assert {events[row["id"]]["name"] for row in tree["events"]} == {"aten::item"}
    assert tree["source"]["lines"][2] == "    return loss.item()"
    assert "How to fix it" in {section["title"] for section in tree["rule"]}
    assert "spans" not in tree["finding"]


@pytest.mark.parametrize("format_", ["md", "html"])
def test_other_formats_explain_the_same(
    trace: str, format_: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text, _ = run(capsys, "explain", "SYN001@train.py:3", trace, "--format", format_)
    assert code == 0
    assert "return loss.item()" in text
    assert "Why it matters" in text


def test_a_saved_report_has_no_events(
    trace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = str(tmp_path / "report.json")
    assert run(capsys, "analyze", trace, "--format", "json", "-o", saved)[0] == 0
    code, text, _ = run(capsys, "explain", "SYN001", saved, "--format", "json")
    assert code == 0
    assert json.loads(text)["events"] == []


def test_an_unknown_finding_is_refused_with_those_that_there_are(
    trace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = run(capsys, "explain", "MEM001", trace)
    assert code == 2
    assert "SYN001@train.py:3" in err


def test_the_json_report_is_cut_to_a_size_and_goes_on_at_a_cursor(
    trace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text, _ = run(capsys, "analyze", trace, "--format", "json", "--budget-bytes", "4k")
    assert code == 0
    assert len(text.encode()) <= 4_000

    tree = json.loads(text)
    assert tree["findings"][0]["id"] == "SYN001@train.py:3"
    cursor = tree["cut"]["unchecked"]["next"]
    whole = json.loads(run(capsys, "analyze", trace, "--format", "json")[1])
    part = json.loads(run(capsys, "analyze", trace, "--format", "json", "--cursor", cursor)[1])
    assert part["table"] == "unchecked"

    first = int(cursor.partition(":")[2])
    assert [row["rule"] for row in part["rows"]] == [
        check["rule"] for check in whole["unchecked"][first:]
    ]

    # A part of a report is never taken for the whole.
    saved = tmp_path / "cut.json"
    saved.write_text(text)
    code, _, err = run(capsys, "diff", str(saved), trace)
    assert code == 3
    assert "cut" in err


def test_a_size_without_json_or_too_small_is_refused(
    trace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(capsys, "analyze", trace, "--budget-bytes", "4k")[0] == 2
    code, _, err = run(capsys, "analyze", trace, "--format", "json", "--budget-bytes", "100")
    assert code == 2
    assert "bytes are needed" in err
