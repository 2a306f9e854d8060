"""Inputs on which the fuzzer found a bug, one test per bug."""

import json
from decimal import Decimal
from pathlib import Path

import pytest

from profkit.api import analyze, render
from profkit.index.host.nesting import build_call_tree
from profkit.readers.kineto.batch import to_ns
from tests.traces import load_trace as load
from tests.traces import op_event


def test_an_unpaired_surrogate_in_a_key_drops_only_that_key(tmp_path: Path) -> None:
    invalid = op_event(5.0, args={"\ud800": 1, "External id": 7})
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"traceEvents": [op_event(1.0), invalid, op_event(9.0)]}))
    events = load(path).events
    assert len(events) == 3
    assert events.external_id.values.tolist() == [7]
    assert analyze(path, strict=True).source.n_events == 3


def test_events_that_are_centuries_apart_on_many_threads_are_nested_correctly(
    tmp_path: Path,
) -> None:
    far = [op_event(1e14 * n, 50.0, tid=t) for n in range(20) for t in range(60)]
    inner = [op_event(1e14 * n + 10.0, 5.0, tid=t) for n in range(20) for t in range(60)]
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"traceEvents": far + inner}))
    events = load(path).events
    tree = build_call_tree(events)
    short = events.dur_ns == 5_000
    assert len(events) == 2400
    assert set(tree.depth[short].tolist()) == {1}
    assert set(tree.depth[~short].tolist()) == {0}
    assert analyze(path, strict=True).source.n_events == 2400


def test_floats_among_decimals_are_converted() -> None:
    assert to_ns([Decimal("1.5"), 2.5, 3]).tolist() == [1_500, 2_500, 3_000]


MANY_DIGITS = "7" * 5_000
"""More than Python converts to an integer: ``sys.get_int_max_str_digits()``."""


@pytest.mark.parametrize(
    "name",
    [
        f"train.py({MANY_DIGITS}): step",
        f"ProfilerStep#{MANY_DIGITS}",
        f"Torch-Compiled Region: 0/{MANY_DIGITS}",
        f"_ZN{MANY_DIGITS}kernel",
    ],
)
@pytest.mark.parametrize("category", ["cpu_op", "python_function", "user_annotation", "kernel"])
def test_numbers_of_thousands_of_digits_in_names_are_text(
    tmp_path: Path, name: str, category: str
) -> None:
    path = tmp_path / "t.json"
    events = [op_event(1.0), op_event(5.0, name=name, cat=category), op_event(9.0, cat=category)]
    path.write_text(json.dumps({"traceEvents": events}))
    report = analyze(path, strict=True)
    assert report.source.n_events == 3
    assert render(report, "html")


def test_numbers_of_thousands_of_digits_drop_their_event_alone(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    fields = [f'"tid":{MANY_DIGITS}', f'"dur":-{MANY_DIGITS}', f'"args":{{"stream":{MANY_DIGITS}}}']
    events = [json.dumps(op_event(1.0)), json.dumps(op_event(5.0))]
    events += [f"{json.dumps(op_event(9.0))[:-1]},{field}}}" for field in fields]
    events.append(json.dumps(op_event(20.0)))
    path.write_text(f'{{"traceEvents":[{",".join(events)}]}}')
    trace = load(path)
    assert (len(trace.events), trace.notes.n_skipped) == (3, 3)


@pytest.mark.parametrize(
    "part", ["\n", "A", "_", "static", "a::", "(", "x.py(3): f;", "_ZN9", " ", "xmma_", "\t.py(1"]
)
@pytest.mark.parametrize("phases", ["X", "BE"])
def test_names_of_a_megabyte_do_not_take_time_quadratic_in_it(
    tmp_path: Path, part: str, phases: str
) -> None:
    name = part * (1_000_000 // len(part))
    categories = ["cpu_op", "kernel", "python_function", "user_annotation", "cuda_runtime"]
    events = [
        op_event(10.0 * n, name=name, cat=category, ph=phase, args={"Call stack": name})
        for n, category in enumerate(categories)
        for phase in phases
    ]
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"traceEvents": events}))
    report = analyze(path, strict=True)
    assert report.source.n_events == len(events)
    assert render(report, "text")
