"""What profkit wrote into its traces of compiling comes back as it was, or costs nothing else."""

import json
from pathlib import Path

import pytest

from profkit.api import analyze
from profkit.model.capture_info import CaptureInfo, Compiled, Compiles, GraphBreak
from profkit.readers.open import load_trace
from profkit.testing import TraceBuilder

TOLD = Compiles(
    [Compiled("0/1", ("/a.py", 3, "f"), caller=("/b.py", 4, "g"), again=True, reason="n == 3")],
    [GraphBreak("print", [("/a.py", 3, "f")], user=0, n=2)],
    n_left_out=1,
)
HUGE = 10**40


def written(path: Path, compiles: object) -> Path:
    b = TraceBuilder(capture=CaptureInfo(version="1", name="run", compiles=TOLD))
    for _ in range(2):
        with b.step(), b.op("Torch-Compiled Region: 0/1"):
            with b.op("dynamo"):
                b.advance(1_000)
            b.compute("aten::mm", 1_000)
            with b.op("Torch-Compiled Region: 1/1"):
                b.compute("aten::mm", 1_000)
    file = b.write(path)
    document = json.loads(file.read_text())
    document["profkit"]["compiles"] = compiles
    file.write_text(json.dumps(document))
    return file


def test_it_comes_back_as_it_was(tmp_path: Path) -> None:
    b = TraceBuilder(capture=CaptureInfo(version="1", name="run", compiles=TOLD))
    b.compute("aten::mm", 1_000)
    capture = load_trace(b.write(tmp_path / "t.json")).capture
    assert capture is not None
    assert capture.compiles == TOLD


@pytest.mark.parametrize(
    "odd",
    [
        3, "x", [], {"compiled": 3}, {"compiled": [3]}, {"compiled": [{"number": []}]},
        {"breaks": [{"reason": "x"}]}, {"breaks": [{"reason": "x", "stack": [["a"]]}]},
        {"compiled": [{"code": ["a", "b", "c"]}]},
    ],
)  # fmt: skip
def test_what_is_not_as_it_should_be_costs_nothing_else(tmp_path: Path, odd: object) -> None:
    capture = load_trace(written(tmp_path / "t.json", odd)).capture
    assert capture is not None
    assert capture.name == "run"
    assert capture.compiles is None


@pytest.mark.parametrize(
    "odd",
    [
        {"compiled": [{"number": "0/1", "start_ns": HUGE, "dur_ns": -HUGE, "again": True}]},
        {"compiled": [{"number": "////", "again": True}, {"number": "-1/-1"}, {"number": "0/²"}]},
        {"compiled": [{"number": "1/1", "code": ["", -5, ""], "caller": ["", HUGE, ""]}]},
        {"compiled": [{"number": "1/1", "code": ["/a.py", 3, "torch_dynamo_resume_in_"]}],
         "breaks": [{"reason": "", "stack": [], "user": 7}]},
        {"compiled": [{"number": "1/1", "code": ["/a.py", 3, "torch_dynamo_resume_in_f_at_3"],
                       "n_ops": HUGE}],
         "breaks": [{"reason": "\x1b[31m</script>", "stack": [["/a.py", 3, "f"]], "user": 7}]},
        {"compiled": [{"number": "0/9", "failure": "recompile_limit", "reason": "\n\n"}]},
    ],
)  # fmt: skip
def test_no_rule_crashes_on_what_no_torch_would_say(tmp_path: Path, odd: object) -> None:
    path = written(tmp_path / "t.json", odd)
    report = analyze(path, select=["recompiles", "graph-breaks"], strict=True)
    assert not report.unchecked
