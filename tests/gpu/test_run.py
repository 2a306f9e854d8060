"""On a real device: ``profkit run`` lets a program end as it does alone, and kernels have times.

Here a step with stacks is recorded after the others, and the backward pass runs in a thread of
autograd's, while the memory monitor looks at some of the steps.
"""

import json
from typing import Any

import pytest

from tests.processes import Ended, start

pytestmark = pytest.mark.gpu

PROGRAM = """
import torch
from torch import nn
torch.manual_seed(0)
network = nn.Sequential(*(nn.Linear(2048, 2048) for _ in range(8)), nn.Linear(2048, 8)).cuda()
optimizer = torch.optim.AdamW(network.parameters())
x, y = torch.randn(4096, 2048, device="cuda"), torch.randint(8, (4096,), device="cuda")
kept, lengths = [], []
for step in range(150):
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(network(x), y)
    loss.backward()
    optimizer.step()
    end.record()
    kept.append(torch.randn(64, 1024, device="cuda"))
    lengths.append((begin, end))
torch.cuda.synchronize()
print("loss", loss.item())
ms = sorted(begin.elapsed_time(end) for begin, end in lengths)
print("ms", ms[len(ms) // 2])
"""


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> tuple[Ended, Ended, dict[str, Any]]:
    """Return the program alone, under profkit, and the report."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "train.py").write_text(PROGRAM)
    bare = start(folder, "train.py")
    watched = start(folder, "-m", "profkit", "run", "--json", "report.json", "train.py")
    return bare, watched, json.loads((folder / "report.json").read_text())


def said(run: Ended, what: str) -> float:
    """Return a number that the program has printed."""
    lines = dict(line.split() for line in run.out.splitlines())
    return float(lines[what])


def test_the_program_ends_as_without_profkit(
    ended: tuple[Ended, Ended, dict[str, Any]],
) -> None:
    bare, watched, _ = ended
    assert (bare.code, watched.code) == (0, 0), watched.err
    assert "Traceback" not in watched.err
    assert said(watched, "loss") == pytest.approx(said(bare, "loss"), rel=1e-3)


def test_kernels_take_as_long_as_events_say(ended: tuple[Ended, Ended, dict[str, Any]]) -> None:
    bare, _, report = ended
    summary = report["summary"]
    (device,) = summary["devices"]
    assert len(summary["steps"]) == 3
    busy_ms = device["busy_ns"] / len(summary["steps"]) / 1e6
    # The steps are bound by the device, so that its busy time is nearly all of them.
    assert busy_ms == pytest.approx(said(bare, "ms"), rel=0.25)


def test_the_tensors_that_are_kept_have_their_line(
    ended: tuple[Ended, Ended, dict[str, Any]],
) -> None:
    _, _, report = ended
    leaks = [finding for finding in report["findings"] if finding["name"] == "growing-container"]
    assert leaks, report["findings"]
    assert (
        leaks[0]["locations"][0]["line"] == PROGRAM[: PROGRAM.index("kept.append")].count("\n") + 1
    )


def test_memory_grows_by_nothing_but_the_tensors(
    ended: tuple[Ended, Ended, dict[str, Any]],
) -> None:
    _, _, report = ended
    assert [finding for finding in report["findings"] if finding["name"] == "host-growth"] == []
