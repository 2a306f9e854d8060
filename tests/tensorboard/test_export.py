"""Reports as TensorBoard events: every figure once, with the right tag, step and value."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

import msgspec
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.util import tensor_util

from profkit.api import analyze
from profkit.errors import OutputError
from profkit.integrations.tensorboard.export import build_points, write
from profkit.model.report import Report
from profkit.testing import LiveBuilder, SnapshotBuilder
from tests.renderers import reports
from tests.tensorboard.recordings import MB, STEPS, write_gpu_training
from tests.tensorboard.server import serving


def read(path: Path) -> dict[str, list[tuple[int, Any]]]:
    """Return the steps and values by tag, as TensorBoard reads them from a folder."""
    events = EventAccumulator(str(path), size_guidance={"tensors": 0})
    events.Reload()
    return {
        tag: [
            (event.step, tensor_util.make_ndarray(event.tensor_proto))
            for event in events.Tensors(tag)
        ]
        for tag in events.Tags()["tensors"]
        if not tag.startswith("_hparams_")
    }


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Report:
    return analyze(write_gpu_training(tmp_path_factory.mktemp("logs") / "train"))


def test_every_step_is_a_point_at_its_number(trained: Report, tmp_path: Path) -> None:
    (path,) = write([trained], tmp_path)
    assert path.parent == tmp_path / "train" / "profkit"
    scalars = read(path.parent)
    steps = trained.summary.steps
    assert [step for step, _ in scalars["profkit/step_ms"]] == list(range(STEPS))
    assert [float(value) for _, value in scalars["profkit/step_ms"]] == pytest.approx(
        [step.dur_ns / 1e6 for step in steps]
    )
    assert [float(value) for _, value in scalars["profkit/busy_share"]] == pytest.approx(
        [(step.gpu_busy_ns or 0) / step.dur_ns for step in steps]
    )
    assert [float(value) for _, value in scalars["profkit/data_wait_ms"]] == pytest.approx(
        [0.3] * 3
    )


def test_figures_of_a_recording_match_its_report(trained: Report, tmp_path: Path) -> None:
    (path,) = write([trained], tmp_path)
    exported = {
        tag: float(values[0][1])
        for tag, values in read(path.parent).items()
        if tag.startswith("profkit_recordings/")
    }
    assert exported["profkit_recordings/peak_bytes_cuda_0"] == 4 * MB
    severities = [finding.severity for finding in trained.findings]
    for name in ("error", "warning", "note"):
        assert exported[f"profkit_recordings/{name}s"] == severities.count(name)


def test_writing_again_changes_nothing(trained: Report, tmp_path: Path) -> None:
    (first,) = write([trained], tmp_path)
    before = first.read_bytes()
    (second,) = write([trained], tmp_path)
    assert first == second
    assert second.read_bytes() == before
    assert len(list(first.parent.iterdir())) == 1
    assert len(read(first.parent)["profkit/step_ms"]) == STEPS


def test_recordings_of_a_run_are_consecutive_steps(trained: Report, tmp_path: Path) -> None:
    source = trained.source
    second = replace(trained, source=replace(source, path=f"{source.path}.later"))
    paths = write([trained, second], tmp_path)
    assert len({path.parent for path in paths}) == 1
    scalars = read(paths[0].parent)
    assert sorted(step for step, _ in scalars["profkit_recordings/warnings"]) == [0, 1]


def test_folders_of_the_same_name_are_separate_runs(trained: Report, tmp_path: Path) -> None:
    both = [
        replace(trained, source=replace(trained.source, path=f"/logs/{name}/train/t.json"))
        for name in ("one", "two")
    ]
    runs = [path.relative_to(tmp_path).parent.as_posix() for path in write(both, tmp_path)]
    assert runs == ["one/train/profkit", "two/train/profkit"]


def test_memory_samples_and_snapshots_are_exported(tmp_path: Path) -> None:
    monitored = analyze(LiveBuilder().write(tmp_path / "w.memory.json.gz"))
    memory = monitored.summary.memory
    assert memory is not None

    exported = {
        (point.step, point.value)
        for point in build_points(monitored, 0)
        if point.tag == "profkit_memory/host_rss_bytes"
    }
    assert exported
    assert exported == {
        (step.step, step.host_rss_bytes) for step in memory.steps if step.host_rss_bytes is not None
    }

    snapshot = SnapshotBuilder()
    snapshot.alloc(64 * MB)
    report = analyze(snapshot.write(tmp_path / "s.snapshot.pickle"))
    peaks = {point.tag: point.value for point in build_points(report, 0)}
    assert peaks["profkit_recordings/peak_bytes_cuda_0"] == 64 * MB


REPORTS = {
    "a device": reports.build_gpu_report(),
    "the CPU": reports.build_cpu_report(),
    "watched": reports.watched_report(),
    "snapshots": reports.build_snapshot_report(2),
    "nothing": reports.empty_report(),
    "nothing checked": reports.unchecked_report(),
    "ten thousand findings": reports.many_findings(),
    **{
        f"hostile {n}": reports.build_hostile_report(text) for n, text in enumerate(reports.HOSTILE)
    },
}


@pytest.mark.parametrize("report", REPORTS.values(), ids=REPORTS)
def test_any_report_can_be_written_and_read(report: Report, tmp_path: Path) -> None:
    (path,) = write([report], tmp_path)
    assert tmp_path in path.parents
    assert "profkit_recordings/errors" in read(path.parent)


def test_an_unwritable_folder_is_an_output_error(trained: Report, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="cannot be written"):
        write([trained], tmp_path / "file")


def test_writing_imports_neither_torch_nor_tensorflow(tmp_path: Path) -> None:
    trace = write_gpu_training(tmp_path / "train")
    code = (
        "import sys; from pathlib import Path; import profkit; "
        "from profkit.integrations.tensorboard.export import write; "
        f"write([profkit.analyze({str(trace)!r})], Path({str(tmp_path / 'out')!r})); "
        "print(sorted({'torch', 'tensorflow'} & set(sys.modules)))"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "[]\n"


def test_tensorboard_serves_scalars_text_and_hparams(trained: Report, tmp_path: Path) -> None:
    write([trained], tmp_path)
    with serving(tmp_path) as server:

        def ask(route: str, **query: str) -> Any:  # noqa: ANN401
            address = f"{server.address}data/plugin/{route}?{urlencode(query)}"
            with urlopen(address, timeout=60) as answer:  # noqa: S310  (our own server)
                return msgspec.json.decode(answer.read())

        tags = ask("scalars/tags")["train/profkit"]
        assert tags["profkit/step_ms"]["description"].startswith("<p>Time of each recorded step")
        query = {"run": "train/profkit", "tag": "profkit/step_ms"}
        assert len(ask("scalars/scalars", **query)) == STEPS
        (text,) = ask("text/text", run="train/profkit", tag="profkit/report")
        assert "profkit report" in text["text"]
        assert set(ask("text/tags")["train/profkit"]) == {"profkit/findings", "profkit/report"}
