"""Parquet: the rows of the recording with types and units."""

import builtins
import io
from pathlib import Path
from typing import Any

import pytest

from profkit.api import AnalysisResult, render, study
from profkit.errors import OutputError, UsageError
from profkit.model.events import EventTable
from profkit.renderers import parquet
from profkit.testing import SnapshotBuilder, TraceBuilder
from tests.renderers import reports

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


def read(studied: AnalysisResult, table: str = "") -> Any:  # noqa: ANN401  (a table of pyarrow)
    product = render(studied.report, "parquet", table=table, recording=studied.recording)
    return pq.read_table(io.BytesIO(product))


@pytest.fixture(scope="module")
def gpu(tmp_path_factory: pytest.TempPathFactory) -> AnalysisResult:
    """Two steps on a GPU, with memory and lines."""
    b = TraceBuilder(memory=True, stacks=True)
    for _ in range(2):
        with b.step(), b.frame("train.py", 7, "train"):
            b.launch("aten::mm", kernel="gemm", host_ns=10_000, device_ns=50_333)
            b.alloc(4096)
            b.item()
    return study(b.write(tmp_path_factory.mktemp("gpu") / "gpu.json"))


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> AnalysisResult:
    """Two blocks of one line, one of them freed."""
    b = SnapshotBuilder()
    with b.frame("/home/me/train.py", 7, "train"):
        b.alloc(4 << 20)
        b.free(b.alloc(8 << 20))
    return study(b.write(tmp_path_factory.mktemp("snap") / "memory.snapshot.pickle"))


def test_events_match_the_trace(gpu: AnalysisResult) -> None:
    table = read(gpu)
    events: EventTable = gpu.recording.context.events
    frame = events.to_pandas()
    for column in frame.columns:
        theirs = frame[column].astype(object).where(frame[column].notna(), None).tolist()
        assert table.column(column).to_pylist() == theirs


def test_times_are_integers_and_columns_have_units(gpu: AnalysisResult) -> None:
    schema = read(gpu).schema
    for name in ("ts_ns", "dur_ns"):
        assert schema.field(name).type == pa.int64()
        assert schema.field(name).metadata == {b"unit": b"ns"}
    assert schema.field("n_bytes").metadata == {b"unit": b"bytes"}
    assert schema.field("name").type == pa.dictionary(pa.int32(), pa.string())
    assert schema.metadata[b"table"] == b"events"


def test_events_have_their_step_and_source_line(gpu: AnalysisResult) -> None:
    kernel_rows = read(gpu).to_pylist()
    ops = [row for row in kernel_rows if row["name"] == "aten::mm"]
    assert [row["step"] for row in ops] == ["ProfilerStep#0", "ProfilerStep#1"]
    assert {(row["file"], row["line"], row["function"]) for row in ops} == {
        ("train.py", 7, "train")
    }
    kernels = [row for row in kernel_rows if row["name"] == "gemm"]
    assert [row["file"] for row in kernels] == [None, None]
    assert all(row["correlation"] is not None and row["device"] == 0 for row in kernels)


def test_memory_events_are_a_separate_table(gpu: AnalysisResult) -> None:
    memory_rows = read(gpu, "memory").to_pylist()
    assert [row["n_bytes"] for row in memory_rows] == [4096, 4096]
    assert {row["device"] for row in memory_rows} == {"cuda:0"}
    assert [row["total_allocated"] for row in memory_rows] == [4096, 8192]


def test_a_snapshot_has_blocks_and_history_with_source_lines(snapshot: AnalysisResult) -> None:
    blocks = read(snapshot).to_pylist()
    (alive,) = [row for row in blocks if row["state"] == "allocated"]
    assert alive["n_bytes"] == 4 << 20
    assert (alive["file"], alive["line"]) == ("/home/me/train.py", 7)
    history = read(snapshot, "history").to_pylist()
    allocated = [row["n_bytes"] for row in history if row["action"] == "alloc"]
    assert allocated == [4 << 20, 8 << 20]
    assert read(snapshot, "history").schema.field("time_us").metadata == {b"unit": b"us"}


def test_the_tables_of_the_report_are_included(gpu: AnalysisResult) -> None:
    names = parquet.table_names(gpu.report, parquet.Options(recording=gpu.recording))
    assert names[:3] == ("events", "memory", "findings")
    kernels = read(gpu, "kernels").to_pylist()
    assert [row["total_ns"] for row in kernels] == [
        kernel.total_ns for kernel in gpu.report.summary.top_kernels
    ]


def test_a_report_alone_has_its_findings() -> None:
    table = pq.read_table(io.BytesIO(render(reports.build_gpu_report(), "parquet")))
    assert table.column("rule").to_pylist()[:2] == ["DAT001", "MEM001"]
    assert table.schema.field("cost_ns").type == pa.int64()


def test_the_same_recording_gives_the_same_bytes(gpu: AnalysisResult) -> None:
    products = [render(gpu.report, "parquet", recording=gpu.recording) for _ in range(2)]
    assert products[0] == products[1]


@pytest.mark.parametrize("text", reports.HOSTILE, ids=range(len(reports.HOSTILE)))
def test_hostile_names_are_unchanged(text: str) -> None:
    product = render(reports.build_hostile_report(text), "parquet", table="kernels")
    (row, *_) = pq.read_table(io.BytesIO(product)).to_pylist()
    assert row["name"] == text.encode("utf-8", "backslashreplace").decode()


def test_an_unknown_table_is_a_usage_error(gpu: AnalysisResult) -> None:
    with pytest.raises(UsageError, match="There is no table 'blocks'"):
        read(gpu, "blocks")


def test_without_pyarrow_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def missing(name: str, *rest: Any, **more: Any) -> Any:  # noqa: ANN401  (as Python calls it)
        if name.startswith("pyarrow"):
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(OutputError) as refused:
        render(reports.build_gpu_report(), "parquet")
    assert "profkit[parquet]" in refused.value.hint


def test_monitored_memory_is_a_table_of_samples(tmp_path: Path) -> None:
    from profkit.testing import LiveBuilder

    studied = study(LiveBuilder().write(tmp_path / "run.memory.json.gz"))
    live = studied.recording.context.live
    assert live is not None
    assert read(studied).column("step").to_pylist() == [sample.step for sample in live.samples]


def test_a_text_of_many_rows_is_written_once(tmp_path: Path) -> None:
    b = SnapshotBuilder()
    for line in range(40):
        with b.frame("/home/me/train.py", line + 1, "train"):
            b.alloc(1 << 20)

    studied = study(b.write(tmp_path / "memory.snapshot.pickle"))
    products = {
        render(studied.report, "parquet", table="blocks", recording=studied.recording)
        for _ in range(3)
    }
    assert len(products) == 1

    columns = pq.ParquetFile(io.BytesIO(*products)).metadata.row_group(0)
    for place in range(columns.num_columns):
        assert columns.column(place).has_dictionary_page, columns.column(place).path_in_schema
