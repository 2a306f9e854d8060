"""What Perfetto's own trace processor imports of the traces that profkit exports."""

import json
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import NamedTuple

import pytest

from benchmarks.perfetto import trace_processor
from benchmarks.perfetto.trace_processor import Row, TraceProcessorError
from profkit.api import render, study
from profkit.testing import TraceBuilder
from tests import job_traces
from tests.renderers.trace_viewer import Event, events_of, ours

pytestmark = pytest.mark.skipif(
    bool(trace_processor.missing()), reason=trace_processor.missing() or "nothing is missing"
)

RECORDINGS = Path(__file__).parents[2] / "traces"
MONTH_US = 4_458_676_416_788
"""A machine's time since its start, on which nanoseconds do not fit into a double."""
ERRORS = "select name, value from stats where value > 0 and severity in ('error', 'data_loss')"
# A row of the trace is a thread. Marks of one thread are slices without a length.
SLICES = """
    select s.id, s.ts, s.dur, s.depth, s.parent_id as parent, s.name as name, pid, tid
    from slice s join thread_track on track_id = thread_track.id
    join thread using (utid) join process using (upid)
    order by s.ts, s.depth, s.id"""
COUNTERS = """
    select t.name as name, c.ts, c.value from counter c
    join process_counter_track t on c.track_id = t.id order by c.ts, c.id"""
FLOWS = "select slice_out, slice_in from flow"
CORRELATIONS = "select id, extract_arg(arg_set_id, 'args.correlation') as ident from slice"


class Imported(NamedTuple):
    """The events that were exported, and what Perfetto has of them."""

    events: list[Event]
    errors: list[Row]
    slices: list[Row]
    counters: list[Row]
    flows: list[Row]
    correlations: dict[int, int | None]


def imported(product: bytes, path: Path) -> Imported:
    path.write_bytes(product)
    errors, slices, counters, flows, idents = trace_processor.query(
        path, ERRORS, SLICES, COUNTERS, FLOWS, CORRELATIONS
    )
    correlations = {row["id"]: row["ident"] for row in idents}
    return Imported(events_of(product), errors, slices, counters, flows, correlations)


def write_gpu_recording(folder: Path) -> Path:
    """Steps on two streams with Python frames, memory, waits, and the arrows of launches."""
    b = TraceBuilder(memory=True, stacks=True)
    for _ in range(3):
        with b.step(), b.frame("train.py", 10, "train_step"):
            b.load(70_000)
            with b.frame("model.py", 20, "forward"):
                b.launch("aten::mm", kernel="gemm", host_ns=10_001, device_ns=50_333)
                b.alloc(4096)
            b.item()
            b.launch("aten::mm", kernel="gemm", host_ns=10_000, device_ns=50_001, stream=9)
            b.compute("aten::add", 400_111)
            b.synchronize()

    tree = json.loads(b.to_bytes(), parse_float=Decimal)
    launched = [e for e in tree["traceEvents"] if e.get("args", {}).get("correlation") is not None]
    kernels = {e["args"]["correlation"] for e in launched if e["cat"] in ("kernel", "gpu_memcpy")}
    for event in launched:
        if event["args"]["correlation"] in kernels:
            ph = "s" if event["cat"] == "cuda_runtime" else "f"
            place = {key: event[key] for key in ("pid", "tid", "ts")}
            ident = event["args"]["correlation"]
            arrow = {"ph": ph, "id": ident, "cat": "ac2g", "name": "ac2g", "bp": "e", **place}
            tree["traceEvents"].append(arrow)

    return written(tree, folder / "gpu.json")


def written(tree: dict[str, object], path: Path) -> Path:
    # Kineto's times have three decimals.
    path.write_text(json.dumps(tree, default=lambda value: float(f"{value:.3f}")))
    return path


def exported(path: Path) -> bytes:
    studied = study(path)
    return render(studied.report, "chrome", recording=studied.recording)


CASES = ("gpu", "cpu", "ranks")


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Imported:
    folder = tmp_path_factory.mktemp("perfetto")
    if request.param == "ranks":
        product = render(job_traces.job(folder, 3), "chrome")
    elif request.param == "cpu":
        (path,) = (RECORDINGS / "starved_loader").glob("*.json.gz")
        product = exported(path)
    else:
        product = exported(write_gpu_recording(folder))
    return imported(product, folder / "product.json")


def ns(microseconds: Decimal | int) -> int:
    return int(Decimal(microseconds) * 1000)


def expected_slices(events: list[Event]) -> Iterator[tuple[object, ...]]:
    """Return complete events with a length, their depth, and the slices around them."""
    threads: dict[tuple[int, int], list[tuple[int, int, str]]] = {}
    for event in events:
        if event["ph"] == "X" and event["dur"]:
            span = (ns(event["ts"]), ns(event["dur"]), event["name"])
            threads.setdefault((event["pid"], event["tid"]), []).append(span)
    for (pid, tid), spans in threads.items():
        around: list[tuple[int, int, str]] = []
        for start, length, name in sorted(spans, key=lambda span: (span[0], -span[1])):
            while around and sum(around[-1][:2]) <= start:
                around.pop()
            parent = (around[-1][0], around[-1][2]) if around else None
            yield pid, tid, start, length, name, len(around), parent
            around.append((start, length, name))


def test_perfetto_reports_no_error(case: Imported) -> None:
    assert case.errors == []


def test_every_event_is_a_slice_of_its_thread_nested_as_in_the_file(case: Imported) -> None:
    by_id = {row["id"]: row for row in case.slices}
    slices: Counter[tuple[object, ...]] = Counter()
    for row in case.slices:
        around = by_id.get(row["parent"])
        parent = (around["ts"], around["name"]) if around else None
        place = (row["pid"], row["tid"], row["ts"], row["dur"], row["name"])
        slices.update([(*place, row["depth"], parent)])
    # Names of threads that are text, such as "Spans", have numbers in Perfetto.
    numbered = [e for e in case.events if isinstance(e["pid"], int) and isinstance(e["tid"], int)]

    expected = Counter(expected_slices(numbered))
    assert sum(expected.values()) > 50
    assert slices & expected == expected

    # Of what begins where something without a length is, either may be drawn in the other.
    points = Counter(
        (event["pid"], event["tid"], ns(event["ts"]), 0, event["name"])
        for event in numbered
        if not event.get("dur") and (event["ph"] == "X" or event.get("s") == "t")
    )
    threads = {(event["pid"], event["tid"]) for event in numbered}
    unexpected = Counter(key[:5] for key in (slices - expected).elements() if key[:2] in threads)
    assert unexpected == points


def test_no_slice_is_left_unfinished(case: Imported) -> None:
    assert all(row["dur"] >= 0 for row in case.slices)


def test_every_value_of_a_counter_arrives(case: Imported) -> None:
    drawn = Counter(
        (f"{event['name']} {key}", ns(event["ts"]), float(value))
        for event in case.events
        if event["ph"] == "C"
        for key, value in event["args"].items()
    )
    assert Counter((row["name"], row["ts"], row["value"]) for row in case.counters) == drawn


def test_every_arrow_joins_the_slices_that_its_ends_are_in(case: Imported) -> None:
    by_id = {row["id"]: row for row in case.slices}
    begun = {(e["cat"], e["id"]): e for e in case.events if e["ph"] == "s"}
    ended = {(e["cat"], e["id"]): e for e in case.events if e["ph"] == "f"}
    assert len(case.flows) == len(begun) == len(ended)
    ends = [(begun[key], ended[key]) for key in begun]
    for row in case.flows:
        joined = [by_id[row[key]] for key in ("slice_out", "slice_in")]
        assert any(all(map(is_in, pair, joined)) for pair in ends)


def is_in(edge: Event, row: Row) -> bool:
    at = ns(edge["ts"])
    inside = row["ts"] <= at < row["ts"] + row["dur"] or row["ts"] == at
    return inside and (row["pid"], row["tid"]) == (edge["pid"], edge["tid"])


def test_every_launch_has_an_arrow_to_its_device_work(
    case: Imported, request: pytest.FixtureRequest
) -> None:
    idents = case.correlations
    joined = [(idents[row["slice_out"]], idents[row["slice_in"]]) for row in case.flows]
    launched = [left for left, right in joined if left is not None and left == right]
    expected = [
        event["id"] for event in case.events if event.get("cat") == "ac2g" and event["ph"] == "s"
    ]
    assert sorted(launched) == sorted(expected)
    assert bool(expected) == ("gpu" in request.node.name)


def test_slices_arrive_where_nanoseconds_do_not_fit_into_a_double(tmp_path: Path) -> None:
    tree = json.loads(write_gpu_recording(tmp_path).read_bytes(), parse_float=Decimal)
    for event in tree["traceEvents"]:
        event["ts"] += MONTH_US
    product = exported(written(tree, tmp_path / "moved.json"))
    slices = imported(product, tmp_path / "product.json")
    n_added = sum(event["ph"] == "X" for event in ours(slices.events))
    pid = next(event["pid"] for event in ours(slices.events))
    assert sum(row["pid"] == pid for row in slices.slices) == n_added


def test_what_perfetto_refuses_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "no trace.json"
    path.write_text("no trace")
    with pytest.raises(TraceProcessorError, match="Unknown trace type"):
        trace_processor.query(path, "select 1")
    path.write_text('{"traceEvents": []}')
    with pytest.raises(TraceProcessorError, match="incomplete input"):
        trace_processor.query(path, "select")
