"""The ranks of a job record the same steps, and rank 0 reports on all."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT

PROGRAM = """
import json, os, pathlib, time
import torch
import torch.distributed as dist
from profkit.integrations.training import Training

rank = int(os.environ["RANK"])
store = dist.FileStore(os.environ["STORE"], 2)
dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
training = Training("train", {}, leaks=True, quiet=False)
training.begin()
logged = {}
for _ in range(9):
    time.sleep(0.02 * rank)
    dist.all_reduce(torch.ones(64))
    training.step()
training.end(None, logged.update)
report = training.report
print(json.dumps({"path": training.path, "logged": logged, "kind": report.source.kind,
                  "ranks": [each.rank for each in report.ranks]}))
dist.barrier()
"""


def run_ranks(folder: Path, program: str) -> list[tuple[int, str, str]]:
    """Exit code, stdout and stderr of two ranks that run a program."""
    shared = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "WORLD_SIZE": "2",
        "OMP_NUM_THREADS": "1",
        "STORE": str(folder / "store"),
        "MASTER_PORT": "9",
    }
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", program],
            env={**shared, "RANK": str(rank)},
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    ended = [rank.communicate(timeout=200) for rank in ranks]

    return [(rank.returncode, *texts) for rank, texts in zip(ranks, ended, strict=True)]


@pytest.mark.slow
def test_rank_0_reports_on_all_ranks(tmp_path: Path) -> None:
    ended = run_ranks(tmp_path, PROGRAM)
    assert [code for code, _, _ in ended] == [0, 0], ended
    first, second = (json.loads(out) for _, out, _ in ended)
    assert "_rank0." in first["path"]
    assert "_rank1." in second["path"]
    assert (first["kind"], first["ranks"]) == ("ranks", [0, 1])
    assert second["kind"] == "trace"
    assert first["logged"]["profkit/step_ms"] > 20
    assert second["logged"] == {}
    (_, _, errors), (_, _, other_errors) = ended
    assert " step of " in errors
    assert "next: profkit view traces/train\n" in errors
    assert "next:" not in other_errors
    assert not list(tmp_path.glob("traces/train/.ranks-*"))


@pytest.mark.slow
def test_another_rank_reports_if_rank_0_has_died(tmp_path: Path) -> None:
    # Rank 0 leaves what it has written by then, which a thread does in the background, and rank 1
    # leaves the report to a rank 0 that it sees running: each waits for what the test is about.
    dies = (
        "own_files = pathlib.Path('traces/train')\n"
        "if rank == 0:\n"
        "    while not [*own_files.glob('*_rank0.*.trace.json.gz')]:\n"
        "        time.sleep(0.05)\n"
        "    pathlib.Path('gone').write_text(str(os.getpid()))\n"
        "    os._exit(1)\n"
        "while not is_gone():\n"
        "    time.sleep(0.05)\n"
        "training.end("
    )
    is_gone = (
        "def is_gone():\n"
        "    from profkit.capture.process.launch import is_alive\n"
        "    written = pathlib.Path('gone')\n"
        "    text = written.read_text() if written.exists() else ''\n"
        "    return bool(text) and not is_alive(int(text))\n"
    )
    program = is_gone + PROGRAM.replace("training.end(", dies).replace("dist.barrier()", "")
    (code, _, _), (_, out, errors) = run_ranks(tmp_path, program)
    assert code == 1
    assert json.loads(out)["ranks"] == [0, 1], errors
    assert "rank 0 died; what was recorded until then is in the report." in errors
    assert not list(tmp_path.glob("traces/train/.ranks-*"))
