"""The tab "Profkit" of TensorBoard: what the server answers.

Nothing here reads a recording: every route answers at once from what the scanner has found and the
analyst has had worked out. A page names recordings by ids that the scanner gave out, and no path is
ever made from what a page sends.

Source: "TensorBoard plugins" (``ADDING_A_PLUGIN.md``) and ``tensorboard/plugins/base_plugin.py``.
"""

from collections.abc import Callable, Iterable
from importlib.resources import files
from typing import Any, Final

import msgspec
from tensorboard.backend import http_util
from tensorboard.plugins import base_plugin
from werkzeug import Request, Response

from profkit._version import __version__
from profkit.integrations.tensorboard.analysis_queue import AnalysisQueue, Task, TaskState
from profkit.integrations.tensorboard.cache import ResultCache, key_of
from profkit.integrations.tensorboard.discovery import (
    MOST_RECORDINGS,
    DiscoveredRecording,
    LogRoot,
    roots_of,
)
from profkit.integrations.tensorboard.scanner import Scanner

_ASSETS: Final = {
    "index.html": "text/html", "index.js": "text/javascript", "app.js": "text/javascript",
    "charts.js": "text/javascript", "compare.js": "text/javascript",
    "elements.js": "text/javascript", "server.js": "text/javascript",
    "table.js": "text/javascript", "views.js": "text/javascript", "style.css": "text/css",
}  # fmt: skip
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "frame-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'"
)
_OF_THE_PAGE: Final = "renderers/html"
"""The HTML report's own script spells numbers; here they are to be spelled the same."""
_NOT_KEPT: Final = ("Cache-Control", "no-store")
_AT_FIRST: Final = 20
"""So many of the newest recordings are analyzed without being asked for."""
_MOST_RANKS: Final = 256

Answer = tuple[dict[str, Any], int]
"""What a route answers as JSON, and its status code."""


class Loader(base_plugin.TBLoader):  # type: ignore[misc]  # TensorBoard ships no types
    """Makes the plugin; TensorBoard finds it by the entry point ``tensorboard_plugins``."""

    def load(self, context: base_plugin.TBContext) -> "ProfkitPlugin":
        """The plugin of a server.

        Args:
            context: What the server was started with.
        """
        spec = getattr(context.flags, "logdir_spec", None)
        logdir = getattr(context.flags, "logdir", None)
        if not spec:
            logdir = logdir or context.logdir
        return ProfkitPlugin(context, roots_of(logdir, spec))


class ProfkitPlugin(base_plugin.TBPlugin):  # type: ignore[misc]  # TensorBoard ships no types
    """Recordings and their reports.

    Args:
        context: What the server was started with.
        roots: The folders to look in.
        store: Where results are kept; by default the user's cache.
    """

    plugin_name = "profkit"

    def __init__(
        self,
        context: base_plugin.TBContext,
        roots: tuple[LogRoot, ...] = (),
        store: ResultCache | None = None,
    ) -> None:
        super().__init__(context)
        self._scanner = Scanner(roots)
        self._store = store or ResultCache()
        self._analyst = AnalysisQueue(self._store)
        self._answers: dict[str, dict[str, Any]] = {}
        self._scanner.look()

    def is_active(self) -> bool:
        """Whether there is a recording, as far as is known. Costs next to nothing."""
        self._scanner.look()
        return bool(self._scanner.found.recordings) or not self._scanner.has_looked

    def frontend_metadata(self) -> base_plugin.FrontendMetadata:
        """Where the tab's script is. The page asks for news by itself, so it is not reloaded."""
        return base_plugin.FrontendMetadata(
            es_module_path="/index.js", tab_name="Profkit", disable_reload=True
        )

    def get_plugin_apps(self) -> dict[str, Callable[..., Iterable[bytes]]]:
        """What answers each route."""
        assets = {f"/{name}": _asset(name, kind) for name, kind in _ASSETS.items()}
        return {
            **assets,
            "/base.js": _asset("base.js", "text/javascript", _OF_THE_PAGE),
            "/runs": _json(self._runs),
            "/report": _json(self._report),
            "/ranks": _json(self._ranks),
            "/compare": _json(self._compare),
            "/page": Request.application(self._page),
        }

    def close(self) -> None:
        """Stop all that works in the background."""
        self._analyst.close()

    def _runs(self, request: Request) -> Answer:  # noqa: ARG002  (every route is given one)
        self._scanner.look()
        found = self._scanner.found
        for recording in found.recordings[:_AT_FIRST]:
            self._analyst.ask(_analysis(recording), urgent=False)
        return {
            "version": __version__,
            "is_looking": not self._scanner.has_looked,
            "is_whole": found.is_whole,
            "not_here": found.not_here,
            "recordings": [self._row(recording) for recording in found.recordings],
        }, 200

    def _row(self, recording: DiscoveredRecording) -> dict[str, Any]:
        """A recording in the list: what it is, and how far its analysis is."""
        return {
            "id": recording.id,
            "run_id": recording.run_id,
            "run": recording.run,
            "name": recording.name,
            "kind": recording.kind,
            "bytes": recording.n_bytes,
            "modified_ms": recording.modified_ns // 1_000_000,
            **self._told(_analysis(recording).key),
        }

    def _told(self, key: str, state: TaskState | None = None) -> dict[str, Any]:
        """How far a task is; of one that is ready what came of it, in a few words."""
        state = state or self._analyst.state(key)
        if state.stage != "ready":
            told = {"stage": state.stage, "error": state.message, "hint": state.hint}
            return {**told, "can_retry": state.stage == "failed"}
        answer = self._answer(key) or {"error": "It was removed.", "hint": "Open it again."}
        failed = bool(answer["error"])
        return {**answer, "stage": "failed" if failed else "ready", "can_retry": False}

    def _answer(self, key: str) -> dict[str, Any] | None:
        """What came of a task in a few words, from memory where it has been read before."""
        if key not in self._answers:
            text = self._store.read(key, "answer.json", in_passing=True)
            try:
                answer = None if text is None else msgspec.json.decode(text, type=dict[str, Any])
            except msgspec.DecodeError:
                answer = None
            if answer is None:
                return None
            if len(self._answers) >= MOST_RECORDINGS:
                self._answers.clear()
            self._answers[key] = answer
        return self._answers[key]

    def _asked_for(self, request: Request, name: str = "id") -> DiscoveredRecording | None:
        return self._scanner.recording(request.args.get(name, ""))

    def _report(self, request: Request) -> Answer:
        recording = self._asked_for(request)
        if recording is None:
            return _UNKNOWN
        task = _analysis(recording)
        state = self._analyst.ask(task, urgent=True, again="again" in request.args)
        answer = {**self._row(recording), **self._told(task.key, state)}
        if answer["stage"] == "ready":
            answer["paths"] = [_shown(path) for path in recording.paths]
            answer["report"] = self._raw(task.key, "report.json")
            answer["views"] = self._raw(task.key, "views.json")
            answer["has_page"] = self._store.read(task.key, "policy.txt") is not None
        return answer, 200

    def _raw(self, key: str, name: str) -> msgspec.Raw:
        """A JSON file of an entry as it is, without decoding it."""
        return msgspec.Raw(self._store.read(key, name) or b"null")

    def _ranks(self, request: Request) -> Answer:
        recording = self._asked_for(request)
        if recording is None:
            return _UNKNOWN
        of_run = [each for each in self._scanner.found.recordings
                  if each.run_id == recording.run_id and each.kind == "trace"]  # fmt: skip
        for each in of_run[:_MOST_RANKS]:
            self._analyst.ask(_analysis(each), urgent=False)
        rows = [self._row(each) for each in of_run[:_MOST_RANKS]]
        return {"recordings": rows, "n_left_out": max(0, len(of_run) - _MOST_RANKS)}, 200

    def _compare(self, request: Request) -> Answer:
        before, after = self._asked_for(request, "before"), self._asked_for(request, "after")
        if before is None or after is None:
            return _UNKNOWN
        task = Task(
            key_of("compare", before.state, after.state),
            ("compare", self._side(before), self._side(after)),
        )
        state = self._analyst.ask(task, urgent=True, again="again" in request.args)
        answer = self._told(task.key, state)
        if answer["stage"] == "ready":
            answer["difference"] = self._raw(task.key, "difference.json")
        return answer, 200

    def _side(self, recording: DiscoveredRecording) -> str:
        """What to compare: the report where there is one; snapshots are compared block by block."""
        key = _analysis(recording).key
        if recording.kind == "snapshot" or self._told(key)["stage"] != "ready":
            return recording.paths[0]
        return self._store.path(key, "report.json")

    def _page(self, request: Request) -> Response:
        recording = self._asked_for(request)
        key = _analysis(recording).key if recording else ""
        page = self._store.read(key, "page.html.gz") if key else None
        policy = self._store.read(key, "policy.txt") if key else None
        if page is None or policy is None:
            return _respond(request, b"There is no such page.", "text/plain", 404)
        headers = [("Content-Security-Policy", policy.decode()), ("Referrer-Policy", "no-referrer")]
        return _respond(request, page, "text/html", 200, headers, encoding="gzip")


def _analysis(recording: DiscoveredRecording) -> Task:
    return Task(key_of("analyze", recording.state), ("analyze", *recording.paths))


_UNKNOWN: Final[Answer] = (
    {"stage": "failed", "error": "There is no such recording.", "hint": "It may have been removed.",
     "can_retry": False},
    404,
)  # fmt: skip


def _shown(path: str) -> str:
    from profkit.names import visible

    return visible(path)


def _json(route: Callable[[Request], Answer]) -> Callable[..., Iterable[bytes]]:
    """A route that answers with JSON."""

    def answer(request: Request) -> Response:
        content, status = route(request)
        return _respond(request, msgspec.json.encode(content), "application/json", status)

    application: Callable[..., Iterable[bytes]] = Request.application(answer)
    return application


def _asset(
    name: str, media_type: str, folder: str = "integrations/tensorboard/static"
) -> Callable[..., Iterable[bytes]]:
    """A route that answers with a file of ours."""

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
    """An answer as TensorBoard wants it: packed where the browser takes it, with its headers."""
    response: Response = http_util.Respond(
        request, content, media_type, code=status, content_encoding=encoding
    )
    for name, value in (_NOT_KEPT, *headers):
        response.headers[name] = value
    return response
