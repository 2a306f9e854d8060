"""Every key that the schema of events names is read: it ends in a column, or decides one."""

import json
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from profkit.model.events import NO_VALUES, EventTable, MemoryTable
from profkit.model.trace import Trace
from profkit.readers.kineto.batch import INTERNED, MEMORY, SPARSE
from profkit.readers.kineto.schema import CollectiveArgs
from tests.traces import load_trace

ARGS: Final = {field.name: field for field in msgspec.structs.fields(CollectiveArgs)}
DECIDING: Final = {
    "external_id_before_1_11": "external_id in traces of torch 1.8 to 1.10",
    "cupti_correlation": "correlation, and category of events without one",
    "sycl_queue": "stream of an XPU",
    "warps_per_sm": "whether an occupancy of 0 is one",
    "wait_type": "category of an XPU's syncs",
    "task_type": "category of an Ascend device's tasks",
    "finished": "whether an event has an end",
}
"""Arguments that have no column of their own, and what they decide."""
VALUES: Final[dict[type, Any]] = {int: 7, float: 0.5, str: "text", msgspec.Raw: [1, 2, 3]}
WORK: Final = ("cpu_op", "kernel", "gpu_memcpy")
"""Categories whose events have all sparse columns between them."""


def build_event(category: str, **more: Any) -> dict[str, Any]:  # noqa: ANN401  (any JSON value)
    args = {
        field.encode_name: VALUES[field.type]
        for field in ARGS.values()
        if field.name not in DECIDING
    }

    return {
        "ph": "X",
        "cat": category,
        "name": category,
        "pid": 1,
        "tid": 2,
        "ts": 1.0,
        "dur": 2.0,
        "args": args,
        **more,
    }


def read(path: Path, *events: dict[str, Any], broken: bytes = b"") -> Trace:
    text = json.dumps({"traceEvents": events}).encode()
    path.write_bytes(text.replace(b"[", b"[" + broken, 1))
    return load_trace(path)


def text_of(value: object) -> object:
    return json.dumps(value) if isinstance(value, list) else value


@pytest.mark.parametrize("broken", [b"", rb'{"ph": "X", "name": "C:\Users"}, '])
def test_every_argument_ends_in_its_column(broken: bytes, tmp_path: Path) -> None:
    events = read(tmp_path / "t.json", *map(build_event, WORK), broken=broken).events
    for name in SPARSE:
        values = set(getattr(events, name).values.tolist())
        if name in INTERNED:
            values = {events.names[number] for number in values}
        assert values == {text_of(VALUES[ARGS[name].type])}, name


def test_every_argument_of_an_allocation_ends_in_its_column(tmp_path: Path) -> None:
    allocation = build_event("cpu_instant_event", ph="i", name="[memory]")
    memory = read(tmp_path / "t.json", build_event("cpu_op"), allocation).memory
    assert {name: getattr(memory, name).tolist() for name in MEMORY} == {
        name: [7] for name in MEMORY
    }


def test_no_argument_and_no_column_is_forgotten() -> None:
    assert set(ARGS) == {*SPARSE, *MEMORY.values(), *DECIDING}
    assert set(SPARSE) == {field.name for field in fields(EventTable) if field.default is NO_VALUES}
    columns = {field.name for field in fields(MemoryTable)}
    assert columns == {*MEMORY, "position", "lane", "ts_ns"}
