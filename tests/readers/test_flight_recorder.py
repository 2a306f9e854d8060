"""Dumps of torch's FlightRecorder are read as JSON and as pickles; none of them is trusted."""

import gzip
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profkit.cli.main import main
from profkit.errors import DamagedFileError, LoadError, NotATraceError
from profkit.model.flight_record import FlightRecord
from profkit.model.trace import Trace
from profkit.readers.flight_recorder import convert_dump, is_dump, rank_in
from profkit.readers.open import load
from tests.flight import NS, S, build_entry, dump, own, waiting, written
from tests.processes import start


def record_of(path: Path) -> FlightRecord:
    record = load(path)
    assert isinstance(record, FlightRecord)
    return record


def test_json_and_pickle_are_the_same_record(tmp_path: Path) -> None:
    data = dump([build_entry(1, line=7), waiting(2, n=24)])
    written(tmp_path, data, name="nccl_trace_rank_{}.json")
    (tmp_path / "nccl_trace_rank_0").write_bytes(pickle.dumps(data, protocol=2))
    (tmp_path / "nccl_trace_rank_0.gz").write_bytes(gzip.compress(pickle.dumps(data, protocol=2)))

    from_json, two, three = (
        record_of(tmp_path / f"nccl_trace_rank_0{ending}") for ending in (".json", "", ".gz")
    )
    assert from_json.calls == two.calls == three.calls
    assert (from_json.rank, from_json.world_size, from_json.version, from_json.has_all) == (
        0,
        3,
        "2.10",
        True,
    )
    assert from_json.groups["0"].ranks == (0, 1, 2)

    first, second = from_json.calls
    assert (first.seq, first.n_in, first.element_type, first.progress) == (
        1,
        1000,
        "Float",
        "completed",
    )
    assert [(frame.file, frame.line) for frame in first.frames][-1] == ("/home/me/train.py", 7)
    assert (second.progress, second.created_ns, second.n_out) == ("started", NS + 2 * S, 24)


def test_dumps_of_earlier_versions_are_read(tmp_path: Path) -> None:
    old = {
        "pg_id": 3,
        "seq_id": 5,
        "profiling_name": "nccl:broadcast",
        "time_created_us": NS // 1000,
        "input_sizes": [[2, 3]],
        "output_sizes": [[2, 3]],
        "state": "scheduled",
        "retired": True,
    }
    (tmp_path / "rank_1").write_bytes(pickle.dumps([old], protocol=2))
    record = record_of(tmp_path / "rank_1")

    (call,) = record.calls
    assert (record.rank, call.group, call.seq, call.created_ns, call.n_in) == (1, "3", 5, NS, 6)
    assert call.has_timed_out, "torch has stopped waiting for it"


def test_gloo_only_retires_calls(tmp_path: Path) -> None:
    gloo = {"profiling_name": "gloo:all_reduce", "state": "scheduled"}
    written(tmp_path, dump([build_entry(1, **gloo), build_entry(2, **gloo, retired=False)]))
    assert [call.progress for call in record_of(tmp_path / "fr_rank0.json").calls] == [
        "completed",
        "scheduled",
    ]


def test_the_dumps_of_profkit_have_rank_end_and_groups(tmp_path: Path) -> None:
    stopped = own(
        dump([build_entry(1)]), 2, stopped_by="RuntimeError", groups={"0": [0, 1, 2], "tp": [1, 2]}
    )
    stopped["dumps"].append(
        dump([build_entry(1, profiling_name="gloo:barrier", time_created_ns=NS)])
    )
    path = tmp_path / "node_1.17.flight.json.gz"
    path.write_bytes(gzip.compress(json.dumps(stopped).encode()))

    record = record_of(path)
    assert (record.rank, record.host, record.is_end, record.is_of_window) == (
        2,
        "node",
        True,
        False,
    )
    assert record.stopped_by == "RuntimeError"
    assert record.groups["tp"].ranks == (1, 2)
    assert [call.name for call in record.calls] == ["gloo:barrier", "nccl:all_reduce"], "by time"


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("/a/nccl_trace_rank_12", 12),
        ("fr_rank3.json.gz", 3),
        ("dumps.tar!job/rank-7.pickle", 7),
        ("host5_dump_4", 4),
        ("node_99_rank1.1795345383332496080.flight.json.gz", 1),
        ("dump.json", None),
        ("trace_1795345383332496080", None),
    ],
)
def test_the_rank_is_in_the_files_name(name: str, rank: int | None) -> None:
    assert rank_in(name) == rank


def test_what_is_not_as_torch_writes_it_is_left_out(tmp_path: Path) -> None:
    odd = build_entry(
        2,
        process_group=None,
        collective_seq_id="2",
        time_created_ns=-1,
        state=["x"],
        input_sizes=[[1 << 60, "a", 3], 5],
        input_dtypes=[{}],
        frames=[1, {}],
    )
    written(tmp_path, dump([build_entry(1), 5, {"a": 1}, odd]))  # type: ignore[list-item]

    record = record_of(tmp_path / "fr_rank0.json")
    assert record.n_skipped == 2

    call = record.calls[1]
    assert (call.group, call.seq, call.created_ns, call.progress) == ("", None, None, "scheduled")
    assert (call.inputs, call.frames, call.n_in) == (((3,),), (), 3)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.dictionaries(
                st.sampled_from([*build_entry(1), "entries", "frames", "ranks"]), inner
            )
        ),
        max_leaves=20,
    )
)
def test_any_values_are_read(value: object) -> None:
    for key in (*build_entry(1), "frames"):
        convert_dump(dump([build_entry(1) | {key: value}]), "x")
    for key in dump([]):
        data = dump([build_entry(1)]) | {key: value}
        if is_dump(data):
            convert_dump(data, "x")
    assert convert_dump(own(dump([build_entry(1)]), 0, groups=value), "fr_rank4.json").rank in {
        0,
        4,
    }


class Evil:
    """Would run code when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (exec, ("raise SystemExit('code was run')",))


def _bomb() -> bytes:
    frames = [{"filename": "a.py", "line": 1, "name": "f"}] * 1000
    return pickle.dumps(dump([build_entry(1) | {"frames": frames}] * 1000), protocol=2)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (
            pickle.dumps(dump([build_entry(1) | {"frames": Evil()}]), protocol=2),
            "none of its code was run",
        ),
        (pickle.dumps(dump([build_entry(1)]), protocol=2)[:-40], "truncated"),
        (_bomb(), "refers to the same entries repeatedly"),
        (json.dumps(dump([build_entry(1)])).encode()[:-40], "incomplete FlightRecorder dump"),
        (b'{"entries":' + b"[" * 100_000, "not a profiler trace"),
        (pickle.dumps({"entries": 3}, protocol=2), "not a memory snapshot or"),
    ],
)
def test_hostile_dumps_are_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes, sentence: str
) -> None:
    path = tmp_path / "nccl_trace_rank_0"
    path.write_bytes(content)
    assert main(["analyze", str(path)]) == 3
    assert sentence in capsys.readouterr().err


def test_large_dumps_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "fr_rank0.json"
    path.write_text(json.dumps(dump([build_entry(1)])))
    with pytest.raises(LoadError, match="more than 100"):
        load(path, limit_bytes=100)


def test_other_json_is_not_a_dump(tmp_path: Path) -> None:
    path = tmp_path / "settings.json"
    path.write_text('{"version": "2.10", "entries": [1, 2]}')
    with pytest.raises(NotATraceError):
        load(path)
    path.write_text('{"version": 1, "traceEvents": [{"ph": "X", "cat": "cpu_op", "ts": 1}]}')
    assert not isinstance(load(path), FlightRecord)
    path.write_text('{"flight_recorder_of": {')
    with pytest.raises(DamagedFileError):
        load(path)


DEBUG_SERVER = """
import os, sys, urllib.request
import torch
import torch.distributed as dist
import torch.distributed.debug._handlers
from torch._C._distributed_c10d import _WorkerServer

store = dist.FileStore(sys.argv[1], 1)
dist.init_process_group("gloo", store=store, rank=0, world_size=1)
for _ in range(3):
    dist.all_reduce(torch.ones(4))
server = _WorkerServer("::", 0)
for question, file in (("fr_trace_json", "fr_rank0.json"),
                       ("torch_profile?duration=0.1", "rank0.pt.trace.json")):
    url = f"http://localhost:{server.port}/handler/{question}"
    with urllib.request.urlopen(urllib.request.Request(url, method="POST")) as answer:
        open(file, "wb").write(answer.read())
server.shutdown()
"""


@pytest.mark.slow
def test_what_the_debug_server_of_torch_answers_is_read(tmp_path: Path) -> None:
    ended = start(tmp_path, "-c", DEBUG_SERVER, str(tmp_path / "store"))
    assert ended.code == 0, ended.err
    record = load(tmp_path / "fr_rank0.json")
    assert isinstance(record, FlightRecord)
    assert [call.name for call in record.calls] == ["gloo:all_reduce"] * 3
    assert [call.inputs for call in record.calls] == [((4,),)] * 3
    assert isinstance(load(tmp_path / "rank0.pt.trace.json"), Trace)
