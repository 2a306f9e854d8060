"""Hooks of ``profkit run`` leave the program's own hooks and its compiled code alone."""

import json
import traceback
from pathlib import Path

import pytest
import torch

from profkit.capture.process import compiling, program, wrappers
from tests.processes import start_forked

OWN_HOOK = """
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

seen = []
register_optimizer_step_post_hook(lambda *_: seen.append(1))
weight = torch.nn.Parameter(torch.zeros(2))
optimizer = torch.optim.SGD([weight], lr=0.1)
for _ in range(9):
    weight.sum().backward()
    optimizer.step()
print(len(seen))
"""
STEPS_IN_BACKWARD = """
import torch

model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8))
optimizers = {each: torch.optim.SGD([each], lr=0.01) for each in model.parameters()}

def update(weight):
    optimizers[weight].step()
    optimizers[weight].zero_grad()

for weight in model.parameters():
    weight.register_post_accumulate_grad_hook(update)
for _ in range(20):
    model(torch.ones(2, 8)).square().mean().backward()
print("trained")
"""
COMPILED = """
import torch
from torch.nn.modules import module

network = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
n_hooks = []

def backend(graph, _):
    n_hooks.append(len(module._global_forward_pre_hooks))
    return graph.forward

compiled = torch.compile(network, backend=backend, dynamic=False)
with torch.no_grad():
    for n in range(1, 30):
        compiled(torch.ones(1 + (n > 20), 4))
print(n_hooks)
"""

TRACED = """
import torch
from torch.fx.experimental.proxy_tensor import make_fx

network = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
example = torch.ones(2, 4)
HOW
"""
WAYS_TO_TRACE = {
    "jit": "graph = torch.jit.trace(network, example, check_trace=False).inlined_graph\n"
    "print(sorted(node.kind() for node in graph.nodes()))",
    "make_fx": "print([str(node.target) for node in make_fx(network)(example).graph.nodes])",
    "fx": "made = torch.fx.symbolic_trace(network)\nfor _ in range(9): made(example)\n"
    "print([str(node.target) for node in made.graph.nodes], 'relu')",
    "export": "made = torch.export.export(network, (example,))\n"
    "print([str(node.target) for node in made.graph.nodes])",
}


def printed(program: str, folder: Path, *options: str) -> tuple[str, str]:
    path = folder / "program.py"
    path.write_text(program)
    run = ("-m", "profkit", "run", "--dir", str(folder), *options)
    ended = start_forked(folder, *run, str(path))
    assert ended.code == 0, ended.err
    return ended.out.strip(), ended.err


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    "options",
    [(), pytest.param(("--no-leaks",), marks=SLOW), pytest.param(("--no-trace",), marks=SLOW)],
)
def test_a_program_with_its_own_optimizer_hook_runs_to_its_end(
    options: tuple[str, ...], tmp_path: Path
) -> None:
    assert printed(OWN_HOOK, tmp_path, *options)[0] == "9"


def test_no_recording_begins_or_ends_within_a_backward_pass(tmp_path: Path) -> None:
    output, report = printed(STEPS_IN_BACKWARD, tmp_path)
    assert output == "trained"
    assert "Step time" in report, report


def test_hooks_are_skipped_within_a_backward_pass() -> None:
    called: list[str] = []
    paused: list[bool] = []
    hook = compiling.unless_paused(called.append)
    weight = torch.ones(2, requires_grad=True)

    def within(_gradient: torch.Tensor) -> None:
        hook("within")
        paused.append(compiling.is_program_paused())

    weight.register_hook(within)
    weight.sum().backward()
    hook("after")
    paused.append(compiling.is_program_paused())
    assert called == ["after"]
    assert paused == [True, False]


def test_a_traceback_of_the_program_has_no_frames_of_hooks() -> None:
    def fail(_: object) -> None:
        raise ValueError("wrong")

    def work() -> None:
        try:
            wrappers.before(fail, lambda _: None)(1)
        except ValueError as error:
            raise KeyError("other") from error

    error = program._run(work)
    assert isinstance(error, KeyError)
    assert error.__cause__ is not None
    calls = traceback.extract_tb(error.__cause__.__traceback__)
    assert [call.name for call in calls] == ["work", "fail"]


def test_a_module_is_compiled_without_hooks_and_its_calls_are_steps(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    n_hooks, _ = printed(COMPILED, tmp_path, "--json", str(report))
    assert n_hooks == "[0, 0]"
    memory = json.loads(report.read_text())["summary"]["memory"]
    assert 20 <= memory["n_monitored_steps"] < 30, memory


@pytest.mark.parametrize(
    "way", ["fx", *(pytest.param(way, marks=SLOW) for way in ("jit", "make_fx", "export"))]
)
def test_a_module_whose_first_call_is_traced_has_the_same_graph(way: str, tmp_path: Path) -> None:
    program = TRACED.replace("HOW", WAYS_TO_TRACE[way])
    plain = start_forked(tmp_path, "-c", program)
    assert "relu" in plain.out
    output, report = printed(program, tmp_path)
    assert output == plain.out.strip()
    assert "could not start" not in report, report
