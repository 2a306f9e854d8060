"""The tab "Profkit" of TensorBoard: its HTTP routes.

No route reads a recording: each answers at once from what the scanner has found and the analysis
queue has finished. Pages refer to recordings by ids from the scanner; no path is ever built from a
request.

Source: "TensorBoard plugins" (``ADDING_A_PLUGIN.md``) and ``tensorboard/plugins/base_plugin.py``.
"""

import sys
from collections.abc import Callable, Iterable
from importlib.resources import files
from typing import Any, Final

import msgspec
from tensorboard.backend import http_util
from tensorboard.plugins import base_plugin
from tensorboard.util import tb_logging
from werkzeug import Request, Response

from profkit._version import __version__
from profkit.integrations.tensorboard.analysis_queue import AnalysisQueue, Task, TaskState
from profkit.integrations.tensorboard.cache import ResultCache, key_of
from profkit.integrations.tensorboard.discovery import (
    MAX_RECORDINGS,
    DiscoveredRecording,
    DiscoveryResult,
    LogRoot,
    Scanner,
    parse_roots,
)
from profkit.names import visible
from profkit.units import format_count

_STATIC: Final = "integrations/tensorboard/static"
_REPORT: Final = "renderers/html"
"""The tab formats numbers, and draws and styles tables with the files of the HTML report."""
_ASSETS: Final = {
    "index.html": _STATIC, "index.js": _STATIC, "app.js": _STATIC, "compare.js": _STATIC,
    "elements.js": _STATIC, "server.js": _STATIC, "tab.css": _STATIC,
    "base.js": _REPORT, "table.js": _REPORT, "tooltips.js": _REPORT, "style.css": _REPORT,
}  # fmt: skip
"""The files of the page, each with its folder in the package."""
_MEDIA_TYPES: Final = {"html": "text/html", "js": "text/javascript", "css": "text/css"}
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "frame-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'"
)
_NO_STORE: Final = ("Cache-Control", "no-store")
_N_PREFETCHED: Final = 20
"""So many of the newest recordings are analyzed before they are opened."""
_MAX_RANKS: Final = 256
"""The others of a run are left out."""
_MANY_TRACES: Final = 100
"""torch-tb-profiler starts a process of some 25 MB or more for each, all at once."""

Answer = tuple[dict[str, Any], int]
"""The JSON and the status code of a route."""


class Loader(base_plugin.TBLoader):  # type: ignore[misc]  # TensorBoard ships no types
    """Creates the plugin; TensorBoard finds it by the entry point ``tensorboard_plugins``."""

    def load(self, context: base_plugin.TBContext) -> "ProfkitPlugin":
        """Return the plugin of a server."""
        spec = getattr(context.flags, "logdir_spec", None)
        logdir = getattr(context.flags, "logdir", None)
        if not spec:
            logdir = logdir or context.logdir
        return ProfkitPlugin(context, parse_roots(logdir, spec))


class ProfkitPlugin(base_plugin.TBPlugin):  # type: ignore[misc]  # TensorBoard ships no types
    """Recordings and their reports.

    Args:
        context: The server's context.
        roots: The folders to search.
        cache: Where results are cached; by default in the user's cache folder.
    """

    plugin_name = "profkit"

    def __init__(
        self,
        context: base_plugin.TBContext,
        roots: tuple[LogRoot, ...] = (),
        cache: ResultCache | None = None,
    ) -> None:
        super().__init__(context)
        self._scanner = Scanner(roots, on_found=self._warn)
        self._has_warned = False
        self._cache = cache or ResultCache()
        self._queue = AnalysisQueue(self._cache)
        self._answers: dict[str, dict[str, Any]] = {}
        self._scanner.start()

    def is_active(self) -> bool:
        """Return at once whether there is a recording, as far as is known."""
        self._scanner.start()
        return bool(self._scanner.found.recordings) or not self._scanner.has_scanned

    def frontend_metadata(self) -> base_plugin.FrontendMetadata:
        """Return the tab's script. The page polls for news, so TensorBoard need not reload it."""
        return base_plugin.FrontendMetadata(
            es_module_path="/index.js", tab_name="Profkit", disable_reload=True
        )

    def get_plugin_apps(self) -> dict[str, Callable[..., Iterable[bytes]]]:
        """Return the WSGI application of each route."""
        # Each file has a route, as no path is ever built from a request.
        assets = {f"/{name}": _serve_asset(name, folder) for name, folder in _ASSETS.items()}
        return {
            **assets,
            "/runs": _answer_json(self._answer_runs),
            "/report": _answer_json(self._answer_report),
            "/sections": _answer_json(self._answer_sections),
            "/ranks": _answer_json(self._answer_ranks),
            "/compare": _answer_json(self._answer_compare),
            "/page": Request.application(self._serve_page),
        }

    def close(self) -> None:
        """Stop all background work."""
        self._queue.close()

    def _answer_runs(self, request: Request) -> Answer:  # noqa: ARG002  (the signature of a route)
        self._scanner.start()
        scan = self._scanner.found
        for recording in scan.recordings[:_N_PREFETCHED]:
            self._queue.submit(_plan_analysis(recording), urgent=False)

        return {
            "version": __version__,
            "is_looking": not self._scanner.has_scanned,
            "is_whole": scan.is_complete,
            "not_here": scan.missing,
            "warning": _warning(scan),
            "recordings": [self._describe(recording) for recording in scan.recordings],
        }, 200

    def _warn(self, scan: DiscoveryResult) -> None:
        """Log the warning once, for those who do not open the tab."""
        if not self._has_warned and (warning := _warning(scan)):
            self._has_warned = True
            tb_logging.get_logger().warning("%s", warning)

    def _describe(self, recording: DiscoveredRecording) -> dict[str, Any]:
        """Return a recording of the list, with the progress of its analysis."""
        return {
            "id": recording.id,
            "run_id": recording.run_id,
            "run": recording.run,
            "name": recording.name,
            "kind": recording.kind,
            "bytes": recording.n_bytes,
            "modified_ms": recording.modified_ns // 1_000_000,
            **self._describe_progress(_plan_analysis(recording).key),
        }

    def _describe_progress(self, key: str, state: TaskState | None = None) -> dict[str, Any]:
        """Return the progress of a task; once it is ready, its answer."""
        state = state or self._queue.state(key)
        if state.stage != "ready":
            return {
                "stage": state.stage,
                "error": visible(state.message),
                "hint": state.hint,
                "can_retry": state.stage == "failed",
            }

        # The result may have been removed between the two looks at the cache.
        answer = self._read_answer(key) or {
            "error": "The result was removed from the cache.",
            "hint": "Open the recording again.",
        }
        return {**answer, "stage": "failed" if answer["error"] else "ready", "can_retry": False}

    def _read_answer(self, key: str) -> dict[str, Any] | None:
        """Return a task's ``answer.json``, from memory if it was read before."""
        if key not in self._answers:
            text = self._cache.read(key, "answer.json", touch=False)
            try:
                answer = None if text is None else msgspec.json.decode(text, type=dict[str, Any])
            except msgspec.DecodeError:
                answer = None
            if answer is None:
                return None

            if len(self._answers) >= MAX_RECORDINGS:
                self._answers.clear()
            self._answers[key] = answer

        return self._answers[key]

    def _requested(self, request: Request, name: str = "id") -> DiscoveredRecording | None:
        return self._scanner.recording(request.args.get(name, ""))

    def _answer_sections(self, request: Request) -> Answer:
        """Answer with the sections of a recording's page, once it is analyzed."""
        recording = self._requested(request)
        if recording is None:
            return _UNKNOWN

        task = _plan_analysis(recording)
        state = self._queue.submit(task, urgent=True, retry="again" in request.args)
        answer = {**self._describe(recording), **self._describe_progress(task.key, state)}
        if answer["stage"] == "ready":
            answer["paths"] = [visible(path) for path in recording.paths]
            answer["tab"] = self._raw(task.key, "tab.json")
            answer["has_page"] = self._cache.read(task.key, "policy.txt") is not None
        return answer, 200

    def _answer_report(self, request: Request) -> Answer:
        answer, status = self._answer_sections(request)
        recording = self._requested(request)
        if recording is not None and answer["stage"] == "ready":
            answer["report"] = self._raw(_plan_analysis(recording).key, "report.json")
        return answer, status

    def _raw(self, key: str, name: str) -> msgspec.Raw:
        """Return a JSON file of an entry, without decoding it."""
        return msgspec.Raw(self._cache.read(key, name) or b"null")

    def _answer_ranks(self, request: Request) -> Answer:
        """Answer with the progress of the report on all ranks of a recording's run."""
        recording = self._requested(request)
        if recording is None:
            return _UNKNOWN
        task = self._plan_job(recording)
        state = self._queue.submit(task, urgent=True, retry="again" in request.args)
        return self._describe_progress(task.key, state), 200

    def _plan_job(self, recording: DiscoveredRecording) -> Task:
        """Return the analysis of all traces of a run, with the trace of this recording first."""
        traces = sorted(
            (
                trace
                for trace in self._scanner.found.recordings
                if trace.run_id == recording.run_id and trace.kind == "trace" and trace != recording
            ),
            key=lambda trace: trace.paths,
        )
        ranks = [recording, *traces[: _MAX_RANKS - 1]]
        key = key_of("ranks", *(rank.state for rank in ranks))
        return Task(key, ("ranks", *(rank.paths[0] for rank in ranks)))

    def _answer_compare(self, request: Request) -> Answer:
        before, after = self._requested(request, "before"), self._requested(request, "after")
        if before is None or after is None:
            return _UNKNOWN

        task = Task(
            key_of("compare", before.state, after.state),
            ("compare", self._find_comparable(before), self._find_comparable(after)),
        )
        state = self._queue.submit(task, urgent=True, retry="again" in request.args)

        answer = self._describe_progress(task.key, state)
        if answer["stage"] == "ready":
            answer["difference"] = self._raw(task.key, "difference.json")
            answer["tab"] = self._raw(task.key, "tab.json")
        return answer, 200

    def _find_comparable(self, recording: DiscoveredRecording) -> str:
        """Return the report, if there is one that can be compared, else the recording."""
        key = _plan_analysis(recording).key
        # The blocks of a snapshot are not in its report.
        if recording.kind == "snapshot" or self._describe_progress(key)["stage"] != "ready":
            return recording.paths[0]
        return self._cache.path(key, "report.json")

    def _serve_page(self, request: Request) -> Response:
        recording = self._requested(request)
        of_job = request.args.get("of") == "ranks"
        task = recording and (self._plan_job(recording) if of_job else _plan_analysis(recording))

        key = task.key if task else ""
        page = self._cache.read(key, "page.html.gz") if key else None
        policy = self._cache.read(key, "policy.txt") if key else None
        if page is None or policy is None:
            return _respond(request, b"There is no such page.", "text/plain", 404)

        # The page's own policy: the tab's would forbid its scripts, which are within it.
        headers = [("Content-Security-Policy", policy.decode()), ("Referrer-Policy", "no-referrer")]
        return _respond(request, page, "text/html", 200, headers, encoding="gzip")


def _warning(scan: DiscoveryResult) -> str:
    """Return what torch-tb-profiler costs this server, if it is loaded and the traces are many."""
    if "torch_tb_profiler.plugin" not in sys.modules:
        return ""
    n_traces = sum(recording.is_read_by_torch_tb_profiler for recording in scan.recordings)
    if n_traces < _MANY_TRACES:
        return ""
    return (
        "The tab “PyTorch Profiler” (torch-tb-profiler) starts one process per trace, "
        f"{format_count(n_traces)} at once, which may exhaust memory. "
        "`python -m profkit.integrations.tensorboard` starts TensorBoard without that tab; its "
        "options are the same."
    )


def _plan_analysis(recording: DiscoveredRecording) -> Task:
    return Task(key_of("analyze", recording.state), ("analyze", *recording.paths))


_UNKNOWN: Final[Answer] = (
    {"stage": "failed", "error": "There is no such recording.", "hint": "It may have been removed.",
     "can_retry": False},
    404,
)  # fmt: skip


def _answer_json(route: Callable[[Request], Answer]) -> Callable[..., Iterable[bytes]]:

    def answer(request: Request) -> Response:
        content, status = route(request)
        return _respond(request, msgspec.json.encode(content), "application/json", status)

    application: Callable[..., Iterable[bytes]] = Request.application(answer)
    return application


def _serve_asset(name: str, folder: str) -> Callable[..., Iterable[bytes]]:
    media_type = _MEDIA_TYPES[name.rpartition(".")[2]]

    def answer(request: Request) -> Response:
        content = files("profkit").joinpath(f"{folder}/{name}").read_bytes()
        headers = [("Content-Security-Policy", _POLICY)] if media_type == "text/html" else []
        return _respond(request, content, media_type, 200, headers)

    application: Callable[..., Iterable[bytes]] = Request.application(answer)
    return application


def _respond(
    request: Request,
    content: bytes,
    media_type: str,
    status: int,
    headers: Iterable[tuple[str, str]] = (),
    encoding: str | None = None,
) -> Response:
    """Return a response by TensorBoard's function, which compresses it if the browser can."""
    response: Response = http_util.Respond(
        request, content, media_type, code=status, content_encoding=encoding
    )
    for name, value in (_NO_STORE, *headers):
        response.headers[name] = value
    return response
