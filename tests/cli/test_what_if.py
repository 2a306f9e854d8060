"""``profkit what-if`` prints the predicted step time, or one sentence and an exit code."""

import json
from pathlib import Path

import pytest

from profkit.cli.main import main
from profkit.model.what_if import EACH_SCHEMA, JOB_SCHEMA, SCHEMA
from profkit.testing import LiveBuilder, TraceBuilder
from tests.detectors.jobs import MS, JobBuilder

US = 1_000


@pytest.fixture
def trace(tmp_path: Path) -> str:
    """Steps of 131 µs: a wait for a batch of 20 µs, a launch of 10 µs, a kernel of 100 µs."""
    b = TraceBuilder(stacks=True)
    for _ in range(2):
        with b.step(), b.frame("train.py", 10, "forward"):
            b.load(20 * US)
            b.launch("aten::mm", kernel="gemm", host_ns=10 * US, device_ns=100 * US)
            b.synchronize()
            b.advance(1 * US)
    return str(b.write(tmp_path / "made.pt.trace.json"))


def test_the_text_has_the_times_the_changes_and_the_path(
    trace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--scale", "gem?=0.5", "--scale", "aten::mm=0.8", "--no-data-wait"]

    assert main(["what-if", trace, *arguments]) == 0
    captured = capsys.readouterr()
    lines = captured.out.splitlines()
    # The kernel: 100 µs x 0.5 x 0.8; the operator: 10 µs x 0.8.
    assert (
        lines[0] == "The critical path per step changes from 131 µs to 49.0 µs: 82.0 µs (63%) less."
    )
    assert [line.strip() for line in lines if " x " in line or "no wait" in line] == [
        "gem? x 0.5: 2 kernels",
        "aten::mm x 0.8: 2 operators",
        "no wait for data: 2 waits",
    ]

    table = {line[:24].strip(): line[24:].split() for line in lines if line.startswith("  ")}
    assert table["kernels"] == ["100", "µs", "40.0", "µs", "-60.0", "µs"]
    assert table["loading data"] == ["20.0", "µs", "0", "ns", "-20.0", "µs"]
    assert table["total"] == ["131", "µs", "49.0", "µs", "-82.0", "µs"]
    assert captured.err == ""


def test_a_folder_with_one_trace_and_its_memory_record_is_that_trace(
    trace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    LiveBuilder().write(tmp_path / "made.memory.json")
    assert main(["what-if", trace, "--no-data-wait"]) == 0
    of_file = capsys.readouterr().out
    assert main(["what-if", str(tmp_path), "--no-data-wait"]) == 0
    assert capsys.readouterr().out == of_file


def test_the_json_has_integers_of_nanoseconds(
    trace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "prediction.json"
    arguments = ["what-if", trace, "--graph", "--format", "json", "-o", str(target)]
    assert main(arguments) == 0
    assert capsys.readouterr().out == ""
    tree = json.loads(target.read_text())
    assert (tree["schema"], tree["n_steps"], tree["basis"]) == (SCHEMA, 2, "replay")
    assert tree["before_ns"] == sum(tree["critical_path_before_ns"].values()) == 131 * US
    assert tree["after_ns"] == sum(tree["critical_path_after_ns"].values()) == 131 * US
    assert tree["changes"] == [
        {"kind": "graph", "target": "", "factor": 0.0, "matched": {"launches": 2}}
    ]
    assert main(arguments) == 5
    assert "already exists" in capsys.readouterr().err
    assert main([*arguments, "--force"]) == 0


def test_an_unchanged_and_a_longer_step_read_as_such(
    trace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["what-if", trace, "--graph"]) == 0
    assert capsys.readouterr().out.startswith("The critical path per step stays at 131 µs.\n")
    assert main(["what-if", trace, "--scale", "gemm=2"]) == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert first == "The critical path per step changes from 131 µs to 231 µs: 100 µs (76%) more."


def test_without_a_change_the_usual_ones_are_listed_the_best_one_first(
    trace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["what-if", trace]) == 0
    _, _, head, *rows = capsys.readouterr().out.splitlines()
    assert head.split() == ["Each", "change", "alone", "step", "less"]
    # One graph changes nothing here, and is left out.
    assert [row.split("  ")[1] for row in rows[:2]] == [
        "without DAT001@train.py:10: 1 finding",
        "no wait for data: 2 waits",
    ]
    assert rows[0].split()[-5:] == ["111", "µs", "20.0", "µs", "15%"]

    assert main(["what-if", trace, "--format", "json"]) == 0
    tree = json.loads(capsys.readouterr().out)
    assert (tree["schema"], tree["path"]) == (EACH_SCHEMA, trace)
    assert [case["saving_ns"] for case in tree["cases"][:2]] == [20 * US] * 2


def test_a_program_that_no_change_makes_faster_is_said_to_be_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    b = TraceBuilder()
    for _ in range(3):
        with b.step(), b.op("aten::mm"):
            b.advance(100 * US)
    path = str(b.write(tmp_path / "lean.pt.trace.json"))
    assert main(["what-if", path]) == 0
    out = capsys.readouterr().out
    assert out.startswith("No finding and no wait of ")
    assert out.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--remove", "SNY001"], "There is no rule SNY001."),
        (["--scale", "gemm"], "'gemm' has no factor; write 'nccl*=0.5'."),
        (["--scale", "=0.5"], "has no factor"),
        (["--scale", "gemm=fast"], "'fast' in 'gemm=fast' is not a number"),
        (["--scale", "gemm=-0.5"], "The factor of 'gemm' is -0.5."),
        (["--scale", "gemm=nan"], "The factor of 'gemm' is nan."),
        (["--scale", "gemm=1", "--scale", "gemm=2"], "--scale gemm is given twice."),
        (["--scale", "nccl*=0.5"], "is named 'nccl*'"),
    ],
)
def test_invalid_changes_exit_with_2_and_a_sentence(
    arguments: list[str], message: str, trace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["what-if", trace, *arguments]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.out == ""


def test_a_file_that_is_not_a_trace_exits_with_3(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["what-if", str(tmp_path / "none.json"), "--graph"]) == 3
    assert "none.json" in capsys.readouterr().err


def test_the_help_says_what_a_pattern_covers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["what-if", "--help"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "with the kernels and copies that they launched" in text
    assert "profkit what-if trace.json.gz --remove SYN001" in text


def test_a_job_is_replayed_with_all_ranks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = JobBuilder(2)
    for _ in range(2):
        with job.step():
            job.compute([9 * MS, 3 * MS])
            job.collective("all-reduce", 2 * MS)
    folder = str(job.write(tmp_path / "job"))
    assert main(["what-if", folder]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("A step of the job takes 11.0 ms (ranks 0, 1 in")
    assert "Changes, each alone" in lines[2]
    assert lines[3].startswith("  rank 0 as fast as the median of the others ")
    assert lines[3].endswith(" 5.00 ms     6.00 ms  55%")
    assert main(["what-if", folder, "--rank", "0", "--bandwidth", "2", "--format", "json"]) == 0

    tree = json.loads(capsys.readouterr().out)
    assert (tree["schema"], tree["ranks"], tree["n_steps"]) == (JOB_SCHEMA, [0, 1], 2)
    assert [case["saving_ns"] for case in tree["cases"]] == [7 * MS]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rank", "0"], "not belong to a job of several ranks"),
        (["--rank", "0", "--graph"], "change a single trace"),
        (["--bandwidth", "fast"], "'fast' is not a number"),
        (["--bandwidth", "2", "--bandwidth", "3"], "--bandwidth is given twice."),
    ],
)
def test_changes_of_a_job_need_one(
    arguments: list[str], message: str, trace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["what-if", trace, *arguments]) == 2
    assert message in capsys.readouterr().err
