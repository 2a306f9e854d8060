"""The routes of the tab answer at once, by opaque ids, and safely."""

import json
import os
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tensorboard.plugins import base_plugin
from werkzeug.test import Client, TestResponse

import profkit
from profkit.comparison.messages import summarize_difference
from profkit.integrations.tensorboard.cache import ResultCache
from profkit.integrations.tensorboard.discovery import LogRoot
from profkit.integrations.tensorboard.plugin import Loader, ProfkitPlugin
from tests.tensorboard.recordings import STEPS, build_gpu_training, write_gpu_training
from tests.tensorboard.server import serving

HOSTILE = "<img src=x onerror=alert(1)>"


class Tab:
    """A plugin with the requests of a browser."""

    def __init__(self, plugin: ProfkitPlugin) -> None:
        self.plugin = plugin
        self._routes = {path: Client(app) for path, app in plugin.get_plugin_apps().items()}

    @classmethod
    def of(cls, folder: Path, cache: Path) -> "Tab":
        context = base_plugin.TBContext(logdir=str(folder))
        return cls(ProfkitPlugin(context, (LogRoot(str(folder)),), ResultCache(cache)))

    def get(self, route: str, **query: str) -> TestResponse:
        return self._routes[f"/{route}"].get("/", query_string=query)

    def ask(self, route: str, **query: str) -> Any:  # noqa: ANN401  (each route has its own)
        return json.loads(self.get(route, **query).data)

    def settled(self, route: str, **query: str) -> Any:  # noqa: ANN401
        """Return the answer of a route once its task is finished."""
        deadline = time.monotonic() + 120
        while (answer := self.ask(route, **query))["stage"] in {"queued", "analyzing", "waiting"}:
            assert time.monotonic() < deadline, answer
            time.sleep(0.05)
        return answer

    def recordings(self) -> dict[str, Any]:
        """Return the recordings by run and name, once the folder has been scanned."""
        deadline = time.monotonic() + 60
        while (answer := self.ask("runs"))["is_looking"]:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        return {
            f"{recording['run']}/{recording['name']}": recording
            for recording in answer["recordings"]
        }


@pytest.fixture(scope="module")
def logdir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("logdir")
    write_gpu_training(folder / "train")
    for rank, reduce_ns in enumerate((100_000, 300_000)):
        (folder / "ranks").mkdir(exist_ok=True)
        trace = build_gpu_training(rank=rank, reduce_ns=reduce_ns)
        trace.write(folder / "ranks" / f"host_{rank}_rank{rank}.17.pt.trace.json")
    (folder / HOSTILE).mkdir()
    (folder / HOSTILE / "bad.pt.trace.json").write_text("{broken")
    return folder


@pytest.fixture(scope="module")
def tab(logdir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    made = Tab.of(logdir, tmp_path_factory.mktemp("cache"))
    yield made
    made.plugin.close()


def test_tensorboard_finds_the_tab_and_its_name(logdir: Path) -> None:
    (entry,) = entry_points(group="tensorboard_plugins", name="profkit")
    assert entry.load() is Loader
    plugin = Loader().load(base_plugin.TBContext(logdir=str(logdir)))
    metadata = plugin.frontend_metadata()
    assert (plugin.plugin_name, metadata.tab_name) == ("profkit", "Profkit")
    assert metadata.es_module_path in plugin.get_plugin_apps()


def test_importing_the_plugin_is_fast_and_does_not_import_torch() -> None:
    code = (
        "import tensorboard.plugins.base_plugin, tensorboard.backend.http_util, sys, time; "
        "start = time.process_time(); import profkit.integrations.tensorboard.plugin; "
        "print(time.process_time() - start, 'torch' in sys.modules, 'numpy' in sys.modules)"
    )
    out = [subprocess.check_output([sys.executable, "-c", code], text=True) for _ in range(3)]
    assert {tuple(line.split()[1:]) for line in out} == {("False", "False")}
    # 25 ms on an idle machine; a heavy import takes ten times as long.
    assert min(float(line.split()[0]) for line in out) < 0.15


def test_a_recording_is_found_analyzed_and_reported(tab: Tab, logdir: Path) -> None:
    listed = tab.recordings()["train/host_7.1795206901986030890"]
    assert listed["kind"] == "trace"
    answer = tab.settled("report", id=listed["id"])
    assert answer["stage"] == "ready"

    (path,) = (logdir / "train").iterdir()
    expected = profkit.analyze(path)
    assert answer["report"] == json.loads(profkit.render(expected, "json"))
    assert answer["run_summary"]["data_wait_ns"] == STEPS * 300_000

    sections = tab.ask("sections", id=listed["id"])
    assert sections["tab"] == answer["tab"]
    assert "report" not in sections

    titles = [section["title"] for section in answer["tab"]["sections"]]
    assert titles[:4] == ["Overview", "Findings", "Timeline", "What if"]
    assert titles[4:6] == ["Critical path", "Steps"]
    assert any(
        misreading["where"].startswith("Operator") for misreading in answer["tab"]["misreadings"]
    )
    assert tab.recordings()["train/host_7.1795206901986030890"]["stage"] == "ready"


def test_a_broken_file_has_an_error_and_a_hint(tab: Tab) -> None:
    (key,) = (key for key in tab.recordings() if key.endswith("/bad"))
    assert key == f"{HOSTILE}/bad"
    answer = tab.settled("report", id=tab.recordings()[key]["id"])
    assert answer["stage"] == "failed"
    assert "bad.pt.trace.json" in answer["error"]
    assert answer["hint"]
    assert not answer["can_retry"]


def test_the_page_is_served_with_its_policy(tab: Tab) -> None:
    listed = tab.recordings()["train/host_7.1795206901986030890"]
    tab.settled("report", id=listed["id"])
    page = tab.get("page", id=listed["id"])
    policy = page.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert policy in page.text.replace("&#39;", "'")
    assert page.headers["X-Content-Type-Options"] == "nosniff"
    assert page.headers["Cache-Control"] == "no-store"
    assert "<h1" in page.text


@pytest.mark.parametrize(
    "ident", ["", "../../etc/passwd", "%2e%2e%2f", "/etc/passwd", "a" * 10_000, "\0", HOSTILE]
)
def test_an_unknown_id_is_not_found(tab: Tab, ident: str) -> None:
    for route in ("report", "sections", "ranks"):
        answer = tab.get(route, id=ident)
        assert answer.status_code == 404
        assert answer.content_type == "application/json"
    assert tab.get("compare", before=ident, after=ident).status_code == 404
    assert tab.get("page", id=ident).status_code == 404


@given(
    route=st.sampled_from(["runs", "report", "sections", "ranks", "compare", "page"]),
    query=st.dictionaries(
        st.sampled_from(["id", "before", "after", "of", "again"]),
        st.text() | st.sampled_from(["known", "ranks", "../../etc/passwd", "%00", "-1", "null"]),
    ),
)
def test_any_request_is_answered_or_refused(tab: Tab, route: str, query: dict[str, str]) -> None:
    known = next(iter(tab.recordings().values()))["id"]
    answer = tab.get(
        route, **{key: known if value == "known" else value for key, value in query.items()}
    )
    assert answer.status_code in {200, 404}
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    if route != "page":
        assert isinstance(json.loads(answer.data), dict)


def test_the_ranks_of_a_run_have_a_report_of_their_own(tab: Tab, logdir: Path) -> None:
    recordings = tab.recordings()
    first = next(recording for key, recording in recordings.items() if key.startswith("ranks/"))
    assert tab.get("page", id=first["id"], of="ranks").status_code == 404
    answer = tab.settled("ranks", id=first["id"])
    assert answer["stage"] == "ready"
    page = tab.get("page", id=first["id"], of="ranks")
    assert page.headers["Content-Security-Policy"].startswith("default-src 'none'")
    shown = page.get_data(as_text=True)
    assert '<section id="ranks"' in shown
    report = profkit.analyze(logdir / "ranks")
    assert f"{len(report.ranks)} ranks" in shown


def test_a_lone_recording_has_no_report_on_ranks(tab: Tab) -> None:
    recordings = tab.recordings()
    lone = next(recording for key, recording in recordings.items() if not key.startswith("ranks/"))
    answer = tab.settled("ranks", id=lone["id"])
    assert answer["stage"] == "failed"
    assert "do not belong to one job" in answer["error"]


def test_a_comparison_equals_the_one_from_profkit_diff(tab: Tab, logdir: Path) -> None:
    recordings = tab.recordings()
    ids = [recordings[f"ranks/host_{rank}_rank{rank}.17"]["id"] for rank in (0, 1)]
    answer = tab.settled("compare", before=ids[0], after=ids[1])
    paths = [logdir / "ranks" / f"host_{rank}_rank{rank}.17.pt.trace.json" for rank in (0, 1)]
    difference = profkit.compare(*paths)
    expected = json.loads(profkit.render(difference, "json"))
    assert answer["tab"]["headline"] == summarize_difference(difference)
    assert answer["difference"]["figures"] == expected["figures"]
    assert answer["difference"]["changes"] == expected["changes"]
    figures, *_ = answer["tab"]["tables"]
    assert len(figures["rows"]) == len(expected["figures"])
    kinds = {change["kind"] for change in expected["changes"]}
    assert len(answer["tab"]["tables"]) == 1 + len(kinds)


def test_every_response_forbids_sniffing_and_caching(tab: Tab) -> None:
    for path in tab.plugin.get_plugin_apps():
        answer = tab.get(path.removeprefix("/"))
        assert answer.headers["X-Content-Type-Options"] == "nosniff", path
        assert answer.headers["Cache-Control"] == "no-store", path
        if answer.mimetype == "text/html":
            assert "default-src 'none'" in answer.headers["Content-Security-Policy"]


def test_every_static_file_is_served_and_refers_to_no_other_server() -> None:
    folder = Path(profkit.__file__).parent / "integrations" / "tensorboard" / "static"
    files = sorted(folder.iterdir())
    served = ProfkitPlugin(base_plugin.TBContext(), ()).get_plugin_apps()
    for file in files:
        assert f"/{file.name}" in served
        text = file.read_text(encoding="utf-8")
        assert "//" not in text.replace("// ", "")
        assert "innerHTML" not in text
        assert "eval(" not in text


def write_runs(folder: Path, n: int) -> None:
    for number in range(n):
        (folder / f"run{number}").mkdir()
        (folder / f"run{number}" / "h_1.1.pt.trace.json").write_text("{")


def test_a_thousand_runs_are_listed_fast(tmp_path: Path) -> None:
    write_runs(tmp_path, 1000)
    many = Tab.of(tmp_path, tmp_path / "cache")
    try:
        assert len(many.recordings()) == 1000
        start = time.process_time()
        listed = many.ask("runs")["recordings"]
        assert time.process_time() - start < 2
        n_submitted = sum(recording["stage"] != "waiting" for recording in listed)
        assert 0 < n_submitted <= 20
    finally:
        many.plugin.close()


@pytest.mark.parametrize(
    ("n", "is_loaded", "is_warned"), [(100, True, True), (99, True, False), (100, False, False)]
)
def test_it_warns_of_the_processes_of_torch_tb_profiler(
    *,
    n: int,
    is_loaded: bool,
    is_warned: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    if is_loaded:
        pytest.importorskip("torch_tb_profiler.plugin")
    else:
        monkeypatch.delitem(sys.modules, "torch_tb_profiler.plugin", raising=False)

    write_runs(tmp_path, n)
    # It is read by the tab alone.
    (tmp_path / "run0" / "h_2.2.pt.trace.json.zst").write_bytes(b"")
    many = Tab.of(tmp_path, tmp_path / "cache")
    try:
        assert len(many.recordings()) == n + 1
        warning = many.ask("runs")["warning"]
        assert ("100 at once" in warning) is is_warned
        assert ("100 at once" in caplog.text) is is_warned
        assert bool(warning) is is_warned
    finally:
        many.plugin.close()


def test_tensorboard_starts_without_torch_tb_profiler(logdir: Path) -> None:
    installed = {entry_point.name for entry_point in entry_points(group="tensorboard_plugins")}
    assert {"profkit", "torch_profiler"} <= installed
    with serving(logdir, "profkit.integrations.tensorboard") as server:
        with urlopen(f"{server.address}data/plugins_listing", timeout=60) as answer:  # noqa: S310  (our own server)
            listed = json.load(answer)
        assert listed["profkit"]["enabled"]
        assert "pytorch_profiler" not in listed
        assert {"scalars", "text", "hparams"} <= set(listed)


def test_the_tab_is_active_only_if_there_are_recordings(tmp_path: Path, tab: Tab) -> None:
    tab.recordings()
    assert tab.plugin.is_active()
    empty = Tab.of(tmp_path, tmp_path / "cache")
    assert empty.recordings() == {}
    assert not empty.plugin.is_active()


def test_an_undecodable_name_does_not_break_the_list(tmp_path: Path) -> None:
    folder = bytes(tmp_path) + b"/half\xff"
    os.mkdir(folder)  # noqa: PTH102  (a name of bytes)
    write_gpu_training(Path(os.fsdecode(folder)))
    odd = Tab.of(tmp_path, tmp_path / "cache")
    try:
        (recording,) = odd.recordings().values()
        assert odd.settled("report", id=recording["id"])["stage"] == "ready"
    finally:
        odd.plugin.close()


def test_all_folders_of_logdir_spec_are_scanned(
    logdir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_gpu_training(tmp_path / "more")
    flags = Namespace(logdir="", logdir_spec=f"one:{logdir / 'train'},two:{tmp_path}")
    plugin = Loader().load(base_plugin.TBContext(flags=flags, logdir=flags.logdir_spec))
    several = Tab(plugin)
    try:
        runs = {key.rpartition("/")[0] for key in several.recordings()}
        assert runs == {"one", "two/more"}
    finally:
        plugin.close()
