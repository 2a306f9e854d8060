"""Kineto traces of every layout are converted to columns."""

import gzip
import json
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profkit.api import analyze
from profkit.errors import (
    DamagedFileError,
    MissingFileError,
    NotATraceError,
    UnreadableFileError,
)
from profkit.model.events import MISSING, Category
from profkit.model.trace import Trace
from profkit.readers import stream
from profkit.readers.kineto.batch import to_int64, to_ns
from profkit.readers.kineto.split import TraceText, split_batches
from profkit.testing import TraceBuilder
from tests.traces import load_trace as load

Write = Callable[[Any], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def _write(content: object) -> Path:
        path = tmp_path / "trace.json"
        text = content if isinstance(content, (bytes, str)) else json.dumps(content)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return _write


def event(ts: object = 1.0, dur: object = 2.0, **more: Any) -> dict[str, Any]:  # noqa: ANN401
    return {
        "ph": "X",
        "cat": "cpu_op",
        "name": "aten::mm",
        "pid": 1,
        "tid": 2,
        "ts": ts,
        "dur": dur,
        **more,
    }


def starts(trace: Trace) -> list[int]:
    return (trace.events.ts_ns + trace.base_ns).tolist()


def test_relative_times_are_exact_to_the_nanosecond(write: Write) -> None:
    at = ["4345648174717.465", "4345648174717.466", "7800000000000.001", "8796093022207.999"]
    events = ", ".join(json.dumps(event()).replace('"ts": 1.0', f'"ts": {t}') for t in at)
    trace = load(write('{"baseTimeNanoseconds": 1000, "traceEvents": [' + events + "]}"))
    assert starts(trace) == [int(t.replace(".", "")) + 1000 for t in at]


def test_absolute_times_with_decimals_are_exact_to_the_nanosecond(write: Write) -> None:
    at = ["1682725898236567.101", "1682725898236567.102", "1682725898236568.999"]
    events = ", ".join(json.dumps(event()).replace('"ts": 1.0', f'"ts": {t}') for t in at)
    trace = load(write('{"traceEvents": [' + events + "]}"))
    assert starts(trace) == [int(t.replace(".", "")) for t in at]
    assert trace.events.ts_ns.tolist() == [0, 1, 1898]


def test_whole_microseconds_since_1970_are_exact(write: Write) -> None:
    trace = load(write({"traceEvents": [event(1682725898236567), event(1682725898236568)]}))
    assert starts(trace) == [1682725898236567000, 1682725898236568000]


@given(st.lists(st.integers(0, 7_800_000_000_000_000), min_size=1, max_size=20))
def test_floats_with_three_decimals_are_converted_exactly(nanoseconds: list[int]) -> None:
    as_read = [float(f"{ns // 1000}.{ns % 1000:03d}") for ns in nanoseconds]
    assert to_ns(as_read).tolist() == nanoseconds


@given(
    st.lists(
        st.one_of(
            st.decimals(-4_500_000_000_000_000, 4_500_000_000_000_000, places=4),
            st.sampled_from([Decimal("NaN"), Decimal("Infinity"), Decimal("1e30"), None]),
        ),
        min_size=1,
        max_size=8,
    )
)
def test_decimals_are_rounded_to_nanoseconds_and_invalid_times_are_missing(
    microseconds: list[Decimal | None],
) -> None:
    for us, ns in zip(microseconds, to_ns(microseconds).tolist(), strict=True):
        if us is None or not us.is_finite() or us > 10**16:
            assert ns == MISSING
        else:
            assert abs(Fraction(ns) - Fraction(us) * 1000) <= Fraction(1, 2)


def test_ids_beyond_63_bits_stay_distinct() -> None:
    assert to_int64([2**64 - 1, 5]).tolist() == [-1, 5]
    assert len(set(to_int64([2**64 - 1, 2**64 - 2, 2**63]).tolist())) == 3


LAYOUTS: dict[str, Callable[[dict[str, Any]], str]] = {
    "compact": lambda d: json.dumps(d, separators=(",", ":")),
    "default": json.dumps,
    "pretty": lambda d: json.dumps(d, indent=4),
    "one event per line": lambda d: (
        '{"schemaVersion": 1, "traceEvents": [\n'
        + ",\n".join(json.dumps(e) for e in d["traceEvents"])
        + '\n], "traceName": "x"}'
    ),
    "keys after the events": lambda d: json.dumps(
        {"traceEvents": d["traceEvents"], "deviceProperties": d["deviceProperties"]}
    ),
    "a bare array": lambda d: json.dumps(d["traceEvents"]),
    "padded": lambda d: "\n\n  " + json.dumps(d).replace("}, {", "}\n ,\n {") + "\n",
}


def built() -> dict[str, Any]:
    builder = TraceBuilder(memory=True)
    for _ in range(3):
        with builder.step():
            builder.launch("aten::mm", kernel="gemm", host_ns=8_000, device_ns=10_000)
            builder.alloc(512)
            builder.item()
    return builder.to_dict()


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("chunk_bytes", [97, 1000, 1 << 20])
def test_text_layout_and_chunk_size_do_not_matter(
    layout: Callable[[dict[str, Any]], str],
    chunk_bytes: int,
    write: Write,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    document = built()
    expected = load(write(document))
    monkeypatch.setattr(stream, "CHUNK_BYTES", chunk_bytes)
    trace = load(write(layout(document)))
    assert trace.notes.n_events == len(document["traceEvents"])
    for column in ("position", "category", "ts_ns", "dur_ns"):
        assert np.array_equal(getattr(trace.events, column), getattr(expected.events, column))
    assert [trace.events.name_of(i) for i in range(len(trace.events))] == [
        expected.events.name_of(i) for i in range(len(expected.events))
    ]
    assert trace.memory.n_bytes.tolist() == expected.memory.n_bytes.tolist()
    assert not trace.notes.truncated


def test_gzip_changes_nothing(write: Write, tmp_path: Path) -> None:
    plain = load(write(built()))
    packed = tmp_path / "t.json.gz"
    packed.write_bytes(gzip.compress(json.dumps(built()).encode()))
    assert load(packed).events.ts_ns.tolist() == plain.events.ts_ns.tolist()


def test_an_event_that_contains_a_list_of_events_is_one_event(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "CHUNK_BYTES", 64)
    nested = event(args={"list": [{"ph": "X", "name": "in"}, {"ph": "X", "name": "ner"}] * 9})
    trace = load(
        write({"traceEvents": [event(), nested, event(7.0)], "z": [{"name": 1}, {"ph": 2}]})
    )
    assert trace.notes.n_events == 3
    assert [trace.events.name_of(i) for i in range(3)] == ["aten::mm"] * 3


def test_old_and_new_category_names_mean_the_same(write: Write) -> None:
    pairs = {
        "Operator": Category.OP,
        "Kernel": Category.KERNEL,
        "Memcpy": Category.MEMCPY,
        "Runtime": Category.RUNTIME,
        "cuda_runtime": Category.RUNTIME,
        "gpu_user_annotation": Category.DEVICE_ANNOTATION,
        "unknown category": Category.OTHER,
    }
    trace = load(write([event(cat=cat) for cat in pairs]))
    assert trace.events.category.tolist() == list(pairs.values())
    assert trace.notes.categories["unknown category"] == 1


def test_a_thread_written_as_a_number_and_as_a_string_is_one_lane(write: Write) -> None:
    trace = load(write([event(tid=7), event(tid="7"), event(tid="stream 7")]))
    assert trace.events.lane[0] == trace.events.lane[1] != trace.events.lane[2]


def test_numbers_written_as_strings_are_numbers(write: Write) -> None:
    copy = event(cat="gpu_memcpy", args={"bytes": "4096", "device": "1", "correlation": "77"})
    events = load(write([copy])).events
    row = np.array([0])
    assert (events.n_bytes.at(row)[0], events.device.at(row)[0]) == (4096, 1)
    assert events.correlation.at(row)[0] == 77


def test_an_argument_of_the_wrong_type_is_dropped_but_not_its_event(write: Write) -> None:
    invalid = event(args={"External id": {"a": 1}, "Sequence number": 12})
    trace = load(write([event(), invalid, "no event", None, {"ph": "X"}]))
    assert trace.notes.n_complete == 2
    assert trace.notes.n_skipped == 3
    rows = np.array([0, 1])
    assert trace.events.external_id.at(rows).tolist() == [MISSING, MISSING]
    assert trace.events.sequence.at(rows).tolist() == [MISSING, 12]


def test_builtins_called_on_different_objects_have_one_name(write: Write) -> None:
    names = [f"<built-in method item of Tensor object at 0x7f{i:02x}>" for i in range(9)]
    trace = load(write([event(cat="python_function", name=name) for name in names]))
    assert trace.events.names == ("<built-in method item of Tensor object>",)


def test_windows_paths_that_were_written_unescaped_are_read(write: Write) -> None:
    text = json.dumps([event(name="NAME"), event()]).replace(
        "NAME", r"C:\Users\py torch\x.py(3): f"
    )
    trace = load(write(text))
    assert trace.events.names[0] == r"C:\Users\py torch\x.py(3): f"


def test_metadata_beside_the_events_is_read(write: Write) -> None:
    head = {
        "deviceProperties": [
            {
                "id": 1,
                "name": "H200",
                "totalGlobalMem": 9,
                "numSms": 132,
                "computeMajor": 9,
                "computeMinor": 0,
            }
        ],
        "distributedInfo": {"rank": 3, "world_size": 8, "backend": "nccl"},
        "with_stack": 1,
        "cuda_driver_version": 12080,
        "host_name": "node",
        "WARNING": ["lost some"],
        "baseTimeNanoseconds": 5,
    }

    trace = load(write({**head, "traceEvents": [event(1.0)]}))
    assert (trace.rank, trace.world_size, trace.host) == (3, 8, "node")
    assert trace.devices[1].compute_capability == (9, 0)
    assert trace.recorded_with.stacks is True
    assert trace.recorded_with.memory is False
    assert trace.versions == {"cuda_driver_version": "12080"}
    assert trace.notes.messages == {"WARNING": ("lost some",)}
    assert trace.base_ns == 1005


def test_a_trace_without_events_is_a_trace(write: Write) -> None:
    trace = load(write({"traceEvents": []}))
    assert (len(trace.events), trace.notes.n_events, trace.notes.truncated) == (0, 0, False)


def test_a_truncated_file_is_read_up_to_its_end(write: Write) -> None:
    text = json.dumps({"traceEvents": [event(float(i)) for i in range(100)]})
    trace = load(write(text[:2000]))
    assert trace.notes.truncated
    assert trace.notes.n_complete == text[:2000].count("}")


def test_a_missing_file_gives_a_hint_at_the_only_trace_beside_it(tmp_path: Path) -> None:
    (tmp_path / "real.json").write_text("[]")
    with pytest.raises(MissingFileError) as missing:
        load(tmp_path / "trace.json")
    assert "trace.json" in missing.value.message
    assert missing.value.hint == "Did you mean real.json?"


def test_an_empty_path_is_not_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "some.pt.trace.json").write_text('{"traceEvents": []}')
    monkeypatch.chdir(tmp_path)
    for paths in ("", [""], ["some.pt.trace.json", ""]):
        with pytest.raises(MissingFileError, match="The path is empty"):
            analyze(paths)


def test_devices_and_folders_are_not_traces(tmp_path: Path) -> None:
    with pytest.raises(UnreadableFileError):
        load("/dev/null")
    with pytest.raises(MissingFileError, match="folder without traces"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty"),
        (b"{}", "no traceEvents"),
        (b'{"nodes": [{"op_schema": ""}]}', "execution trace"),
        (b"\x80\x04}.", "pickle"),
        (b"hello", "not JSON"),
        (b'["a", "b"]', "none of them"),
    ],
)
def test_other_content_is_refused_with_a_message_that_says_what_it_is(
    content: bytes, message: str, write: Write
) -> None:
    with pytest.raises(NotATraceError, match=message):
        load(write(content))


def test_gzip_data_broken_from_the_start_is_damaged(write: Write) -> None:
    with pytest.raises(DamagedFileError):
        load(write(gzip.compress(b"x" * 1000)[:10] + b"\xff" * 50))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.dictionaries(st.sampled_from('abé"\\{}[],'), st.text(max_size=12), max_size=3),
        max_size=30,
    ),
    st.integers(1, 200),
)
def test_batches_contain_every_event_once_and_in_order(
    payloads: list[dict[str, str]], chunk: int
) -> None:
    events = [event(float(i), args=payload) for i, payload in enumerate(payloads)]
    data = json.dumps({"traceEvents": events, "after": 1}).encode()
    text = TraceText()
    chunks = [data[i : i + chunk] for i in range(0, len(data), chunk)]
    read_events = [e for batch in split_batches(chunks, text) for e in json.loads(batch)]
    assert read_events == events
    assert text.complete
    assert bytes(text.tail).endswith(b'"after": 1}')
