"""The plugin that pytest loads: its options, the mark ``profkit``, the fixture ``profkit_trace``.

It is imported with every run of pytest, so it imports nothing until a test or an option uses it.

With pytest-xdist, tests are recorded and compared in the workers. The figures travel to the
controller as an attribute of each test's report; the controller shows and saves them.

It is also imported with every version of pytest that is installed, so nothing at its top level may
need a recent one: with pluggy before 1.2, which has no ``wrapper`` hooks, the plugin is off.

Source: ``pytest_runtest_makereport``, ``pytest_make_collect_report`` and ``TestReport._to_json``,
which sends every attribute of a report, in pytest 7.0 to 9.0.
"""

import contextlib
import inspect
import os
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import pytest

if TYPE_CHECKING:
    from _pytest.terminal import TerminalReporter

    from profkit.integrations.pytest.recorder import Recorder
    from profkit.integrations.pytest.suite import Suite

Hook = TypeVar("Hook", bound=Callable[..., Any])

_MARK: Final = "profkit"
_FIXTURE: Final = "profkit_trace"
_recorder: Final = pytest.StashKey["Recorder"]()
_plugin: Final = pytest.StashKey["_Plugin"]()
_HAS_WRAPPERS: Final = "wrapper" in inspect.signature(type(pytest.hookimpl).__call__).parameters
"""Whether this pluggy has hooks that wrap others as a generator's ``yield`` does."""


def _wrapper(*, first: bool = False, last: bool = False) -> Callable[[Hook], Hook]:
    """Mark a hook that wraps the hooks of other plugins; a plain function without such hooks."""
    if not _HAS_WRAPPERS:
        return lambda hook: hook
    return pytest.hookimpl(wrapper=True, tryfirst=first, trylast=last)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of the command line and of the configuration file."""
    # argparse formats help texts by %: a percent sign is doubled.
    group = parser.getgroup("profkit", "profkit: what tests cost")
    group.addoption(
        "--profkit",
        action="store_true",
        help="Record every test, not only tests with the mark profkit or the fixture "
        "profkit_trace.",
    )
    group.addoption(
        "--profkit-save", metavar="FILE", help="Write the figures of the recorded tests to FILE."
    )
    group.addoption(
        "--profkit-compare",
        metavar="FILE",
        help="Compare with the figures in FILE, which --profkit-save wrote.",
    )
    group.addoption(
        "--profkit-fail",
        metavar="FIGURE:MORE",
        action="append",
        help="Fail a test if a figure exceeds its value in the compared FILE by more than MORE, "
        "such as gpu_ms:5%% or syncs:0; can be repeated.",
    )
    group.addoption(
        "--profkit-dir",
        metavar="DIR",
        help="Folder for the traces of failed tests; by default $PROFKIT_DIR, else traces.",
    )
    group.addoption("--profkit-keep", action="store_true", help="Keep all traces.")
    group.addoption(
        "--profkit-top", metavar="N", type=int, help="Number of tests in the summary; default 10."
    )

    parser.addini("profkit", "Record every test.", "bool", default=False)
    parser.addini("profkit_compare", "As --profkit-compare, relative to the rootdir.")
    parser.addini("profkit_fail", "As --profkit-fail, one on each line.", "linelist")
    parser.addini("profkit_dir", "As --profkit-dir, relative to the rootdir.")
    parser.addini("profkit_top", "As --profkit-top.", default="10")


def pytest_configure(config: pytest.Config) -> None:
    """Describe the mark, and register what records."""
    config.addinivalue_line(
        "markers",
        f"{_MARK}(step_ms, gpu_ms, kernels, syncs, graph_breaks, recompiles, peak, growth, "
        "findings): record the test, and fail it if a figure exceeds its limit.",
    )
    if not _HAS_WRAPPERS:
        return

    plugin = _Plugin(config)
    plugin.check_options()
    config.stash[_plugin] = plugin
    config.pluginmanager.register(plugin, "profkit-recording")


@pytest.fixture
def profkit_trace(request: pytest.FixtureRequest) -> "Recorder":
    """Record blocks and loops of a test, instead of the whole test.

    ::

        def test_training(profkit_trace):
            for batch in profkit_trace.steps(loader):
                train_step(batch)
    """
    if not _HAS_WRAPPERS:
        pytest.fail("profkit_trace needs pluggy 1.2 or newer.", pytrace=False)
    recorder = _new_recorder(request.node)
    request.node.stash[_recorder] = recorder
    return recorder


def _new_recorder(item: pytest.Item) -> "Recorder":
    from profkit.integrations.pytest.recorder import Recorder

    earlier = item.stash.get(_recorder, None)
    if earlier is not None:  # the test runs again: the traces of the last run are those that count
        earlier.remove_files()
    return Recorder(item.nodeid, _folder(item.config), item.config.stash[_plugin].suite.options)


def _folder(config: pytest.Config) -> Path:
    """Return the folder for traces; absolute, since tests change the working directory."""
    named = _path(config, "profkit_dir")
    return named or config.invocation_params.dir / (os.environ.get("PROFKIT_DIR") or "traces")


def _path(config: pytest.Config, name: str) -> Path | None:
    """Return the path of an option, or of the configuration file relative to the rootdir."""
    from_option: str | None = config.getoption(name)
    if from_option:
        return config.invocation_params.dir / from_option
    from_file: str = config.getini(name)
    return config.rootpath / from_file if from_file else None


def _records_itself(item: pytest.Item) -> bool:
    return _FIXTURE in getattr(item, "fixturenames", ())


class _Plugin:
    """Records the tests of one run of pytest, and collects their figures."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._read: Suite | None = None
        self._results: dict[str, Any] = {}
        self._has_folder = _folder(config).exists()

    def check_options(self) -> None:
        """Read the limits and the baseline, if there are any.

        Raises:
            pytest.UsageError: An option is not valid, or a file cannot be read or written.
        """
        is_saved = self._config.getoption("profkit_save")
        if self._limits_text() or is_saved or _path(self._config, "profkit_compare"):
            self._read_suite()

    @_wrapper()
    def pytest_make_collect_report(
        self,
    ) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        """Report marks with invalid limits as errors of the collection."""
        report = yield

        marked = [
            item
            for item in report.result or ()
            if isinstance(item, pytest.Item) and item.get_closest_marker(_MARK)
        ]
        # Without marks, a run of pytest imports nothing of profkit.
        if marked:
            from profkit.integrations.pytest.suite import find_invalid_marks

            errors = find_invalid_marks(marked)
            if errors:
                report.outcome, report.longrepr, report.result = "failed", errors, []
        return report

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Read ``[tool.profkit]`` if a test is recorded, so that an error in it ends the run.

        Raises:
            pytest.UsageError: The configuration is not valid.
        """
        if any(map(self._records, session.items)):
            _ = self.suite

    @_wrapper(last=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        """Record a test, inside of what other plugins do, and compare it with its limits."""
        is_whole = not _records_itself(item)
        if is_whole and self._records(item):
            item.stash[_recorder] = _new_recorder(item)
        recorder = item.stash.get(_recorder, None)
        if recorder is None:
            return (yield)

        suite = self.suite
        limits = suite.limits_of(item)
        with recorder.recording(limits, item.runtest if is_whole else None):
            value = yield

        failure = recorder.evaluate(limits, suite.before(item.nodeid))
        if failure:
            pytest.fail(failure, pytrace=False)
        return value

    @_wrapper(first=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Attach the figures, and keep the traces of a test that failed; remove the others."""
        report = yield
        recorder = item.stash.get(_recorder, None) if call.when == "call" else None
        if recorder is not None:
            is_kept = report.failed or self._config.getoption("profkit_keep")
            vars(report)[_MARK] = recorder.result(is_kept=bool(is_kept))
            if report.failed and recorder.files:
                report.sections.append(("profkit", recorder.next_command))
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Collect the figures of a test; the controller collects them from the workers."""
        result = vars(report).get(_MARK)
        if result is not None:
            self._results[report.nodeid] = result

    def pytest_terminal_summary(self, terminalreporter: "TerminalReporter") -> None:
        """Save the figures and show them."""
        if self._results:
            self.suite.summarize(self._results, terminalreporter)
            if not self._has_folder:
                with contextlib.suppress(OSError):  # the traces of failed tests are in it
                    _folder(self._config).rmdir()

    def _records(self, item: pytest.Item) -> bool:
        """Return whether a test is recorded."""
        return bool(
            _records_itself(item)
            or self._config.getoption("profkit")
            or self._config.getini("profkit")
            or item.get_closest_marker(_MARK)
        )

    @property
    def suite(self) -> "Suite":
        """Return the limits and the baseline, read at the first use."""
        return self._read or self._read_suite()

    def _read_suite(self) -> "Suite":
        from profkit.integrations.pytest.suite import build_suite

        top = self._config.getoption("profkit_top") or self._config.getini("profkit_top")
        saved: str | None = self._config.getoption("profkit_save")
        self._read = build_suite(
            _path(self._config, "profkit_compare"),
            self._config.invocation_params.dir / saved if saved else None,
            self._limits_text(),
            top,
            self._config.rootpath,
        )
        return self._read

    def _limits_text(self) -> list[str]:
        from_options: list[str] = self._config.getoption("profkit_fail")
        return from_options or list(self._config.getini("profkit_fail"))
