"""A project whose budgets are checked: each planted problem fails with its line, its fix passes."""

import importlib.util
import uuid
from pathlib import Path
from types import ModuleType

import pytest
import torch

import profkit
from profkit.budgets.figures import FIGURES
from profkit.cli.main import main
from profkit.scale.processes import call_in_processes
from tests.examples.on_a_device import AHEAD, Device, write_on_a_device

pytestmark = pytest.mark.slow

TRAINING = """
import torch

losses = []


def loss_of(model, samples):
    hidden = model(samples)
    return hidden.square().mean()


def train_step(model, optimizer, samples):
    optimizer.zero_grad()
    loss = loss_of(model, samples)
    loss.backward()
    optimizer.step()
"""
COMPILED = '@torch.compile(backend="eager")'
PLANTED = {
    "sync": ("    loss.backward()\n", "    print(loss.item())\n", "syncs", "SYN001 item-sync"),
    "peak": (
        "    loss = loss_of(model, samples)\n", "    more = torch.ones(model[0].weight.numel())\n",
        "peak", "256 KiB in 1 block of the ",
    ),
    "leak": (
        "    optimizer.step()\n", "    losses.append(torch.ones(5000) + loss)\n", "growth",
        "retained by `",
    ),
    "graph break": (
        "    hidden = model(samples)\n", "    print('a step')\n", "graph_breaks", "graph-breaks",
    ),
}  # fmt: skip
"""The line before, the planted line, the budget that fails, and what is said of it."""

TITLES = {figure.name: figure.title for figure in FIGURES}


BUDGETS = """
[tool.profkit.budgets]
syncs = 0
graph_breaks = 0
growth = 0
peak = "+10%"
"""
HERE = "tests.cli.test_check_project"


def record(place: tuple[str, str]) -> str:
    """Run a program in a folder; its trace, with the kernels that a GPU would have run.

    The peak of a process has all that is alive in it: this one has run no other tests.
    """
    folder, text = Path(place[0]), place[1]
    (folder / "train.py").write_text(text)
    module = imported(folder / "train.py")
    name = uuid.uuid4().hex
    model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.Linear(256, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    samples = torch.randn(64, 256)
    module.train_step(model, optimizer, samples)  # gradients are there from now on

    with profkit.memory(name, dir=folder, quiet=True) as memory:
        batches = profkit.steps(
            [samples] * 40, name, wait=0, warmup=2, active=4, dir=folder, quiet=True
        )
        for batch in batches:
            module.train_step(model, optimizer, batch)

    module.losses.clear()
    torch._dynamo.reset()
    assert batches.path is not None
    assert memory.path is not None
    # Beside the memory samples, with which it is one recording.
    trace = Path(memory.path.replace(".memory.json.gz", ".pt.trace.json"))
    return str(
        write_on_a_device(Path(batches.path), trace, Device().work_of, slower=1, ahead=AHEAD)
    )


def imported(file: Path) -> ModuleType:
    """Return a program as a module of its own; torch.compile knows no other of this name."""
    spec = importlib.util.spec_from_file_location(f"train_{uuid.uuid4().hex}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def faulty(name: str) -> tuple[str, int]:
    """Return the program with a planted problem, and the problem's line."""
    before, planted, *_ = PLANTED[name]
    text = TRAINING.replace(before, before + planted)
    if name == "graph break":  # the last: in compiled programs what grows has no line
        text = text.replace("def loss_of", f"{COMPILED}\ndef loss_of")
    return text, text[: text.index(planted)].count("\n") + 1


def test_each_planted_problem_fails_with_its_line_and_its_fix_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyproject.toml").write_text(BUDGETS)
    programs = [TRAINING, *(faulty(name)[0] for name in PLANTED), TRAINING]
    places = [(str(tmp_path), text) for text in programs]
    first, *traces, last = (path for _, path in call_in_processes(f"{HERE}:record", places, 1))
    assert main(["check", first, "--baseline", "b.json", "--update-baseline"]) == 0

    for (name, (_, _, budget, cause)), path in zip(PLANTED.items(), traces, strict=True):
        capsys.readouterr()
        assert main(["check", path, "--baseline", "b.json"]) == 1, name
        out = capsys.readouterr().out
        (headline,) = [line for line in out.splitlines() if " of 4 budgets not kept: " in line]
        failed = {TITLES[budget]} | ({TITLES["peak"]} if name == "leak" else set())
        assert set(headline.rstrip(".").partition(": ")[2].split(", ")) == failed
        assert f"train.py:{faulty(name)[1]}" in out, out
        assert cause in " ".join(out.split()), out
    capsys.readouterr()
    assert main(["check", last, "--baseline", "b.json"]) == 0
    assert "4 budgets are kept" in capsys.readouterr().out
