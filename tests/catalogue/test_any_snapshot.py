"""Whatever a snapshot holds, sense or nonsense, no rule crashes and no figure is out of bounds."""

from typing import Any

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from profkit.analysis.options import AnalysisOptions
from profkit.analysis.study import build_report, no_stage
from profkit.engine.context import Context
from profkit.engine.registry import rules
from profkit.index.snapshot.allocator.settings import AllocatorSettings
from profkit.index.snapshot.allocator.simulate import simulate
from profkit.index.snapshot.what_if import RecordedHistory
from profkit.model.report import Report
from profkit.readers.snapshot.columns import convert_snapshot, is_snapshot
from profkit.testing import SnapshotBuilder
from profkit.testing.reference_allocator import MIB, ReferenceBlock

EXPANDABLE = AllocatorSettings(expandable=True)
SIZES = (1, 700_000, MIB + 1, 9 * MIB, 60 * MIB, 300 * MIB)


def report_of(data: Any) -> Report:  # noqa: ANN401  (whatever a pickle holds)
    """All rules over plain data, as :func:`profkit.analyze` would run them."""
    assert is_snapshot(data)
    ctx = Context(snapshot=convert_snapshot(data, 1 << 30))
    report = build_report(ctx, rules(), AnalysisOptions(strict=True), no_stage)
    msgspec.json.encode(report)
    for memory in ctx.device_memories:
        _play_again(memory.what_if.recorded)
    return report


def _play_again(recorded: RecordedHistory) -> None:
    """Under any settings, however little of it the rules explain."""
    if recorded.requests is None:
        return
    for allocator_settings in (
        recorded.settings,
        AllocatorSettings(max_split_bytes=32 * MIB),
        EXPANDABLE,
    ):
        for room_bytes in (None, recorded.peak_bytes):
            course = simulate(recorded.requests, allocator_settings, room_bytes)
            assert course.peak_bytes >= course.begin_bytes


@settings(
    max_examples=30, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
@given(
    program=st.lists(
        st.tuples(st.integers(0, 9), st.integers(0, 1000), st.integers(1, 12)), max_size=40
    ),
    expandable=st.booleans(),
    max_entries=st.sampled_from((3, 20, 10_000)),
    with_stacks=st.booleans(),
)
def test_any_program_is_judged_within_what_the_device_has(
    program: list[tuple[int, int, int]],
    expandable: bool,  # noqa: FBT001
    max_entries: int,
    with_stacks: bool,  # noqa: FBT001
) -> None:
    b = SnapshotBuilder(
        total_bytes=1024 * MIB,
        expandable=expandable,
        max_entries=max_entries,
        with_stacks=with_stacks,
    )
    held: list[ReferenceBlock] = []

    for kind, choice, repeat in program:
        with b.frame("train.py", kind, "main"), b.region(f"region {kind}"):
            for _ in range(repeat):
                if kind <= 4:
                    block = b.alloc_or_none(SIZES[choice % len(SIZES)], stream=choice % 2)
                    held += [block] if block else []
                elif kind <= 7 and held:
                    b.free(held.pop(choice % len(held)))
                else:
                    b.empty_cache()

    report = report_of(b.to_dict())
    for finding in (*report.findings, *report.health):
        assert finding.message.endswith(".")
        assert finding.n >= 1
        n_bytes = finding.cost.bytes or 0
        # What is given back and asked for again may pass many times.
        again = finding.name in {"empty-cache-in-loop", "allocator-churn"}
        assert 0 <= n_bytes <= (1024 * MIB if not again else 1024 * MIB * 600)


numbers = st.one_of(
    st.integers(-5, 5).map(lambda n: n * 512),
    st.integers(0, 40).map(lambda n: n * MIB),
    st.sampled_from((-(1 << 63), (1 << 63) - 1, 1 << 62, 1 << 40)),
    st.none(),
    st.just("text"),
)
frames = st.one_of(
    st.none(),
    st.lists(
        st.fixed_dictionaries(
            {
                "filename": st.sampled_from(("train.py", "??", "", "/x/site-packages/torch/a.py")),
                "line": st.integers(-1, 3),
                "name": st.sampled_from(("f", "empty_cache", "backward", "")),
            }
        ),
        max_size=3,
    ),
)
blocks = st.fixed_dictionaries(
    {
        "size": numbers,
        "requested_size": numbers,
        "address": numbers,
        "state": st.sampled_from(
            ("active_allocated", "inactive", "active_pending_free", "another", 3)
        ),
        "frames": frames,
    }
)
segments = st.fixed_dictionaries(
    {
        "device": st.integers(0, 2),
        "address": numbers,
        "total_size": numbers,
        "allocated_size": numbers,
        "active_size": numbers,
        "stream": numbers,
        "segment_type": st.sampled_from(("small", "large", 1)),
        "segment_pool_id": st.one_of(st.none(), st.tuples(st.integers(0, 1), st.integers(0, 1))),
        "is_expandable": st.booleans(),
        "blocks": st.lists(blocks, max_size=4),
    }
)
entries = st.fixed_dictionaries(
    {
        "action": st.sampled_from(
            (
                "alloc", "free_requested", "free_completed", "segment_alloc", "segment_free",
                "segment_map", "segment_unmap", "snapshot", "oom", "another",
            )
        ),
        "addr": numbers,
        "device_free": numbers,
        "size": numbers,
        "stream": numbers,
        "time_us": numbers,
        "frames": frames,
    }
)  # fmt: skip
annotations = st.fixed_dictionaries(
    {
        "name": st.sampled_from(("a", "b")),
        "stage": st.sampled_from(("START", "END")),
        "device": st.integers(0, 1),
        "time_us": numbers,
    }
)


@settings(
    max_examples=100, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
@given(
    listed=st.lists(segments, max_size=4),
    traces=st.lists(st.lists(entries, max_size=25), max_size=3),
    notes=st.lists(annotations, max_size=6),
)
def test_nonsense_crashes_no_rule(
    listed: list[Any], traces: list[list[Any]], notes: list[Any]
) -> None:
    data = {"segments": listed, "device_traces": traces, "external_annotations": notes}
    report = report_of(data)
    assert report.summary.memory is not None
