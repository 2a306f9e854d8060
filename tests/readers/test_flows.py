"""Launches and device work without correlation ids are joined by flows, or by external ids."""

import random
from pathlib import Path
from typing import Any

import pytest

from profkit.engine.context import Context
from profkit.model.events import MISSING, NO_ROW
from tests.traces import load_events

Entry = dict[str, Any]
HOST: Entry = {"pid": 100, "tid": 100}
STREAM: Entry = {"pid": 2, "tid": 0}


def call(name: str, ts: float, ident: int | None = None) -> Entry:
    args = {} if ident is None else {"External id": ident}
    return {
        "ph": "X",
        "cat": "cuda_runtime",
        "name": name,
        "ts": ts,
        "dur": 2,
        **HOST,
        "args": args,
    }


def kernel(ts: float, ident: int | None = None) -> Entry:
    args = {} if ident is None else {"External id": ident}
    return {"ph": "X", "cat": "kernel", "name": "k", "ts": ts, "dur": 5, **STREAM, "args": args}


def flow(ph: str, ident: int, ts: float, place: Entry, cat: str = "ac2g") -> Entry:
    return {"ph": ph, "id": ident, "cat": cat, "name": cat, "ts": ts, "bp": "e", **place}


def read(tmp_path: Path, *events: Entry) -> Context:
    return Context(load_events(tmp_path, events))


def launches_us(ctx: Context) -> list[float | None]:
    """Return the start of the launch of each piece of device work, in microseconds."""
    start_us = 0 if not len(ctx.events) else 10
    return [
        None if row == NO_ROW else ctx.events.ts_ns[row] / 1000 + start_us
        for row in ctx.launches.launch.tolist()
    ]


@pytest.mark.parametrize("cat", ["ac2g", "async_cpu_to_gpu"])
@pytest.mark.parametrize("offset_us", [0, 1_771_536_568_809_804.25])
def test_flows_join_work_to_its_launch(tmp_path: Path, cat: str, offset_us: float) -> None:
    events = [call("hipLaunchKernel", 10), call("hipLaunchKernel", 13), kernel(20), kernel(30)]
    arrows = [
        flow("s", 7, 10, HOST, cat),
        flow("s", 8, 13, HOST, cat),
        flow("f", 7, 30, STREAM, cat),
        flow("f", 8, 20, STREAM, cat),
    ]
    for event in (*events, *arrows):
        event["ts"] += offset_us
    ctx = read(tmp_path, *arrows, *events)
    assert launches_us(ctx) == [13, 10]
    assert not len(ctx.launches.orphans)


def test_flows_are_not_read_where_events_have_correlation_ids(tmp_path: Path) -> None:
    first, second, work = call("cudaLaunchKernel", 10), call("cudaLaunchKernel", 13), kernel(20)
    first["args"]["correlation"] = work["args"]["correlation"] = 5
    second["args"]["correlation"] = 6
    misleading = [flow("s", 9, 13, HOST), flow("f", 9, 20, STREAM)]
    assert launches_us(read(tmp_path, first, second, work, *misleading)) == [10]


def test_flows_of_other_kinds_and_broken_ones_join_nothing(tmp_path: Path) -> None:
    broken: Entry = flow("s", 1, 10, HOST)
    broken["id"] = "0xnone"
    elsewhere = flow("f", 2, 20, {"pid": 2, "tid": 44})
    between = flow("s", 2, 11, HOST)
    other_flows = [flow("s", 3, 10, HOST, "fwdbwd"), flow("f", 3, 20, STREAM, "fwdbwd")]
    ctx = read(
        tmp_path, call("hipLaunchKernel", 10), kernel(20), broken, elsewhere, between, *other_flows
    )
    assert ctx.launches.launch.tolist() == [NO_ROW]


def test_many_flows_agree_with_a_dictionary(tmp_path: Path) -> None:
    random_ = random.Random(3)  # noqa: S311  (repeatable, not secret)
    calls = [(10 + 4 * i, i) for i in range(300)]
    works = [(20_000 + 7 * place, ident) for place, (_, ident) in enumerate(calls)]
    random_.shuffle(works)
    works = [(20_000 + 7 * place, ident) for place, (_, ident) in enumerate(works)]
    events = [call("hipLaunchKernel", at) for at, _ in calls] + [kernel(at) for at, _ in works]
    arrows = [flow("s", ident, at, HOST) for at, ident in calls]
    arrows += [flow("f", ident, at, STREAM) for at, ident in works]
    entries = events + arrows
    random_.shuffle(entries)
    ctx = read(tmp_path, *entries)
    began = {ident: at for at, ident in calls}
    expected = {at: began[ident] for at, ident in works}
    pairs = zip(ctx.launches.work.tolist(), ctx.launches.launch.tolist(), strict=True)

    launch_of = {
        ctx.events.ts_ns[work] / 1000 + 10: ctx.events.ts_ns[launch] / 1000 + 10
        for work, launch in pairs
    }
    assert launch_of == expected


def test_an_external_id_of_one_launch_joins_its_work(tmp_path: Path) -> None:
    operator = {
        "ph": "X",
        "cat": "cpu_op",
        "name": "aten::mm",
        "ts": 9,
        "dur": 10,
        **HOST,
        "args": {"External id": 2},
    }
    query = call("hipGetDevicePropertiesR0600", 10, 1)
    ctx = read(tmp_path, operator, query, call("hipExtModuleLaunchKernel", 14, 2), kernel(25, 2))

    (launch,) = ctx.launches.launch
    assert ctx.events.name_of(launch) == "hipExtModuleLaunchKernel"
    assert ctx.events.correlation.at(ctx.launches.work).tolist() == [MISSING]

    (op,) = ctx.launches.op
    assert ctx.events.name_of(op) == "aten::mm"


def test_an_external_id_that_several_launches_share_joins_nothing(tmp_path: Path) -> None:
    shared = [call("hipLaunchKernel", 10, 4), call("hipLaunchKernel", 13, 4), kernel(20, 4)]
    assert read(tmp_path, *shared).launches.launch.tolist() == [NO_ROW]


def test_work_does_not_begin_before_its_launch(tmp_path: Path) -> None:
    late = [call("hipLaunchKernel", 50, 4), kernel(20, 4)]
    assert read(tmp_path, *late).launches.launch.tolist() == [NO_ROW]
