"""Reports as TensorBoard's own events: figures over steps and runs beside the training curves.

``<folder>/<run>/profkit/events.out.tfevents.…``: a file a recording, a run a folder of recordings.
It is a run of its own, because TensorBoard stops to follow the file of a training that is still
being written as soon as a newer one lies beside it. Neither torch nor TensorFlow is imported.

The same report gives the same file, so that writing it again replaces it and no point is there
twice.
"""

import hashlib
import io
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from profkit.api import render
from profkit.errors import OutputError
from profkit.integrations.tensorboard.run_summary import RunSummary, run_summary
from profkit.model.report import Report
from profkit.names import visible
from profkit.units import format_count

_NUMBER: Final = re.compile(r"(\d+)\D*$")
_ODD: Final = re.compile(r"[^\w.+-]+")
_FOLDER: Final = "profkit"
_NS_PER_MS: Final = 1e6
_MOST_LINES: Final = 100
_WATCHED: Final = (
    "host_rss_bytes", "tensor_bytes", "graph_bytes", "allocated_bytes", "peak_bytes",
    "reserved_bytes", "worker_bytes",
)  # fmt: skip
_SAID: Final = {
    "profkit/step_ms": "Length of each recorded step on the host, in milliseconds.",
    "profkit/device_busy_share": "Share of each step in which a device worked, from 0 to 1.",
    "profkit/data_wait_ms": "Wait for the next batch in each step, in milliseconds.",
    "profkit/sync_ms": "Wait in synchronizing calls in each step, in milliseconds.",
    "profkit_recordings/median_step_ms": "The median step of each recording, in milliseconds.",
    "profkit_recordings/device_busy_share": "Share of the time from the devices' first work to "
    "their last in which they worked, from 0 to 1.",
    "profkit_recordings/errors": "Findings that are errors.",
    "profkit_recordings/warnings": "Findings that are warnings.",
    "profkit_recordings/notes": "Findings that are notes.",
    "profkit_recordings/could_be_saved_ms": "Time that findings say can be given back over the "
    "whole recording, in milliseconds; what several claim is counted once.",
}
"""What each figure is, by its tag: TensorBoard shows it beside the chart."""


@dataclass(frozen=True)
class ScalarPoint:
    """One value of one figure.

    Attributes:
        tag: The figure's name.
        step: Where it stands on the axis of steps.
        value: The value; milliseconds, bytes, shares from 0 to 1, or a count, as the tag says.
        said: What the figure is.
    """

    tag: str
    step: int
    value: float
    said: str


def write(reports: Iterable[Report], folder: Path) -> tuple[Path, ...]:
    """Write reports as events.

    Args:
        reports: The reports, in the order of time: the place of each in it is its step where a
            figure is of a whole recording.
        folder: A logdir; it is made where it is not there.

    Returns:
        The files, in the order of the reports.

    Raises:
        OutputError: A file cannot be written, or TensorBoard is not installed.
    """
    everything = list(reports)
    runs = _runs([report.source.path for report in everything])
    places: Counter[str] = Counter()
    written = []
    for report, run in zip(everything, runs, strict=True):
        target = folder / run / _FOLDER / _file_name(report)
        content = _events(report, places[run])
        places[run] += 1
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            partial = target.with_name(f".{target.name}.part")
            partial.write_bytes(content)
            partial.replace(target)
        except OSError as error:
            reason = error.strerror or str(error)
            message = f"{target} cannot be written: {reason}."
            raise OutputError(message, "Choose another folder with -o.") from error
        written.append(target)
    return tuple(written)


def points(report: Report, place: int) -> Iterator[ScalarPoint]:
    """The figures of a report.

    Args:
        place: The recording's place among those of its run, from 0.
    """
    for number, step in zip(_step_numbers(report), report.summary.steps, strict=True):
        yield _point("profkit/step_ms", number, step.dur_ns / _NS_PER_MS)
        if step.gpu_busy_ns is not None and step.dur_ns:
            yield _point("profkit/device_busy_share", number, step.gpu_busy_ns / step.dur_ns)
        yield _point("profkit/data_wait_ms", number, step.data_wait_ns / _NS_PER_MS)
        yield _point("profkit/sync_ms", number, step.sync_ns / _NS_PER_MS)
    yield from _watched(report)
    yield from _of_recording(run_summary(report), place)


def _point(tag: str, step: int, value: float) -> ScalarPoint:
    return ScalarPoint(tag, step, value, _SAID[tag])


def _step_numbers(report: Report) -> list[int]:
    """The numbers of the steps as the program counts them, else their places."""
    found = [_NUMBER.search(step.name) for step in report.summary.steps]
    numbers = [int(each[1]) for each in found if each is not None]
    distinct = len(set(numbers)) == len(found)
    return numbers if distinct else list(range(len(found)))


def _watched(report: Report) -> Iterator[ScalarPoint]:
    memory = report.summary.memory
    for step in memory.steps if memory is not None else ():
        for name in _WATCHED:
            value = getattr(step, name)
            if value is not None:
                said = f"{name} of the report's summary.memory.steps: bytes when a step had ended."
                yield ScalarPoint(f"profkit_memory/{name}", step.step, value, said)


def _of_recording(known: RunSummary, place: int) -> Iterator[ScalarPoint]:
    def of_all(name: str, value: float) -> ScalarPoint:
        return _point(f"profkit_recordings/{name}", place, value)

    if known.step_ns is not None:
        yield of_all("median_step_ms", known.step_ns / _NS_PER_MS)
    if known.device_busy_share is not None:
        yield of_all("device_busy_share", known.device_busy_share)
    for peak in known.peaks:
        tag = f"profkit_recordings/peak_bytes_{_safe(peak.device)}"
        yield ScalarPoint(
            tag, place, peak.bytes, "The highest use of this device's memory, in bytes."
        )
    yield of_all("errors", known.n_errors)
    yield of_all("warnings", known.n_warnings)
    yield of_all("notes", known.n_notes)
    yield of_all("could_be_saved_ms", known.recoverable_ns / _NS_PER_MS)


def _events(report: Report, place: int) -> bytes:
    """A whole file of events."""
    try:
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.plugins.hparams import summary_v2
        from tensorboard.plugins.scalar import metadata
        from tensorboard.summary.writer.record_writer import RecordWriter
        from tensorboard.util import tensor_util
    except ImportError as error:
        message = f"TensorBoard cannot be imported: {error}."
        raise OutputError(message, "pip install tensorboard") from error

    moment_s = _moment_s(report)
    file = io.BytesIO()
    writer = RecordWriter(file)

    def add(**content: Any) -> None:  # noqa: ANN401  (an event's fields)
        writer.write(event_pb2.Event(wall_time=moment_s, **content).SerializeToString())

    add(file_version="brain.Event:2")
    for point in points(report, place):
        value = summary_pb2.Summary.Value(
            tag=point.tag,
            tensor=tensor_util.make_tensor_proto(point.value, dtype="float32"),
            metadata=metadata.create_summary_metadata("", point.said),
        )
        add(step=point.step, summary=summary_pb2.Summary(value=[value]))
    for tag, text in _texts(report).items():
        add(step=place, summary=_text_summary(tag, text))
    about = summary_v2.hparams_pb(
        _settings(report), trial_id=_digest(report), start_time_secs=moment_s
    )
    add(summary=about)
    return file.getvalue()


def _text_summary(tag: str, text: str) -> Any:  # noqa: ANN401  (TensorBoard ships no types)
    from tensorboard.compat.proto import summary_pb2
    from tensorboard.plugins.text import metadata
    from tensorboard.util import tensor_util

    value = summary_pb2.Summary.Value(
        tag=tag,
        tensor=tensor_util.make_tensor_proto([text.encode("utf-8", "replace")]),
        metadata=metadata.create_summary_metadata("", "What profkit says of the recording."),
    )
    return summary_pb2.Summary(value=[value])


def _texts(report: Report) -> Mapping[str, str]:
    """The report as Markdown, and its findings alone, a line each."""
    lines = [
        f"- **{finding.severity}** {finding.rule} {finding.name}: {_in_line(finding.message)}"
        for finding in report.findings[:_MOST_LINES]
    ]
    if len(report.findings) > _MOST_LINES:
        lines.append(f"- … and {format_count(len(report.findings) - _MOST_LINES)} more")
    findings = "\n".join(lines)
    return {
        "profkit/report": render(report, "md").decode(),
        "profkit/findings": findings or "No rule that could look found anything to change.",
    }


def _in_line(text: str) -> str:
    """A text of a recording within a line of Markdown: none of its characters means anything."""
    return re.sub(r"([\\`*_\[\]<>#|~&])", r"\\\1", " ".join(visible(text).split()))


def _settings(report: Report) -> dict[str, bool | float | str]:
    """What runs differ in, as far as a recording tells."""
    source = report.source
    recorded = source.recorded_with
    told: dict[str, bool | float | str | None] = {
        "torch": source.torch,
        "device": ", ".join(sorted(set(filter(None, source.devices)))) or "CPU",
        "rank": source.rank,
        "world_size": source.world_size,
        "profkit": report.profkit,
        "stacks": recorded.stacks,
        "shapes": recorded.shapes,
    }
    return {
        name: visible(value) if isinstance(value, str) else value
        for name, value in told.items()
        if value is not None
    }


def _moment_s(report: Report) -> float:
    """When the recording was written, in seconds since 1970; 0 where its file is not here."""
    try:
        return Path(report.source.path).stat().st_mtime
    except (OSError, ValueError):
        return 0.0


def _file_name(report: Report) -> str:
    return f"events.out.tfevents.{int(_moment_s(report)):010d}.profkit.{_digest(report)}"


def _digest(report: Report) -> str:
    name = Path(report.source.path).absolute().as_posix()
    return hashlib.sha256(name.encode("utf-8", "surrogateescape")).hexdigest()[:12]


def _runs(paths: list[str]) -> list[str]:
    """What the run of each recording is called: its folder, and the one above if that is needed."""
    folders = [Path(path).absolute().parent for path in paths]
    names = Counter(folder.name for folder in set(folders))
    return [
        _safe(folder.name) if names[folder.name] == 1
        else f"{_safe(folder.parent.name)}/{_safe(folder.name)}"
        for folder in folders
    ]  # fmt: skip


def _safe(name: str) -> str:
    return _ODD.sub("_", name).strip("._") or "run"
