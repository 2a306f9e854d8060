"""``%%profkit`` in a real IPython shell: cells behave as without it, and have a report."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from traitlets.config import Config

import profkit
from profkit.capture.recording import current
from profkit.integrations import notebook
from profkit.model.live_memory import LiveMemory
from profkit.model.report import Report
from profkit.testing import TraceBuilder
from tests.docs.blocks import ROOT, blocks
from tests.step_counts import count_steps

SETUP = """import torch
net = torch.nn.Linear(8, 8)
batch = torch.randn(4, 8)
"""


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InteractiveShell]:
    folder = tmp_path_factory.mktemp("ipython")
    config = Config()
    config.HistoryManager.enabled = False
    made = InteractiveShell.instance(config=config, ipython_dir=str(folder), colors="nocolor")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PROFKIT_DIR", str(folder / "traces"))
        made.run_cell("%load_ext profkit", store_history=True)
        made.run_cell(SETUP, store_history=True)
        yield made
    InteractiveShell.clear_instance()


def ran(shell: InteractiveShell, cell: str) -> tuple[Any, Any]:
    """Return the result of a cell, and its output."""
    with capture_output() as seen:
        result = shell.run_cell(cell, store_history=True)
    return result, seen


CELLS = {
    "a value": "a = 1\na + 1",
    "a quiet value": "a = 1\na + 1;",
    "an assignment": "b = 5",
    "output and a value": "print('words')\n'value'",
    "a line magic and a shell's help": "%who_ls int\n7",
    "nothing but a comment": "# nothing",
    "a function and an error": "def f():\n    return 1 / 0\n\nf()",
    "an exit": "raise SystemExit(3)",
    "a name that is not there": "print('first')\nmissing",
}


@pytest.mark.filterwarnings("ignore:To exit")
@pytest.mark.parametrize("cell", CELLS.values(), ids=CELLS)
def test_a_cell_behaves_as_without(shell: InteractiveShell, cell: str) -> None:
    shell.user_ns.pop("_", None)  # IPython leaves it alone once a cell has assigned it
    plain, seen_plain = ran(shell, cell)
    profiled, seen = ran(shell, f"%%profkit --quiet\n{cell}")
    assert type(profiled.error_in_exec) is type(plain.error_in_exec)
    assert str(profiled.error_in_exec) == str(plain.error_in_exec)
    assert profiled.success == plain.success
    assert profiled.result == plain.result
    if plain.success:
        numbers = (str(shell.execution_count - 2), str(shell.execution_count - 1))
        assert seen.stdout.replace(numbers[1], numbers[0]) == seen_plain.stdout
    if plain.result is not None:
        assert shell.user_ns["_"] == plain.result
        assert shell.user_ns["Out"][shell.execution_count - 1] == plain.result


def test_an_error_is_shown_with_the_lines_of_the_cell_alone(
    shell: InteractiveShell,
) -> None:
    result, seen = ran(shell, "%%profkit -q\n\ndef f():\n    return 1 / 0\n\nf()")
    assert isinstance(result.error_in_exec, ZeroDivisionError)
    assert f"Cell In[{shell.execution_count - 1}], line 4" in seen.stdout
    assert "----> 4     return 1 / 0" in seen.stdout
    assert "notebook.py" not in seen.stdout


def places_of_lines(report: Report) -> set[str]:
    return {line.location.place for line in report.summary.lines}


def test_the_report_follows_with_source_lines_named_by_cell(shell: InteractiveShell) -> None:
    result, seen = ran(
        shell, "%%profkit -o kept\n\nfor _ in range(3):\n    net(batch).sum().item()"
    )
    assert result.success

    number = shell.execution_count - 1
    (shown,) = seen.outputs
    assert f"In [{number}]:4" in shown.data["text/html"]
    assert f"In [{number}]:4" in shown.data["text/plain"]
    assert "<script" not in shown.data["text/html"]
    assert "http" not in shown.data["text/html"]

    recording = shell.user_ns["kept"]
    assert Path(recording.path).is_file()
    assert f"In [{number}]:4" in places_of_lines(recording.report)


def test_a_cell_is_recorded_each_time_it_runs(shell: InteractiveShell) -> None:
    paths = set()
    for _ in range(5):
        ran(shell, "%%profkit -q -o kept --name again\nnet(batch)")
        paths.add(shell.user_ns["kept"].path)
    assert len(paths - {None}) == 5


def test_a_block_in_a_changed_cell_has_the_lines_of_the_new_cell(
    shell: InteractiveShell,
) -> None:
    for blank in ("", "\n\n"):
        cell = (
            f"{blank}with profkit.trace('block', quiet=True) as kept:\n    net(batch).sum().item()"
        )
        result, _ = ran(shell, f"import profkit\n{cell}")
        assert result.success
        place = f"In [{shell.execution_count - 1}]:{3 + len(blank)}"
        assert place in places_of_lines(shell.user_ns["kept"].report)


@pytest.mark.slow
def test_a_block_in_a_cell_is_recorded_each_time_the_cell_runs(shell: InteractiveShell) -> None:
    paths = set()
    for _ in range(5):
        cell = "import profkit\nwith profkit.trace('often', quiet=True) as kept:\n    net(batch)"
        ran(shell, cell)
        paths.add(shell.user_ns["kept"].path)
    assert len(paths - {None}) == 5


def test_a_recording_is_displayed_as_its_report_or_the_reason_for_none(
    shell: InteractiveShell,
) -> None:
    result, _ = ran(shell, "import profkit\nt = profkit.trace('shown', quiet=True)\nt")
    assert "“shown”: nothing recorded yet" in result.result._repr_html_()
    result, _ = ran(shell, "with t:\n    net(batch)\n    inside = t._repr_html_()\nt")
    assert "open" in shell.user_ns["inside"]
    assert '<div class="profkit-report">' in result.result._repr_html_()
    Path(result.result.path).unlink()
    t = shell.user_ns["t"]
    t._report = None
    assert "There is no file" in t._repr_html_()


def test_a_failing_cell_is_recorded(shell: InteractiveShell) -> None:
    result, seen = ran(shell, "%%profkit -o kept\nnet(batch)\nraise ValueError('no')")
    assert isinstance(result.error_in_exec, ValueError)
    assert "aten::addmm" in seen.outputs[0].data["text/plain"]
    assert shell.user_ns["kept"].path is not None


def test_a_statement_is_recorded(shell: InteractiveShell) -> None:
    result, seen = ran(shell, "%profkit net(batch).sum();")
    assert result.success
    assert "aten::sum" in seen.outputs[0].data["text/plain"]


def test_memory_is_monitored_over_steps(shell: InteractiveShell) -> None:
    cell = """%%profkit --memory
optimizer = torch.optim.SGD(net.parameters(), 1e-3)
for _ in range(12):
    net(batch).sum().backward()
    optimizer.step()"""
    result, seen = ran(shell, cell)
    assert result.success
    assert "12 steps" in " ".join(seen.outputs[0].data["text/plain"].split())


def n_monitored(shell: InteractiveShell) -> int:
    """Return the number of steps over which the memory of the last cell was monitored."""
    live = profkit.load(shell.user_ns["kept"].memory)
    assert isinstance(live, LiveMemory)
    return live.n_steps


LOOP = """%%profkit -o kept
losses = []
optimizer = torch.optim.SGD(net.parameters(), 1e-3)
for _ in range({n}):
    optimizer.zero_grad()
    loss = net(batch).square().mean()
    loss.backward()
    optimizer.step()
    {after}"""


@pytest.mark.parametrize("n", [1, 2, 3, 4, 40])
def test_the_steps_of_a_cell_follow_its_optimizer(shell: InteractiveShell, n: int) -> None:
    result, seen = ran(shell, LOOP.format(n=n, after="pass"))
    assert result.success
    report = shell.user_ns["kept"].report
    if n == 40:
        assert count_steps(report.summary) == 3
        steps = {"ProfilerStep#2", "ProfilerStep#3", "ProfilerStep#4"}
        assert {step.name for step in report.summary.steps} <= steps
        assert n_monitored(shell) == 40
        assert not [finding for finding in report.findings if finding.rule.startswith("MEM")]
    else:  # with fewer than four, the cell itself is what is reported
        assert count_steps(report.summary) == (2 if n == 4 else 1)
        assert "no complete step" not in seen.outputs[0].data["text/plain"]


def test_a_leak_of_a_cell_is_found_without_an_option(shell: InteractiveShell) -> None:
    result, _ = ran(shell, LOOP.format(n=40, after="losses.append(loss + torch.zeros(10_000))"))
    assert result.success
    (leak,) = [
        finding for finding in shell.user_ns["kept"].report.findings if finding.rule == "MEM004"
    ]
    assert "retained by `losses`" in leak.message
    ran(shell, "losses.clear()")


def test_steps_that_a_cell_marks_are_its_steps(shell: InteractiveShell) -> None:
    cell = """%%profkit -o kept
import profkit
for _ in profkit.steps(range(20), "loop"):
    net(batch)"""
    result, _ = ran(shell, cell)
    assert result.success
    assert count_steps(shell.user_ns["kept"].report.summary) == 3
    assert n_monitored(shell) == 20


def test_a_cell_leaves_its_optimizer_as_it_was(shell: InteractiveShell) -> None:
    ran(shell, LOOP.format(n=8, after="pass"))
    assert "step" not in vars(shell.user_ns["optimizer"])
    assert current.step_listeners == []


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        ("%profkit", "nothing to record"),
        ("%%profkit net(batch)\n1", "remove 'net(batch)' from its line"),
        ("%%profkit\nawait something()", "with profkit.trace()"),
        ("%%profkit --wrong\n1", "unrecognized arguments"),
    ],
)
def test_invalid_uses_have_an_error_message(
    shell: InteractiveShell, cell: str, message: str
) -> None:
    result, seen = ran(shell, cell)
    assert not result.success
    assert message in seen.stdout + seen.stderr


def test_invalid_python_is_a_syntax_error_of_the_cell(shell: InteractiveShell) -> None:
    result, _ = ran(shell, "%%profkit\n1 1")
    assert isinstance(result.error_in_exec, SyntaxError)
    assert result.error_in_exec.lineno == 2


def test_an_await_within_a_function_is_allowed(shell: InteractiveShell) -> None:
    cell = """%%profkit -q
import asyncio
async def later():
    await asyncio.sleep(0)
    return 3
coroutine = later()
coroutine.close()
4"""
    result, _ = ran(shell, cell)
    assert result.result == 4


def test_with_profiling_off_it_only_runs_the_cell(
    shell: InteractiveShell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("profkit.capture.recording.current.state.is_on", False)
    result, seen = ran(shell, "%%profkit -o kept\nnet(batch).shape[0]")
    assert result.result == 4
    assert seen.outputs[-1:] == [] or "profkit" not in str(seen.outputs[-1].data)
    assert "recording is off" in repr(shell.user_ns["kept"])


@pytest.mark.parametrize(
    ("interactivity", "cell", "value"),
    [
        ("last_expr_or_assign", "c = 8", 8),
        ("none", "8", None),
        ("last_expr", "if True:\n    8", None),
    ],
)
def test_the_shells_setting_for_displayed_values_applies(
    shell: InteractiveShell, interactivity: str, cell: str, value: object
) -> None:
    before = shell.ast_node_interactivity
    shell.ast_node_interactivity = interactivity
    try:
        result, _ = ran(shell, f"%%profkit -q\n{cell}")
    finally:
        shell.ast_node_interactivity = before
    assert result.result == value


def test_files_of_cells_are_named_by_cell(
    shell: InteractiveShell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = "/tmp/ipykernel_17/2563.py"  # noqa: S108  (how a kernel names a cell; nothing is opened)
    monkeypatch.setitem(shell.compile._filename_map, file, 9)
    b = TraceBuilder()
    for _ in range(3):
        with b.step(), b.frame(file, 5, "loop"):
            b.load(9_000_000)
    report = notebook.with_cell_names(profkit.analyze(b.write(tmp_path / "t.json")))
    (finding,) = report.findings
    assert "In [9]:" in finding.locations[0].place
    assert "2563" not in str(report)


@pytest.mark.usefixtures("shell")
def test_other_files_are_unchanged(tmp_path: Path) -> None:
    b = TraceBuilder()
    for _ in range(3):
        with b.step(), b.frame("/home/me/train.py", 5, "loop"):
            b.load(9_000_000)
    report = profkit.analyze(b.write(tmp_path / "t.json"))
    assert notebook.with_cell_names(report) == report


def test_the_cells_of_the_notebooks_page_run(shell: InteractiveShell) -> None:
    ran(shell, "model = net\nbatches = [batch] * 3")
    every = [block.text for block in blocks("docs/notebooks.md", "ipython")]
    assert any(cell.startswith("%%profkit") for cell in every)
    for cell in every:
        result, seen = ran(shell, cell)
        assert result.success
        if cell.startswith("%%"):
            assert "aten::addmm" in seen.outputs[0].data["text/plain"]


def test_every_option_of_the_magic_is_on_the_notebooks_page() -> None:
    page = (ROOT / "docs/notebooks.md").read_text()
    actions = notebook.ProfkitMagics.profkit.parser._actions
    named = {
        option for action in actions for option in action.option_strings if option.startswith("--")
    }
    assert named == set(re.findall(r"^\| `(--\w+)", page, re.MULTILINE))
