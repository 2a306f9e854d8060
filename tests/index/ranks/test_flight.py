"""FlightRecorder dumps complete the collectives of traces, and tell who blocks whom."""

import json
import tracemalloc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from profkit.api import analyze
from profkit.index.ranks.blocked import BlockedCollective, find_blocked
from profkit.index.ranks.calls import CollectiveCalls
from profkit.index.ranks.flight import NO_CALL, PackedRecord, find_recorded_calls, with_records
from profkit.index.ranks.matching import match_collectives
from profkit.model.events import MISSING
from profkit.model.flight_record import FlightRecord
from profkit.model.process_group import ProcessGroup
from profkit.packed import Packed
from profkit.readers.flight_recorder import convert_dump
from tests.corpus.recordings import CORPUS, needs_corpus
from tests.flight import NS, S, build_entry, dump, own, waiting
from tests.index.ranks.jobs import BASE_NS, collective, ranks_of

JOB = CORPUS / "ranks" / "gloo-a"
US = 1000
NO_GROUP = ProcessGroup("")


def build_gloo_calls(n_ranks: int = 2, n: int = 6) -> list[CollectiveCalls]:
    """All-reduces without group, number and sizes, each called 100 µs before it runs."""
    calls = []
    for number in range(n):
        begins = number * 1000 * US
        calls += collective(
            number,
            [begins + rank * US for rank in range(n_ranks)],
            50 * US,
            group=NO_GROUP,
            n_elements=MISSING,
            element_type="",
            launched_ns=begins,
        )

    rank_calls = [rank.calls for rank in ranks_of(calls)]
    return [
        replace(calls_of_rank, returned_ns=calls_of_rank.issued_ns + 40 * US)
        for calls_of_rank in rank_calls
    ]


def gloo_record(rank: int, n: int = 6, after_ns: int = 20 * US) -> FlightRecord:
    """Return the calls of two groups in turns, as gloo's recorder keeps them."""
    entries = [
        build_entry(
            1 + number // 2,
            profiling_name="gloo:all_reduce",
            n=10 * (1 + number % 2),
            process_group=[["0", "default_pg"], ["7", "undefined"]][number % 2],
            time_created_ns=BASE_NS + number * 1000 * US + after_ns,
        )
        for number in range(n)
    ]
    return convert_dump(dump(entries, "[]") | {"pg_config": {}}, f"fr_rank{rank}.json")


def completed(
    every: list[CollectiveCalls], records: list[FlightRecord | None]
) -> list[CollectiveCalls]:
    packed = [[] if record is None else [PackedRecord.of(record)] for record in records]
    return [value.value for value in with_records([*map(Packed, every)], packed, 2)]


def seqs(calls: list[CollectiveCalls]) -> list[list[int]]:
    return [call.seq.tolist() for call in calls]


def test_each_call_of_gloo_gets_its_group_number_and_sizes() -> None:
    every, records = build_gloo_calls(), [gloo_record(rank) for rank in range(2)]
    assert [
        find_recorded_calls(calls_of_rank, record).tolist()
        for calls_of_rank, record in zip(every, records, strict=True)
    ] == [[0, 1, 2, 3, 4, 5]] * 2
    first_end, two = completed(every, [*records])
    assert first_end.seq.tolist() == two.seq.tolist() == [1, 1, 2, 2, 3, 3]
    assert first_end.n_in.tolist() == [10, 20] * 3
    assert set(first_end.element_type) == {"Float"}
    groups = [first_end.groups[number] for number in first_end.group.tolist()]
    assert [(group.name, group.ranks) for group in groups[:2]] == [("0", (0, 1)), ("7", None)]


def test_without_the_dumps_of_all_ranks_nothing_changes() -> None:
    every = build_gloo_calls()
    assert seqs(completed(every, [gloo_record(0), None])) == seqs(every)
    elsewhere = gloo_record(1, after_ns=500 * US)
    assert (find_recorded_calls(every[1], elsewhere) == NO_CALL).all()
    assert seqs(completed(every, [gloo_record(0), elsewhere])) == seqs(every)


def test_calls_of_other_kinds_are_not_joined() -> None:
    record = gloo_record(0)
    calls = (replace(record.calls[0], name="gloo:broadcast"), *record.calls[1:])
    row = find_recorded_calls(build_gloo_calls()[0], replace(record, calls=calls))
    assert row.tolist() == [NO_CALL, 1, 2, 3, 4, 5]


def test_numbers_match_what_order_cannot() -> None:
    """Rank 1 has lost the first call of a group: counted from the first, all would be shifted."""
    every, records = build_gloo_calls(), [gloo_record(rank) for rank in range(2)]
    lost = every[1]
    keep = np.arange(1, len(lost))
    columns = (
        "group",
        "n_in",
        "n_out",
        "seq",
        "source",
        "target",
        "issued_ns",
        "returned_ns",
        "launched_ns",
        "start_ns",
        "end_ns",
        "idle_ns",
        "data_wait_ns",
        "step",
        "rows",
        "on_device",
    )
    every[1] = replace(
        lost,
        kind=lost.kind[1:],
        element_type=lost.element_type[1:],
        comms_id=lost.comms_id[1:],
        **{name: getattr(lost, name)[keep] for name in columns},
    )
    ranks = ranks_of(collective(0, [0, 0], US))
    joined = completed(every, [*records])

    matched = match_collectives(
        [replace(rank, calls=rank_calls) for rank, rank_calls in zip(ranks, joined, strict=True)]
    )
    assert len(matched.first) == 5
    assert len(matched.members) == 10


@needs_corpus
def test_all_collectives_of_a_gloo_job_are_joined() -> None:
    report = analyze(JOB)
    assert report.collectives is not None
    assert report.collectives.matched_share == 1
    (group,) = report.collectives.groups
    assert (group.group, group.description, group.ranks) == ("0", "default_pg", (0, 1, 2, 3))
    assert [(rank.rank, rank.n) for rank in group.last] == [(2, 8)]
    # Every all-reduce is of 74,112 floats: 2 * 3/4 of their bytes per rank.
    n_bytes = 8 * 74_112 * 4 * 2 * 3 / 4
    assert group.bus_bytes_per_s == pytest.approx(n_bytes / (group.transfer_ns / 1e9), rel=1e-6)
    dumps = [json.loads(path.read_text()) for path in sorted(JOB.glob("fr_rank*.json"))]
    assert find_blocked(records_of(*dumps)) == []


def records_of(*dumps: object) -> list[PackedRecord]:
    return [
        PackedRecord.of(convert_dump(data, f"nccl_trace_rank_{rank}"))
        for rank, data in enumerate(dumps)
        if data is not None
    ]


def blocked(*dumps: object) -> BlockedCollective:
    (hang,) = find_blocked(records_of(*dumps))
    return hang


DONE = [build_entry(1, line=10), build_entry(2, line=11)]


def test_the_rank_that_did_not_call_is_named() -> None:
    hangs = dump([*DONE, waiting(3, line=12)])
    hangs_found = blocked(hangs, dump(DONE), hangs)
    assert (hangs_found.reason, hangs_found.absent, sorted(hangs_found.called)) == (
        "absent",
        (1,),
        [0, 2],
    )
    assert (hangs_found.first_call.seq, hangs_found.last[1].seq) == (3, 2)


@pytest.mark.parametrize(
    "other",
    [{"kind": "broadcast"}, {"n": 7}, {"input_dtypes": ["Half"]}],
    ids=["kind", "size", "type"],
)
def test_ranks_that_call_something_else_are_named(other: dict[str, Any]) -> None:
    waiting_dump, two = dump([*DONE, waiting(3)]), dump([*DONE, waiting(3, **other)])
    hang = blocked(waiting_dump, two, waiting_dump)
    assert (hang.reason, hang.first_call.seq, sorted(hang.called)) == ("different", 3, [0, 1, 2])


def test_sizes_of_scatters_and_all_to_alls_may_differ() -> None:
    for kind in ("all_to_all", "scatter", "gather"):
        ranks = [dump([build_entry(1, kind, n=rank + 1)]) for rank in range(3)]
        assert find_blocked(records_of(*ranks)) == []


def test_an_all_gather_has_the_same_output_on_all_ranks() -> None:
    even = [dump([build_entry(1, "_all_gather_base", input_sizes=[[rank]])]) for rank in range(3)]
    assert find_blocked(records_of(*even)) == []


def test_ranks_that_agree_and_have_timed_out_are_stuck() -> None:
    timed_out = dump([*DONE, build_entry(3, state="started", retired=True)])
    late = dump([*DONE, build_entry(3, state="scheduled", retired=True)])
    hang = blocked(timed_out, late, timed_out)
    assert hang.reason == "stuck"
    assert {rank: call.progress for rank, call in hang.called.items()} == {
        0: "started",
        1: "scheduled",
        2: "started",
    }


def test_one_dump_tells_what_its_rank_waits_for() -> None:
    hang = blocked(None, dump([*DONE, waiting(3)]))
    assert (hang.reason, list(hang.called)) == ("waiting", [1])


def test_ranks_at_the_same_point_are_not_blocked() -> None:
    assert find_blocked(records_of(*[dump(DONE)] * 3)) == []
    assert find_blocked(records_of(*[dump([*DONE, waiting(3)])] * 3)) == []
    assert find_blocked([]) == []


def test_overwritten_calls_are_not_missing() -> None:
    """The ring of a rank that calls more has lost the first calls."""
    assert find_blocked(records_of(dump(DONE[1:]), dump(DONE), dump(DONE[1:]))) == []


def test_calls_without_a_group_of_all_ranks_are_judged_among_its_ranks() -> None:
    tp: dict[str, Any] = {"process_group": ["5", "tp"]}
    data = dump([*DONE, waiting(1, **tp)])
    data["pg_config"]["5"] = {"name": "5", "desc": "tp", "ranks": "[0, 1]"}
    other_dump = dump(DONE)
    other_dump["pg_config"] = data["pg_config"]
    hang = blocked(data, other_dump, dump(DONE))
    assert (hang.group.name, hang.absent, hang.last) == ("5", (1,), {}), "never called in it"


def test_dumps_beside_windows_show_no_progress_but_differences() -> None:
    ahead = own(dump([*DONE, waiting(3)]), 0, is_end=False)
    behind = own(dump(DONE), 1, is_end=False)
    assert find_blocked(records_of(ahead, behind)) == []
    other_group = own(dump([*DONE, waiting(3, "broadcast")]), 1, is_end=False)
    assert blocked(ahead, other_group).reason == "different"


def test_a_rank_that_ends_early_is_absent() -> None:
    hangs = own(dump([*DONE, waiting(3)]), 0, stopped_by="RuntimeError")
    ended = own(dump(DONE), 1, written_ns=NS + 2 * S)
    hang = blocked(hangs, ended)
    assert (hang.absent, hang.waited_ns) == ((1,), 97 * S)


def test_ranks_that_are_stopped_from_outside_are_not_blocked() -> None:
    """Ctrl-C finds the ranks at different points."""
    written: dict[str, Any] = {"stopped_by": "KeyboardInterrupt", "written_ns": NS + 3 * S + S // 2}
    assert (
        find_blocked(
            records_of(own(dump([*DONE, waiting(3)]), 0, **written), own(dump(DONE), 1, **written))
        )
        == []
    )
    written["written_ns"] = NS + 9 * S
    hang = blocked(own(dump([*DONE, waiting(3)]), 0, **written), own(dump(DONE), 1, **written))
    assert hang.waited_ns == 6 * S


def test_a_failed_call_of_gloo_is_a_blocked_one() -> None:
    """Gloo retires calls that time out too."""
    failed = build_entry(3, profiling_name="gloo:all_reduce", state="scheduled", retired=True)
    ended = own(dump(DONE), 1)
    assert blocked(own(dump([*DONE, failed]), 0, stopped_by="RuntimeError"), ended).absent == (1,)
    assert find_blocked(records_of(own(dump([*DONE, failed]), 0), ended)) == []


def p2p(name: str) -> dict[str, Any]:
    return waiting(0, is_p2p=True, p2p_seq_id=1, profiling_name=f"nccl:{name}")


def test_a_send_without_a_receive_is_named() -> None:
    hang = blocked(dump([p2p("send 0->2")]), dump([]), dump(DONE))
    assert (hang.absent, list(hang.called), hang.last[2].seq) == ((2,), [0], 2)
    both = records_of(dump([p2p("send 0->2")]), dump([]), dump([p2p("recv 2<-0")]))
    assert find_blocked(both) == []


@given(st.integers(2, 6), st.integers(1, 8), st.data())
def test_whichever_ranks_stop_first_are_named(n_ranks: int, n: int, data: st.DataObject) -> None:
    """Against a plain comparison of counts: those with the fewest calls block the others."""
    counts = data.draw(st.lists(st.integers(1, n), min_size=n_ranks, max_size=n_ranks))
    ranks = str(list(range(n_ranks)))
    dumps = [
        dump([*(build_entry(seq) for seq in range(1, count)), waiting(count)], ranks)
        for count in counts
    ]
    hangs = find_blocked(records_of(*dumps))
    low = min(counts)
    if max(counts) == low:
        assert hangs == []
    else:
        (hang,) = hangs
        assert hang.absent == tuple(rank for rank, count in enumerate(counts) if count == low)
        assert hang.first_call.seq == low + 1


def test_the_calls_of_one_rank_at_a_time_are_in_memory() -> None:
    """The peak of many ranks is that of few, and what is packed of the others."""
    stack = [{"filename": f"/v/{i}.py", "line": i, "name": f"f{i}"} for i in range(20)]
    entries = [build_entry(seq, n=seq, frames=stack) for seq in range(1, 400)]
    data = dump([*entries, waiting(400, frames=stack)], str(list(range(12))))
    late = dump(entries, str(list(range(12))))

    def peak_bytes(n_ranks: int) -> int:
        records = records_of(late, *[data] * (n_ranks - 1))
        tracemalloc.start()
        try:
            (hang,) = find_blocked(records)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
            assert (hang.absent, len(hang.called)) == ((0,), n_ranks - 1)

    few, many = peak_bytes(2), peak_bytes(12)
    assert many - few < 0.1 * few, "10 ranks more"


def test_calls_with_the_same_stack_share_it() -> None:
    stack = [{"filename": "/v/train.py", "line": 3, "name": "step"}]
    first_call, two = convert_dump(
        dump([build_entry(1, frames=stack), build_entry(2, frames=stack)]), ""
    ).calls
    assert first_call.frames is two.frames
    assert first_call.inputs is two.inputs
