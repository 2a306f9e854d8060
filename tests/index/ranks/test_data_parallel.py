"""What torch really records of DataParallel is what is looked for."""

import json
from pathlib import Path

import pytest

from profkit.engine.context import Context
from profkit.index.ranks.data_parallel import data_parallel_calls, measure_data_parallel
from tests.traces import load_trace


def record(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three calls on one device, for which a CPU stands in: it only cannot take inputs apart."""
    import torch
    from torch import nn
    from torch.nn.parallel import comm
    from torch.profiler import ProfilerActivity, profile

    monkeypatch.setattr(
        comm, "scatter", lambda x, devices, _sizes, dim, _: x.chunk(len(devices), dim)
    )
    model = nn.DataParallel(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)))
    model.device_ids, model.src_device_obj = [0], torch.device("cpu")
    model.dim, model.output_device = 0, 0
    with profile(activities=[ProfilerActivity.CPU]) as run:
        for _ in range(3):
            model(torch.randn(4, 8)).sum().backward()
    path = folder / "t.json"
    run.export_chrome_trace(str(path))
    return path


def test_overhead_of_a_call_extends_to_the_end_of_its_scatter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = record(tmp_path, monkeypatch)
    ctx = Context(trace=load_trace(path))
    calls = data_parallel_calls(ctx.events, ctx.tree)
    assert [ctx.events.name_of(int(row)) for row in calls] == ["DataParallel.forward"] * 3
    wrapper = measure_data_parallel(ctx.events, ctx.tree, ctx.launches, calls)
    events = [
        event for event in json.loads(path.read_text())["traceEvents"] if event.get("ph") == "X"
    ]
    begins = sorted(event["ts"] for event in events if event["name"] == "DataParallel.forward")
    ends = sorted(event["ts"] + event["dur"] for event in events if event["name"] == "Scatter")
    assert len(ends) == 3
    expected = [(end - begin) * 1000 for begin, end in zip(begins, ends, strict=True)]
    spans_ns = [end - start for start, end in wrapper.on_host.pairs()]
    assert spans_ns == pytest.approx(expected, abs=2)
