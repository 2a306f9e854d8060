"""The pytest plugin, in the process: limits, baselines, traces, and what else tests do."""

import json
import os
from importlib.metadata import entry_points
from pathlib import Path

import pytest
import torch

import profkit
from profkit.integrations.pytest import recorder
from profkit.integrations.pytest.suite import build_suite
from tests.processes import start, start_forked

pytest_plugins = ["pytester"]

# An environment that was installed before the plugin was has no entry point for it.
PLUGIN = (
    ()
    if entry_points(group="pytest11", name="profkit")
    else ("-p", "profkit.integrations.pytest.plugin")
)

TRAINING = """
import pytest
import torch

def train(reads, n=1):
    weight = torch.ones(64, 64, requires_grad=True)
    for _ in range(n):
        loss = (torch.ones(4, 64) @ weight).sum()
        loss.backward()
        if reads:
            loss.item()
"""


class Suite:
    """A small project whose tests run in this process."""

    def __init__(self, pytester: pytest.Pytester) -> None:
        self.pytester = pytester

    def run(self, tests: str, *arguments: str) -> pytest.RunResult:
        self.pytester.makepyfile(test_it=TRAINING + tests)
        return self.pytester.runpytest_inprocess(*PLUGIN, *arguments)

    @property
    def traces(self) -> list[Path]:
        return sorted(self.pytester.path.rglob("*.pt.trace.json.gz"))


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> None:
    """All modules that recording imports: pytester drops those that a run within it has imported,
    and torch can be imported only once.
    """
    folder = tmp_path_factory.mktemp("first")
    build_suite(None, None, (), 1, folder)
    weight = torch.ones(2, requires_grad=True)
    with profkit.memory("first", dir=folder, quiet=True) as m:
        for _ in profkit.steps(range(8), "first", dir=folder, quiet=True):
            weight.sum().backward()
            m.step()
    with torch.profiler.profile():
        weight.sum().backward()
    with profkit.trace("whole", dir=folder, quiet=True) as t:
        weight.sum().backward()
    assert isinstance(t.report, profkit.Report)
    profkit.render(profkit.check(t.report, {"syncs": 0}), "text")
    assert m.report is not None


@pytest.fixture
def suite(imported: None, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Suite:
    assert imported is None
    monkeypatch.delenv("PROFKIT_DIR", raising=False)
    return Suite(pytester)


def figures(file: Path) -> dict[str, dict[str, int]]:
    """By test the saved figures."""
    saved = json.loads(file.read_text())
    assert saved["schema"] == "profkit.suite/1"
    return {
        nodeid: {name: figure["value"] for name, figure in kept["figures"].items()}
        for nodeid, kept in saved["tests"].items()
    }


def test_it_does_nothing_unless_it_is_used(suite: Suite) -> None:
    result = suite.run("def test_plain(): train(True)")
    result.assert_outcomes(passed=1)
    result.stdout.no_fnmatch_line("*= profkit =*")
    assert suite.traces == []


def test_loading_it_imports_nothing(tmp_path: Path) -> None:
    (tmp_path / "test_plain.py").write_text(
        "import sys\n"
        "def test_plain():\n"
        "    print(*sorted(name for name in sys.modules if name.startswith('profkit')))\n"
        "    print('heavy:', {'torch', 'numpy', 'msgspec', 'click'} & set(sys.modules))\n"
    )
    ended = start(
        tmp_path,
        "-m",
        "pytest",
        *PLUGIN,
        "-q",
        "-s",
        "-p",
        "no:cacheprovider",
        PYTEST_DISABLE_PLUGIN_AUTOLOAD="" if not PLUGIN else "1",
    )

    assert ended.code == 0, ended.out
    assert "heavy: set()" in ended.out

    (loaded,) = [line for line in ended.out.splitlines() if line.startswith("profkit ")]
    assert set(loaded.split()) == {
        "profkit",
        "profkit._version",
        "profkit.integrations",
        "profkit.integrations.pytest",
        "profkit.integrations.pytest.plugin",
    }


def test_a_sync_over_the_limit_fails_with_its_line_and_its_trace(suite: Suite) -> None:
    result = suite.run(
        """
@pytest.mark.profkit(syncs=0)
def test_reads(): train(reads=True)

@pytest.mark.profkit(syncs=0)
def test_does_not(): train(reads=False)
"""
    )
    result.assert_outcomes(failed=1, passed=1)
    result.stdout.fnmatch_lines(
        [
            "Host-device syncs per step: 1, limit 0.",
            "  test_it.py:10: *",
            "profkit analyze traces/test_it.py_test_reads/*.pt.trace.json.gz",
            "*= profkit =*",
            "test *step_ms *syncs *peak *findings",
            "Trace of test_it.py::test_reads: traces/test_it.py_test_reads/*.pt.trace.json.gz",
            "FAILED test_it.py::test_reads - Failed: Host-device syncs per step: 1, limit 0.",
        ]
    )
    (trace,) = suite.traces  # that of the other test is removed, with its folder
    assert [path.name for path in trace.parents[1].iterdir()] == ["test_it.py_test_reads"]


def test_the_configuration_of_the_project_chooses_rules_and_thresholds(suite: Suite) -> None:
    table = "[tool.profkit]\nignore = [{!r}]\n[tool.profkit.thresholds.zeroed-gradients]\n{} = {}\n"
    tests = """
@pytest.mark.profkit(findings="note")
def test_zeroes(profkit_trace):
    weight = torch.ones(512, 512, requires_grad=True)
    optimizer = torch.optim.SGD([weight])
    for _ in profkit_trace.steps(range(4)):
        weight.sum().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
"""
    file = suite.pytester.path / "pyproject.toml"
    file.write_text(table.format("DAT", "min_calls", 2))

    result = suite.run(tests)
    assert (result.ret, suite.traces) == (4, [])

    result.stderr.fnmatch_lines(["*tool.profkit.thresholds.zeroed-gradients has an *"])
    file.write_text(table.format("DAT", "min_time_share", 0))
    suite.run(tests).assert_outcomes(failed=1)

    file.write_text(table.format("DAT", "min_time_share", 2))
    suite.run(tests).assert_outcomes(passed=1)
    file.write_text(table.format("zeroed-gradients", "min_time_share", 0))
    suite.run(tests).assert_outcomes(passed=1)


@pytest.mark.slow
def test_steps_of_a_loop_are_limited_each(suite: Suite) -> None:
    result = suite.run(
        """
@pytest.mark.profkit(syncs=2, step_ms=60_000, findings={"error": 0})
def test_loop(profkit_trace):
    for batch in profkit_trace.steps(range(5)):
        train(reads=True, n=2)

@pytest.mark.profkit(syncs=2)
def test_block(profkit_trace):
    train(reads=True, n=9)  # outside
    with profkit_trace(warmup=2, active=3) as t:
        for _ in range(6):
            train(reads=True, n=2)
            t.step()
    assert {step.n_syncs for step in t.report.summary.steps} == {2}
""",
        "--profkit-save=kept.json",
    )
    result.assert_outcomes(passed=2)
    saved = figures(suite.pytester.path / "kept.json")
    assert {nodeid: figures["syncs"] for nodeid, figures in saved.items()} == {
        "test_it.py::test_block": 2,
        "test_it.py::test_loop": 2,
    }
    assert suite.traces == []


@pytest.mark.slow
def test_growth_is_monitored_over_the_steps_and_has_the_line(suite: Suite) -> None:
    result = suite.run(
        """
held = []

@pytest.mark.profkit(growth=0)
@pytest.mark.parametrize("leaks", [True, False])
def test_memory(profkit_trace, leaks):
    for batch in profkit_trace.steps(range(30)):
        sample = torch.ones(256, 256)
        if leaks:
            held.append(sample)

def test_end(): held.clear()
"""
    )
    result.assert_outcomes(failed=1, passed=2)
    result.stdout.fnmatch_lines(
        [
            "Memory growth per step: * KiB, limit 0 B.",
            "  test_it.py:18: *allocated at test_it.py:18 and retained by `test_it.held` (list)*",
            "FAILED test_it.py::test_memory[[]True[]] - *",
        ]
    )


@pytest.mark.slow
def test_a_baseline_is_saved_compared_and_enforced(suite: Suite) -> None:
    train = "def test_train(): train(reads=False, n={})"
    reads = "def test_train(): train(reads=True, n={})"
    arguments = ("--profkit", "--profkit-compare=kept.json")
    suite.run(train.format(2), "--profkit", "--profkit-save=kept.json").assert_outcomes(passed=1)

    before = figures(suite.pytester.path / "kept.json")["test_it.py::test_train"]
    assert (before["syncs"], before["peak"] > 0) == (0, True)
    shown = suite.run(reads.format(2), *arguments)
    shown.assert_outcomes(passed=1)

    # Without source lines, reads on a CPU are counted and no finding.
    shown.stdout.fnmatch_lines(["test_it.py::test_train *2 (was 0) *(=) *0"])
    failed = suite.run(
        reads.format(2), *arguments, "--profkit-fail=peak:5%", "--profkit-fail=syncs:0"
    )
    failed.assert_outcomes(failed=1)

    failed.stdout.fnmatch_lines(["Host-device syncs per step: 2, limit 0, baseline 0."])
    more = suite.run("def test_other(): train(True)", *arguments, "--profkit-fail=syncs:0")
    more.assert_outcomes(passed=1)

    more.stdout.fnmatch_lines(["1 limit of 1 test not compared: they are not in the baseline. *"])
    suite.run("def test_other(): train(True)", "--profkit", "--profkit-save=kept.json")
    saved = figures(suite.pytester.path / "kept.json")  # those of other tests stay
    assert [figures["syncs"] for figures in saved.values()] == [1, 0]


@pytest.mark.slow
def test_marks_can_be_relative_to_the_file_of_the_configuration(suite: Suite) -> None:
    suite.pytester.makeini(
        "[pytest]\nprofkit_compare = kept.json\nprofkit_dir = build/traces\nprofkit_top = 1"
    )
    text = """
@pytest.mark.profkit(peak="+20%")
@pytest.mark.parametrize("n", [{}, {}], ids=["first", "second"])
def test_train(n):
    (torch.ones(n) + 1).sum()
"""

    first = suite.run(text.format(1000, 1000), "--profkit-save=kept.json")
    first.assert_outcomes(passed=2)

    first.stdout.fnmatch_lines(["The 1 slowest of 2 recorded tests."])
    peak = figures(suite.pytester.path / "kept.json")["test_it.py::test_train[first]"]["peak"]
    assert 2 * 4 * 1000 <= peak < 3 * 4 * 1000  # two tensors of floats

    failed = suite.run(text.format(2000, 1100))
    failed.assert_outcomes(failed=1, passed=1)
    failed.stdout.fnmatch_lines(
        [
            "Peak memory: 15.* KiB, limit 9.* KiB, baseline 7.* KiB.",
            "  test_it.py:15: 15.* KiB in * blocks of the 15.* KiB.",
        ]
    )
    assert suite.traces[0].is_relative_to(suite.pytester.path / "build" / "traces")


def test_invalid_marks_are_errors_of_the_collection(suite: Suite) -> None:
    result = suite.run(
        """
@pytest.mark.profkit(syncs=-1)
def test_negative(): pass
@pytest.mark.profkit(sink=1)
def test_unknown(): pass
@pytest.mark.profkit("fast")
def test_unnamed(): pass
@pytest.mark.profkit(findings="slow")
def test_rule(): pass
"""
    )

    result.assert_outcomes(errors=1)

    where = "test_it.py::test_{}: @pytest.mark.profkit"
    result.stdout.fnmatch_lines(
        [
            where.format("negative") + ": syncs must be a limit, not -1. Write 0,*",
            where.format("unknown") + ": there is no budget 'sink'. Budgets are step_ms,*",
            where.format("unnamed") + " takes limits by name, not 'fast'. Write*syncs=0.",
            "*test_rule: @pytest.mark.profkit: findings: there is no severity or rule 'slow'*",
        ]
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--profkit-fail=gpu_ms:5%",), "*--profkit-fail needs the figures of an earlier run.*"),
        (("--profkit-compare=absent.json",), "*absent.json*"),
        (("--profkit-save=absent/kept.json",), "*There is no folder *absent*"),
        (("--profkit-fail=gpu:5%", "--profkit-save=k.json"), "*there is no budget 'gpu'*"),
        (
            ("--profkit-fail=gpu_ms", "--profkit-save=k.json"),
            "*--profkit-fail=gpu_ms is not valid*",
        ),
    ],
)
def test_invalid_options_are_usage_errors(
    suite: Suite, arguments: tuple[str, ...], message: str
) -> None:
    result = suite.run("def test_x(): pass", *arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([message])


@pytest.mark.slow
def test_the_closest_mark_counts_and_classes_have_marks(suite: Suite) -> None:
    result = suite.run(
        """
import unittest

@pytest.mark.profkit(syncs=0)
class TestReads:
    @pytest.mark.profkit(syncs=1)
    def test_once(self): train(reads=True)
    def test_none(self): train(reads=True)

@pytest.mark.profkit(syncs=0)
class TestCase(unittest.TestCase):
    def test_none(self): train(reads=True)
"""
    )
    result.assert_outcomes(passed=1, failed=2)


@pytest.mark.slow
def test_other_outcomes_of_tests_are_unchanged(suite: Suite) -> None:
    result = suite.run(
        """
pytestmark = pytest.mark.profkit(syncs=0)

def test_skips(): pytest.skip("why")
@pytest.mark.skip
def test_is_skipped(): pass
@pytest.mark.xfail(reason="known", strict=True)
def test_known(): train(reads=True)
@pytest.mark.xfail(raises=ValueError)
def test_known_error(): raise ValueError
def test_raises():
    train(reads=False)
    raise KeyError("the test's own")
@pytest.fixture
def broken(): raise RuntimeError("in the setup")
def test_set_up(broken): train(reads=True)
"""
    )
    result.assert_outcomes(skipped=2, xfailed=2, failed=1, errors=1)
    result.stdout.fnmatch_lines(['*KeyError: "the test\'s own"'])
    assert [trace.parent.name for trace in suite.traces] == ["test_it.py_test_raises"]


def test_a_profiler_of_the_test_has_precedence(suite: Suite) -> None:
    result = suite.run(
        """
@pytest.mark.profkit(syncs=0)
def test_profiles():
    with torch.profiler.profile() as p:
        train(reads=True)
    assert any(each.key == "aten::item" for each in p.key_averages())
"""
    )
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["Not recorded: test_it.py::test_profiles: it uses a profiler*"])


def test_limits_without_a_recording_fail_the_test(suite: Suite) -> None:
    result = suite.run(
        "@pytest.mark.profkit(syncs=0)\ndef test_x(profkit_trace): train(reads=True)"
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["The test has limits, but records nothing: use profkit_trace()*"])


def test_what_cannot_be_analyzed_fails_no_test(
    suite: Suite, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_arguments: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(recorder, "study", broken)
    result = suite.run("@pytest.mark.profkit(syncs=0)\ndef test_x(): train(reads=True)")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["Not recorded: test_it.py::test_x: OSError: no space left."])


def test_all_traces_are_kept_on_request(suite: Suite) -> None:
    result = suite.run(
        "def test_x(): train(False)", "--profkit", "--profkit-keep", "--profkit-dir=kept"
    )
    result.assert_outcomes(passed=1)
    (trace,) = suite.traces
    assert trace.is_relative_to(suite.pytester.path / "kept")
    assert len(profkit.analyze(trace).summary.steps) == 1


@pytest.mark.slow
def test_a_test_that_runs_again_keeps_its_last_traces(suite: Suite) -> None:
    suite.pytester.makeconftest(
        """
from _pytest.runner import runtestprotocol

def pytest_runtest_protocol(item, nextitem):
    for log in (False, True):
        runtestprotocol(item, nextitem=nextitem, log=log)
    return True
"""
    )
    result = suite.run("@pytest.mark.profkit(syncs=0)\ndef test_x(): train(reads=True)")
    result.assert_outcomes(failed=1)
    (trace,) = suite.traces
    result.stdout.fnmatch_lines([f"*{trace.name}"])


STEPS = """
import pytest
import torch
from torch import nn

torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, foreach=True)
held = []
n_calls = 0

def train_step():
    optimizer.zero_grad()
    loss = model(torch.ones(8, 16)).square().mean()
    loss.backward()
    optimizer.step()
    return loss

@pytest.mark.profkit(syncs=0, growth=0)
def test_one_step(): train_step()

@pytest.mark.profkit(syncs=0, growth=0)
def test_many_steps():
    for _ in range(20):
        train_step()

@pytest.mark.profkit(syncs=0, growth=0)
def test_one_step_grows(): held.append(train_step())

@pytest.mark.profkit(syncs=0, growth=0)
def test_many_steps_grow():
    kept = []
    for _ in range(20):
        kept.append(train_step())

@pytest.mark.profkit(syncs=0, growth=0)
def test_one_step_reads(): train_step().item()

@pytest.mark.profkit(growth=0)
def test_only_growth_of_one_step(): held.append(torch.ones(100_000))

@pytest.mark.profkit(syncs=0, growth=0)
def test_once_only():
    global n_calls
    n_calls += 1
    assert n_calls == 1
"""


def test_limits_of_syncs_and_growth_hold_together_for_steps_and_for_single_calls(
    tmp_path: Path,
) -> None:
    (tmp_path / "test_steps.py").write_text(STEPS)
    ended = start_forked(
        tmp_path,
        "-m",
        "pytest",
        *PLUGIN,
        "-p",
        "no:cacheprovider",
        PYTEST_DISABLE_PLUGIN_AUTOLOAD="" if not PLUGIN else "1",
    )

    outcomes = dict(
        line.split(" ")[1::-1] for line in ended.out.splitlines() if line.startswith("FAILED ")
    )
    assert "5 failed, 2 passed" in ended.out, ended.out
    assert {name.partition("::")[2] for name in outcomes} == {
        "test_one_step_grows",
        "test_many_steps_grow",
        "test_one_step_reads",
        "test_only_growth_of_one_step",
        "test_once_only",
    }
    assert "retained by `test_steps.held` (list" in ended.out
    assert "retained by `kept` in test_many_steps_grow at test_steps.py" in ended.out
    assert "Host-device syncs per step: 1, limit 0." in ended.out
    assert (
        "Memory growth per step is not known. The test was called again to monitor its memory, and "
        "raised AssertionError" in ended.out
    )


def test_the_plugin_loads_without_what_only_recent_versions_of_pytest_have(tmp_path: Path) -> None:
    (tmp_path / "test_plain.py").write_text("def test_plain(): pass\n")
    (tmp_path / "reporter.py").write_text(
        "import pytest\nvars(pytest).pop('TerminalReporter', None)\n"
    )
    (tmp_path / "wrapper.py").write_text(
        "import pytest\n"
        "class Marker(type(pytest.hookimpl)):\n"
        "    def __call__(self, function=None, hookwrapper=False, optionalhook=False,\n"
        "                 tryfirst=False, trylast=False):\n"
        "        return super().__call__(function, hookwrapper, optionalhook, tryfirst, trylast)\n"
        "pytest.hookimpl = Marker('pytest')\n"
    )

    for older in ("reporter", "wrapper"):
        ended = start(
            tmp_path,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-p",
            older,
            "-p",
            "profkit.integrations.pytest.plugin",
            PYTEST_DISABLE_PLUGIN_AUTOLOAD="1",
            PYTHONPATH=os.pathsep.join([str(tmp_path), str(Path(profkit.__file__).parents[1])]),
        )
        assert ended.code == 0, ended.out + ended.err
        assert "1 passed" in ended.out
