"""A file read by several processes gives the same trace as one read by a single process."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from profkit.model.trace import Trace
from profkit.readers import stream
from profkit.readers.kineto import parallel, read
from profkit.testing import Format, TraceBuilder


def builder() -> TraceBuilder:
    built = TraceBuilder(stacks=True, memory=True)
    for number in range(4_000):
        with built.thread(1000 + number % 3), built.frame(f"f{number % 50}.py", 1, "f"):
            built.launch(f"aten::op{number % 70}", kernel="k", host_ns=9_000, device_ns=1_000)
        built.alloc(64)
    return built


@pytest.fixture(scope="module")
def trace_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("parallel") / "t.json"
    path.write_bytes(builder().to_bytes())
    # Several batches per process with the real chunk size.
    assert path.stat().st_size > 1.5 * stream.CHUNK_BYTES
    return path


def read_by(path: Path, n: int, monkeypatch: pytest.MonkeyPatch) -> Trace:
    monkeypatch.setattr(read, "processes_for", lambda _: n)
    return read.read_kineto(path)


def list_events(trace: Trace) -> list[tuple[object, ...]]:
    events = trace.events
    rows = np.arange(len(events))
    lanes = [events.lanes[number] for number in events.lane.tolist()]
    sparse = [getattr(events, key).at(rows).tolist() for key in ("correlation", "external_id")]

    return list(
        zip(
            events.position.tolist(),
            [events.name_of(row) for row in rows.tolist()],
            lanes,
            events.ts_ns.tolist(),
            events.dur_ns.tolist(),
            *sparse,
            strict=True,
        )
    )


@pytest.mark.parametrize("n", [2, 3])
def test_several_processes_read_the_same_as_one(
    n: int, trace_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone, together = (read_by(trace_file, k, monkeypatch) for k in (1, n))
    assert list_events(together) == list_events(alone)
    assert together.notes == alone.notes
    assert together.memory.ts_ns.tolist() == alone.memory.ts_ns.tolist()


def test_a_compressed_file_is_read_in_parallel(
    trace_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = tmp_path / "t.json.gz"
    packed.write_bytes(gzip.compress(trace_file.read_bytes(), 1))
    assert list_events(read_by(packed, 2, monkeypatch)) == list_events(
        read_by(trace_file, 1, monkeypatch)
    )


def test_begin_and_end_events_are_read_in_parallel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = TraceBuilder(memory=True)
    # A name that only the first process reads, so that the others number names differently.
    built.compute("aten::zeros", 1_000)
    for number in range(6_000):
        args = {"Collective name": f"collective {number % 40}"}
        ident = built.call("LaunchKernel", 1_000)
        built.kernel(f"k{number % 90}", 1_000, correlation=ident, **args)
        built.alloc(64)
    path = tmp_path / "t.json"
    path.write_bytes(built.to_bytes(Format(begin_end=True, instants="I")))

    assert path.stat().st_size > 1.1 * stream.CHUNK_BYTES

    alone, together = (read_by(path, n, monkeypatch) for n in (1, 3))
    assert list_events(together) == list_events(alone)
    assert together.notes == alone.notes
    assert together.notes.n_unpaired == 0

    collectives = [
        [trace.events.names[number] for number in trace.events.collective.values.tolist()]
        for trace in (alone, together)
    ]
    assert len(collectives[0]) == 6_000
    assert collectives[0] == collectives[1]
    assert together.memory.ts_ns.tolist() == alone.memory.ts_ns.tolist()


def test_a_file_that_needs_salvaging_is_read_by_one_process(
    trace_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = json.loads(trace_file.read_bytes())
    for place in (3, len(document["traceEvents"]) // 2):
        document["traceEvents"][place]["args"] = {"External id": {"no": "number"}}
    invalid = tmp_path / "invalid.json"
    invalid.write_text(json.dumps(document))
    alone, together = (read_by(invalid, k, monkeypatch) for k in (1, 2))
    assert list_events(together) == list_events(alone)
    assert together.notes.n_complete == alone.notes.n_complete > 0


def test_a_file_is_read_again_if_a_worker_process_dies(
    trace_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = list_events(read_by(trace_file, 1, monkeypatch))
    start = parallel.start_workers

    def start_and_kill(path: Path, limit: int, n: int) -> object:
        workers = start(path, limit, n)
        for process in workers:
            process.kill()
        return workers

    monkeypatch.setattr(read, "start_workers", start_and_kill)
    assert list_events(read_by(trace_file, 2, monkeypatch)) == expected


def test_a_small_file_is_read_by_one_process(trace_file: Path) -> None:
    assert parallel.processes_for(trace_file) == 1
