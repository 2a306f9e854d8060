"""The source line of each operator, in a program with known lines."""

import ast
import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest

import profkit
from profkit.capture.recording import op_lines
from profkit.capture.recording.profiler import ProfilerRecording
from profkit.capture.source.files import SourceFiles, in_library, library_roots

Opened = Callable[[str | None], dict[str, Any]]

PROGRAM = """\
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x):
        y = self.inner(x)  # linear
        return y * 2  # mul

model = nn.Sequential(Block(), nn.Linear(4, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.add(x)  # own forward

    @staticmethod
    def backward(ctx, grad):
        return grad.sub(1)  # own backward

def step(x, target):
    out = model(x)  # model
    loss = nn.functional.mse_loss(Double.apply(out), target)  # loss
    optimizer.zero_grad()
    loss.backward()  # backward
    optimizer.step()  # optimizer
    value = loss.item()  # item
    as_float = float(loss.detach())  # float
    if loss > 100:  # if
        print("big")
    small = x[x > 0]  # mask
    parts = [row.exp() for row in x]  # comprehension
    print(loss.detach())  # print
    return small.nonzero()  # nonzero
"""


@pytest.fixture
def program(tmp_path: Path) -> Iterator[ModuleType]:
    file = tmp_path / "user_program.py"
    file.write_text(PROGRAM)
    spec = importlib.util.spec_from_file_location("user_program", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["user_program"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["user_program"]


@pytest.fixture
def recorded(program: ModuleType, opened: Opened) -> dict[str, Any]:
    """Return the recorded lines of one step."""
    import torch

    x = torch.tensor([[1.0, -2.0, 3.0, 4.0]] * 3)
    with profkit.trace("lines") as t:
        program.step(x, torch.zeros(3, 2))
    lines: dict[str, Any] = opened(t.path)["profkit"]["lines"]
    return lines


@pytest.fixture
def places(recorded: dict[str, Any]) -> list[tuple[str, str, str, int]]:
    """For each operator its name, its parent's name, the comment on its line, and ``exact``."""
    lines, text = recorded, PROGRAM.splitlines()
    files = []
    for name, parent, frame in zip(lines["name"], lines["parent"], lines["frame"], strict=True):
        assert frame >= 0, f"{lines['names'][name]} has no line"
        file, line, _function, exact = lines["frames"][frame]
        assert Path(file).is_absolute()
        comment = text[line - 1].partition("# ")[2] if file.endswith("user_program.py") else file
        parent_name = lines["names"][lines["name"][parent]] if parent >= 0 else ""
        files.append((lines["names"][name], parent_name, comment, exact))
    return files


def lines_of(places: list[tuple[str, str, str, int]], op: str) -> set[tuple[str, int]]:
    """Comments on the lines of an operator that was not called by another."""
    return {
        (comment, exact) for name, parent, comment, exact in places if name == op and not parent
    }


def test_every_operator_has_the_line_that_ran_it(
    places: list[tuple[str, str, str, int]],
) -> None:
    assert lines_of(places, "aten::linear") == {("linear", 1), ("model", 1)}
    assert lines_of(places, "aten::mse_loss") == {("loss", 1)}
    assert lines_of(places, "aten::mul") >= {("mul", 1)}
    assert lines_of(places, "aten::item") >= {("item", 1), ("float", 1)}
    assert lines_of(places, "aten::gt") >= {("if", 1), ("mask", 1)}
    assert lines_of(places, "aten::is_nonzero") >= {("if", 1)}
    assert lines_of(places, "aten::index") == {("mask", 1)}
    assert lines_of(places, "aten::nonzero") == {("nonzero", 1)}
    assert lines_of(places, "aten::exp") == {("comprehension", 1)}
    assert lines_of(places, "Optimizer.step#SGD.step") == {("optimizer", 1)}


def test_each_line_has_the_definition_of_its_function(recorded: dict[str, Any]) -> None:
    functions = [node for node in ast.walk(ast.parse(PROGRAM)) if isinstance(node, ast.FunctionDef)]
    lines = []
    for (file, line, name, _), first_line in zip(
        recorded["frames"], recorded["first_lines"], strict=True
    ):
        around = [node for node in functions if node.lineno <= line <= (node.end_lineno or 0)]
        if file.endswith("user_program.py") and around and name == around[-1].name:
            assert first_line == around[-1].lineno
            lines.append((name, first_line))
    # Two functions have one name.
    assert {name for name, _ in lines} >= {"forward", "step"}
    assert len({first_line for name, first_line in lines if name == "forward"}) == 2


def test_backward_operators_have_the_line_of_their_forward_operator(
    places: list[tuple[str, str, str, int]],
) -> None:
    by_name = {name: comment for name, _, comment, _ in places}
    assert by_name["MseLossBackward0"] == "loss"
    assert by_name["MulBackward0"] == "mul"
    addmm = {comment for name, _, comment, _ in places if name == "AddmmBackward0"}
    assert addmm == {"linear", "model"}
    assert by_name["aten::ones_like"] == "backward"
    assert by_name["torch::autograd::AccumulateGrad"] == "backward"


def test_python_inside_an_operator_has_its_own_line(
    places: list[tuple[str, str, str, int]],
) -> None:
    comments = {(name, comment) for name, _, comment, _ in places}
    assert ("aten::add", "own forward") in comments
    assert ("DoubleBackward", "loss") in comments


def test_each_operator_has_its_innermost_module(program: ModuleType, opened: Opened) -> None:
    import torch

    with profkit.trace("modules") as t:
        program.step(torch.ones(3, 4), torch.zeros(3, 2))
    lines = opened(t.path)["profkit"]["lines"]
    of_linear = [
        lines["modules"][module]
        for name, module in zip(lines["name"], lines["module"], strict=True)
        if lines["names"][name] == "aten::addmm"
    ]
    assert of_linear == ["Linear_0", "Linear_1"]


def test_columns_have_one_length_and_threads_come_from_the_trace(opened: Opened) -> None:
    import torch

    with profkit.trace("columns") as t:
        torch.ones(3).exp()
    trace = opened(t.path)
    lines = trace["profkit"]["lines"]
    columns = ("name", "parent", "thread", "external_id", "frame", "module")
    assert len({len(lines[column]) for column in columns}) == 1
    events = [e for e in trace["traceEvents"] if e.get("cat") == "cpu_op"]
    assert {e["tid"] for e in events} == set(lines["thread"])
    by_id = {e["args"]["External id"]: e["name"] for e in events}
    for name, external_id in zip(lines["name"], lines["external_id"], strict=True):
        assert by_id[external_id] == lines["names"][name]


def test_user_files_are_outside_libraries(tmp_path: Path) -> None:
    import torch

    files = SourceFiles()
    own_file = tmp_path / "mine.py"
    own_file.write_text("")
    assert files.user_file(str(own_file)) == str(own_file)
    assert files.user_file("torch/nn/modules/linear.py") is None
    assert files.user_file(torch.__file__) is None
    assert files.user_file("typing.py") is None
    assert files.user_file("<frozen importlib._bootstrap>") is None
    assert files.user_file("<string>") is None
    assert files.user_file("<ipython-input-3-abc>") == "<ipython-input-3-abc>"
    assert {"torch", "typing.py"} <= files.libraries
    assert (
        files.user_file(str(Path(profkit.__file__).parent / "capture" / "recording" / "trace.py"))
        is None
    )
    assert in_library(str(tmp_path / "venv" / "site-packages" / "x.py"), library_roots())


def test_a_shortened_name_is_resolved_to_the_users_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "project").mkdir()
    own_file = tmp_path / "project" / "model.py"
    own_file.write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    files = SourceFiles()
    assert files.user_file("project/model.py") == str(own_file)
    assert files.paths == {"project/model.py": str(own_file)}


def test_compiler_generated_code_is_not_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/home/me/cache")
    files = SourceFiles()
    for name in (
        "/tmp/torchinductor_me/ur/cur4rl.py",  # noqa: S108
        "/home/me/cache/ur/cur4rl.py",
        "torch/_functorch/_aot_autograd/subclass_codegen.py:codegen(wrapper)",
    ):
        assert files.user_file(name) is None
    assert files.user_file("/home/me/train.py") == "/home/me/train.py"


class _FreedCode:
    """torch's record of a function whose code was freed: its names are invalid bytes."""

    line_number = 3

    @property
    def file_name(self) -> str:
        raise UnicodeDecodeError("utf-8", b"\xf0", 0, 1, "invalid continuation byte")

    function_name = file_name


def test_a_function_whose_code_was_freed_loses_only_its_own_line() -> None:
    op = SimpleNamespace(
        name="aten::mm",
        children=[],
        start_time_ns=2,
        end_time_ns=3,
        start_tid=1,
        correlation_id=7,
        extra_fields=_ExtraFields_TorchOp(sequence_number=-1, scope="FUNCTION", caller=None),
    )
    call = SimpleNamespace(
        name="gone",
        children=[op],
        start_time_ns=1,
        end_time_ns=4,
        start_tid=1,
        extra_fields=_ExtraFields_PyCall(callsite=_FreedCode(), caller=_FreedCode()),
    )
    recording = SimpleNamespace(tree=lambda: [call], thread_ids=lambda _wanted: {})

    lines = op_lines.lines_of(cast("ProfilerRecording", recording), "run")
    assert lines.ops.name == [0]
    assert lines.ops.frame == [-1]
    assert lines.n_calls == 1


class _ExtraFields_TorchOp(SimpleNamespace):  # noqa: N801  (torch's names)
    pass


class _ExtraFields_PyCall(SimpleNamespace):  # noqa: N801
    pass
