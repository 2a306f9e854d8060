"""Writes reports as TensorBoard events: figures over steps and recordings, as training curves.

The files are ``<folder>/<run>/profkit/events.out.tfevents.…``, one for each recording. They form a
run of their own, because TensorBoard stops following the events file of a running training once
there is a newer one in the same folder. Neither torch nor TensorFlow is imported.

The same report results in the same file, so that writing it again duplicates no point.
"""

import hashlib
import io
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from profkit.api import render
from profkit.capture.process.files import atomic_path
from profkit.dataclass import dataclass
from profkit.errors import OutputError
from profkit.integrations.tensorboard.run_summary import RunSummary, summarize_run
from profkit.model.report import Report
from profkit.names import visible
from profkit.patterns import regex
from profkit.present.diagnosis import no_findings
from profkit.present.main_figures import BUSY_ABOUT
from profkit.present.memory_text import STEP_FIGURES
from profkit.units import format_count

_NUMBER: Final = regex(r"(\d+)\D*$")
_UNSAFE: Final = regex(r"[^\w.+-]+")
_FOLDER: Final = "profkit"
FILE_VERSION: Final = "brain.Event:2"
_NS_PER_MS: Final = 1e6
_MAX_LINES: Final = 100
_DESCRIPTIONS: Final = {
    "profkit/step_ms": "Time of each recorded step, in milliseconds: on the host, or on the "
    "device where the host runs ahead.",
    "profkit/busy_share": "Share of each step in which a device was busy, from 0 to 1.",
    "profkit/data_wait_ms": "Time waiting for the next batch in each step, in milliseconds.",
    "profkit/sync_ms": "Host time in syncs in each step, in milliseconds.",
    "profkit_recordings/step_ms": "Mean step time of each recording, in milliseconds.",
    "profkit_recordings/busy_share": f"From 0 to 1: {BUSY_ABOUT}.",
    "profkit_recordings/errors": "Findings of severity error.",
    "profkit_recordings/warnings": "Findings of severity warning.",
    "profkit_recordings/notes": "Findings of severity note.",
    "profkit_recordings/saving_ms": "Time per step, or without steps in the whole recording, that "
    "the fixes of all findings save together, in milliseconds.",
}
"""By tag; TensorBoard shows the description with the chart."""


@dataclass(frozen=True)
class ScalarPoint:
    """One value of a figure: milliseconds, bytes, a share from 0 to 1, or a count."""

    tag: str
    step: int
    value: float
    description: str


def write(reports: Iterable[Report], folder: Path) -> tuple[Path, ...]:
    """Write reports as events.

    Args:
        reports: The reports in the order of time: their index is the step of figures of a whole
            recording.
        folder: A logdir; it is created if it does not exist.

    Returns:
        The files, in the order of the reports.

    Raises:
        OutputError: A file cannot be written, or TensorBoard is not installed.
    """
    reports = list(reports)
    runs = _name_runs([report.source.path for report in reports])

    # The time in its name comes first, as TensorBoard reads files in the order of their names.
    indices: Counter[str] = Counter()
    written = []
    for report, run in zip(reports, runs, strict=True):
        name = f"events.out.tfevents.{int(_written_s(report)):010d}.profkit.{_digest(report)}"
        target = folder / run / _FOLDER / name
        _build_events(report, indices[run]).write(target)
        indices[run] += 1
        written.append(target)
    return tuple(written)


def build_points(report: Report, index: int) -> Iterator[ScalarPoint]:
    """Return the figures of a report.

    Args:
        index: The recording's index in its run, from 0.
    """
    for number, step in zip(_step_numbers(report), report.summary.steps, strict=True):
        yield _point("profkit/step_ms", number, step.time_ns / _NS_PER_MS)
        if step.gpu_busy_ns is not None and step.time_ns:
            yield _point("profkit/busy_share", number, step.gpu_busy_ns / step.time_ns)
        yield _point("profkit/data_wait_ms", number, step.data_wait_ns / _NS_PER_MS)
        yield _point("profkit/sync_ms", number, step.sync_ns / _NS_PER_MS)

    yield from _build_memory_points(report)
    yield from _build_recording_points(summarize_run(report), index)


def _point(tag: str, step: int, value: float) -> ScalarPoint:
    return ScalarPoint(tag, step, value, _DESCRIPTIONS[tag])


def _step_numbers(report: Report) -> list[int]:
    """Return the numbers in the names of the steps if they are unique, else their indices."""
    matches = [_NUMBER.search(step.name) for step in report.summary.steps]
    numbers = [int(match[1]) for match in matches if match is not None]
    is_unique = len(set(numbers)) == len(matches)
    return numbers if is_unique else list(range(len(matches)))


def _build_memory_points(report: Report) -> Iterator[ScalarPoint]:
    memory = report.summary.memory
    for step in memory.steps if memory is not None else ():
        for name in STEP_FIGURES:
            value = getattr(step, name)
            if value is not None:
                about = f"{name} of the report's summary.memory.steps: bytes at the end of a step."
                yield ScalarPoint(f"profkit_memory/{name}", step.step, value, about)


def _build_recording_points(run: RunSummary, index: int) -> Iterator[ScalarPoint]:
    def point(name: str, value: float) -> ScalarPoint:
        return _point(f"profkit_recordings/{name}", index, value)

    if run.step_ns is not None:
        yield point("step_ms", run.step_ns / _NS_PER_MS)
    if run.busy_share is not None:
        yield point("busy_share", run.busy_share)

    for peak in run.peaks:
        tag = f"profkit_recordings/peak_bytes_{safe(peak.device)}"
        yield ScalarPoint(tag, index, peak.bytes, "Peak memory of this device, in bytes.")

    yield point("errors", run.n_errors)
    yield point("warnings", run.n_warnings)
    yield point("notes", run.n_notes)
    yield point("saving_ms", run.saving_ns / _NS_PER_MS)


class EventsFile:
    """The content of a file of events.

    Raises:
        OutputError: TensorBoard is not installed.
    """

    def __init__(self) -> None:
        try:
            from tensorboard.summary.writer.record_writer import RecordWriter
        except ImportError as error:
            message = f"TensorBoard cannot be imported: {error}."
            raise OutputError(message, "pip install tensorboard") from error
        self._file = io.BytesIO()
        self._writer = RecordWriter(self._file)

    @property
    def content(self) -> bytes:
        """Return the events as bytes."""
        return self._file.getvalue()

    def add(self, wall_s: float, **content: Any) -> None:  # noqa: ANN401  (an event's fields)
        """Add an event.

        Args:
            wall_s: Its time, in seconds since 1970.
            **content: Its other fields.
        """
        from tensorboard.compat.proto import event_pb2

        self._writer.write(event_pb2.Event(wall_time=wall_s, **content).SerializeToString())

    def add_scalar(self, wall_s: float, point: ScalarPoint) -> None:
        """Add a value of a figure."""
        from tensorboard.plugins.scalar import metadata
        from tensorboard.util import tensor_util

        tensor = tensor_util.make_tensor_proto(point.value, dtype="float32")
        about = metadata.create_summary_metadata("", point.description)
        self._add_value(wall_s, point.step, point.tag, tensor, about)

    def add_text(self, wall_s: float, step: int, tag: str, content: str) -> None:
        """Add a text."""
        from tensorboard.plugins.text import metadata
        from tensorboard.util import tensor_util

        tensor = tensor_util.make_tensor_proto([content.encode("utf-8", "replace")])
        about = metadata.create_summary_metadata("", "The report of profkit.")
        self._add_value(wall_s, step, tag, tensor, about)

    def _add_value(self, wall_s: float, step: int, tag: str, tensor: Any, metadata: Any) -> None:  # noqa: ANN401  (protocol buffers)
        from tensorboard.compat.proto import summary_pb2

        value = summary_pb2.Summary.Value(tag=tag, tensor=tensor, metadata=metadata)
        self.add(wall_s, step=step, summary=summary_pb2.Summary(value=[value]))

    def write(self, target: Path) -> None:
        """Write the file.

        Raises:
            OutputError: It cannot be written.
        """
        try:
            with atomic_path(target) as partial:
                partial.write_bytes(self.content)
        except OSError as error:
            reason = error.strerror or str(error)
            message = f"{target} cannot be written: {reason}."
            raise OutputError(message, "Choose another folder with -o.") from error


def _build_events(report: Report, index: int) -> EventsFile:
    # EventsFile reports a missing TensorBoard in a sentence: it comes before the import.
    file, written_s = EventsFile(), _written_s(report)
    from tensorboard.plugins.hparams import summary_v2

    file.add(written_s, file_version=FILE_VERSION)
    for point in build_points(report, index):
        file.add_scalar(written_s, point)
    for tag, content in _write_texts(report).items():
        file.add_text(written_s, index, tag, content)

    hparams = summary_v2.hparams_pb(
        _list_settings(report), trial_id=_digest(report), start_time_secs=written_s
    )
    file.add(written_s, summary=hparams)
    return file


def _write_texts(report: Report) -> Mapping[str, str]:
    """Return the report as Markdown, and its findings with a line each."""
    lines = [
        f"- **{finding.severity}** {finding.rule} {finding.name}: {_escape(finding.message)}"
        for finding in report.findings[:_MAX_LINES]
    ]
    if len(report.findings) > _MAX_LINES:
        lines.append(f"- … and {format_count(len(report.findings) - _MAX_LINES)} more")
    findings = "\n".join(lines)
    return {
        "profkit/report": render(report, "md").decode(),
        "profkit/findings": findings or no_findings(report),
    }


def _escape(text: str) -> str:
    """Return a text of a recording as one line of Markdown without markup."""
    return re.sub(r"([\\`*_\[\]<>#|~&])", r"\\\1", " ".join(visible(text).split()))


def _list_settings(report: Report) -> dict[str, bool | float | str]:
    """Return the recorded settings in which runs can differ."""
    source = report.source
    recorded = source.recorded_with
    settings: dict[str, bool | float | str | None] = {
        "torch": source.torch,
        "device": ", ".join(sorted(set(filter(None, source.devices)))) or "CPU",
        "rank": source.rank,
        "world_size": source.world_size,
        "profkit": report.profkit,
        "stacks": recorded.stacks,
        "shapes": recorded.shapes,
    }

    # A table of runs shows an unknown setting as an empty cell.
    return {
        name: visible(value) if isinstance(value, str) else value
        for name, value in settings.items()
        if value is not None
    }


def _written_s(report: Report) -> float:
    """Return when the recording was written, in seconds since 1970; 0 without its file."""
    # A report that was saved may be of a file that has been moved since.
    try:
        return Path(report.source.path).stat().st_mtime
    except (OSError, ValueError):
        return 0.0


def _digest(report: Report) -> str:
    name = Path(report.source.path).absolute().as_posix()
    return hashlib.sha256(name.encode("utf-8", "surrogateescape")).hexdigest()[:12]


def _name_runs(paths: list[str]) -> list[str]:
    """Return the run of each recording: its folder, with the parent if the name is ambiguous."""
    folders = [Path(path).absolute().parent for path in paths]
    names = Counter(folder.name for folder in set(folders))
    return [
        safe(folder.name)
        if names[folder.name] == 1
        else f"{safe(folder.parent.name)}/{safe(folder.name)}"
        for folder in folders
    ]


def safe(name: str) -> str:
    """Return a name as one part of a path or tag."""
    return _UNSAFE.sub("_", name).strip("._") or "run"
