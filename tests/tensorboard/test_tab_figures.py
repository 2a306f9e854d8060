"""What the tab draws beside a report, against what was planted and what is counted otherwise."""

from pathlib import Path

import pytest

import profkit
from profkit.api import Study, study
from profkit.integrations.tensorboard.run_summary import run_summary
from profkit.integrations.tensorboard.views import (
    largest,
    memory_courses,
    modules,
    op_memory,
    spreads,
    words,
)
from profkit.model.events import Category
from profkit.testing import TraceBuilder
from tests.tensorboard.recordings import (
    GEMM_NS,
    MB,
    REDUCE_NS,
    RELU_NS,
    STEPS,
    write_gpu_training,
)

RECORDED = Path(__file__).parents[2] / "traces"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Study:
    return study(write_gpu_training(tmp_path_factory.mktemp("train")))


def test_each_module_has_its_own_device_time_and_its_callers_have_theirs(trained: Study) -> None:
    found = {each.name: each for each in modules(trained.recording.context)}
    assert {name: each.device_ns for name, each in found.items()} == {
        "Linear_0": STEPS * GEMM_NS,
        "Net_0": STEPS * RELU_NS,
    }
    assert (found["Linear_0"].parent, found["Net_0"].parent) == ("Net_0", None)
    assert {each.n_calls for each in found.values()} == {STEPS}
    assert found["Linear_0"].total_ns == STEPS * 20_000
    assert found["Net_0"].total_ns == STEPS * 40_000
    assert found["Linear_0"].op_ns == found["Net_0"].op_ns == STEPS * 20_000


def test_modules_whose_lines_were_lent_have_the_time_of_all_operators_within_them() -> None:
    (path,) = (RECORDED / "starved_loader").glob("*.gz")
    ctx = study(path).recording.context
    is_op = ctx.events.category == Category.OP
    caller = ctx.tree.enclosing(is_op)
    own: dict[str, int] = {}
    for row in ctx.events.rows_of(Category.OP).tolist():
        if (module := ctx.source.module[row]) >= 0:
            name = ctx.source.modules[module]
            called = ctx.events.dur_ns[(caller == row) & is_op]
            own[name] = own.get(name, 0) + int(ctx.events.dur_ns[row] - called.sum())
    assert own
    assert {each.name: each.op_ns for each in modules(ctx) if each.n_ops} == own


def test_kernels_have_their_shortest_and_longest_call(tmp_path: Path) -> None:
    b = TraceBuilder()
    for ns in (30_000, 10_000, 20_000):
        b.launch("aten::mm", kernel="gemm", host_ns=10_000, device_ns=ns)
    studied = study(b.write(tmp_path / "t.json"))
    (spread,) = spreads(studied.recording.context, studied.report.summary.top_kernels)
    assert (spread.name, spread.min_ns, spread.max_ns) == ("gemm", 10_000, 30_000)


def test_a_course_keeps_the_peak_however_long_it_is(tmp_path: Path) -> None:
    b = TraceBuilder(memory=True)
    for number in range(3_000):
        block = b.alloc((number % 100 + 1) * MB)
        b.advance(1_000)
        b.free(block)
    peak = b.alloc(500 * MB)
    b.advance(1_000)
    b.free(peak)
    b.compute("aten::add", 1_000)
    studied = study(b.write(tmp_path / "t.json"))
    (course,) = memory_courses(studied.recording.context)
    memory = studied.report.summary.memory
    assert memory is not None
    assert max(course.allocated_bytes) == memory.peak[0].bytes == 500 * MB
    assert len(course.at_ns) == len(course.allocated_bytes) <= 600
    assert list(course.at_ns) == sorted(course.at_ns)


def test_allocations_are_told_by_the_operator_they_are_made_in(tmp_path: Path) -> None:
    b = TraceBuilder(memory=True)
    with b.op("aten::empty", self_ns=1_000):
        first = b.alloc(3 * MB)
        second = b.alloc(2 * MB)
        b.advance(1_000)
    with b.op("aten::resize_", self_ns=1_000):
        b.free(second)
        b.alloc(1 * MB)
        b.advance(1_000)
    b.advance(1_000)
    b.free(first)
    found = {
        each.op: each for each in op_memory(study(b.write(tmp_path / "t.json")).recording.context)
    }
    assert set(found) == {"aten::empty", "aten::resize_"}
    empty, resize = found["aten::empty"], found["aten::resize_"]
    assert (empty.n_allocations, empty.allocated_bytes, empty.net_bytes) == (2, 5 * MB, 5 * MB)
    assert (resize.n_allocations, resize.allocated_bytes, resize.net_bytes) == (1, MB, -MB)
    assert empty.device == "cuda:0"


def test_the_largest_allocations_come_with_how_long_they_were_held(tmp_path: Path) -> None:
    b = TraceBuilder(memory=True)
    with b.op("aten::empty", self_ns=1_000):
        held = b.alloc(3 * MB)
        b.alloc(5 * MB)
        b.advance(1_000)
    b.advance(7_000)
    b.free(held)
    b.alloc(MB)
    found = largest(study(b.write(tmp_path / "t.json")).recording.context)
    assert [(each.op, each.n_bytes, each.held_ns) for each in found] == [
        ("aten::empty", 5 * MB, None),
        ("aten::empty", 3 * MB, 8_000),
        (None, MB, None),
    ]


def test_a_glance_is_the_reports_own_figures(trained: Study) -> None:
    known = run_summary(trained.report)
    (device,) = trained.report.summary.devices
    assert known.device_busy_share == device.busy_ns / device.span_ns
    assert device.communication_ns == STEPS * REDUCE_NS
    assert known.step_ns in {step.dur_ns for step in trained.report.summary.steps}
    assert known.data_wait_ns == STEPS * 300_000
    assert [(peak.device, peak.bytes) for peak in known.peaks] == [("cuda:0", 4 * MB)]
    assert known.n_errors + known.n_warnings + known.n_notes == len(trained.report.findings)


def test_words_are_those_of_every_other_format(trained: Study) -> None:
    said = words(trained.report)
    text = profkit.render(trained.report, "text").decode()
    assert said.parts
    for label in said.parts.values():
        assert label in text
    assert len(said.costs) == len(trained.report.findings)
