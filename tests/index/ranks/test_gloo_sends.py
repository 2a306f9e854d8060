"""Sends and receives of gloo, which writes no ranks to its annotations."""

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from profkit.api import analyze
from profkit.model.report import Report
from profkit.present.ranks import describe_job
from profkit.testing import TraceBuilder

MS = 1_000_000
BASE_NS = 1_735_689_600_000_000_000


def report(
    folder: Path, n_ranks: int, *, has_inputs: bool = True, groups: tuple[list[int], ...] = ()
) -> Report:
    """Return the report on ranks that each send to the next one, four times per step."""
    for rank in range(n_ranks):
        listed = [list(range(n_ranks)), *(group for group in groups if rank in group)]
        b = TraceBuilder(
            device_names=(),
            head={
                "distributedInfo": {
                    "rank": rank,
                    "world_size": n_ranks,
                    "backend": "gloo",
                    "pg_config": [
                        {"pg_name": str(i), "pg_size": len(ranks), "ranks": ranks}
                        for i, ranks in enumerate(listed)
                    ],
                },
                "baseTimeNanoseconds": BASE_NS,
                "host_name": "node",
            },
        )
        for step in range(3):
            with b.step():
                for number in range(4):
                    # Each rank sends when it has received, and waits for the next one.
                    at_ns = (step * 20 + number * 4) * MS
                    for name, peer in (("recv_", rank - 1), ("send", rank + 1)):
                        if 0 <= peer < n_ranks:
                            b.now_ns = max(b.now_ns, at_ns)
                            end_ns = at_ns + max(rank, peer) * MS
                            called(b, name, peer if has_inputs else None, end_ns)
                b.compute("aten::add_", MS // 10)
            b.now_ns = (step + 1) * 20 * MS
        b.write(folder / f"rank{rank}.pt.trace.json")

    return analyze(folder)


def called(b: TraceBuilder, name: str, peer: int | None, end_ns: int) -> None:
    inputs: dict[str, Any] = (
        {} if peer is None else {"dims": [[], [], [], []], "values": ["", "", str(peer), "0"]}
    )
    with b.op(f"c10d::{name}", self_ns=10_000, **inputs):
        pass
    with b.thread(3000), b.annotation(f"gloo:{name.strip('_')}"):
        b.now_ns = end_ns


def test_the_other_rank_of_a_send_is_an_input_of_the_operator(tmp_path: Path) -> None:
    collectives = report(tmp_path, 3).collectives
    assert collectives is not None
    assert (collectives.matched_share, collectives.unmatched) == (1.0, ())
    assert sum(group.n for group in collectives.groups) == 3 * 4 * 2


@pytest.mark.parametrize("groups", [(), ([0, 2], [1, 2])], ids=["no shapes", "several groups"])
def test_without_their_other_rank_they_are_not_matched(
    tmp_path: Path, groups: tuple[list[int], ...]
) -> None:
    analysis = report(tmp_path, 3, has_inputs=bool(groups), groups=groups)
    assert analysis.collectives is not None
    assert analysis.collectives.matched_share == 0
    assert [unmatched.reason for unmatched in analysis.collectives.unmatched] == ["unknown-peer"]
    assert not [finding.rule for finding in analysis.findings if finding.rule == "COM004"]
    (headline,) = describe_job(analysis, is_explained=False)
    assert headline == (
        "Only 0% of the calls of collectives could be matched: record sends and receives with "
        "`record_shapes=True`."
    )


def test_two_ranks_send_to_each_other(tmp_path: Path) -> None:
    collectives = report(tmp_path, 2, has_inputs=False).collectives
    assert collectives is not None
    assert collectives.matched_share == 1


def test_a_receive_that_begins_before_its_send_is_awaited_has_a_peer_of_its_own(
    tmp_path: Path,
) -> None:
    for rank in range(3):
        b = TraceBuilder(
            device_names=(),
            head={
                "distributedInfo": {
                    "rank": rank,
                    "world_size": 3,
                    "backend": "gloo",
                    "pg_config": [{"pg_name": "0", "pg_size": 3, "ranks": [0, 1, 2]}],
                },
                "baseTimeNanoseconds": BASE_NS,
                "host_name": "node",
            },
        )
        for step in range(3):
            with b.step():
                # In a ring, each rank begins to send, receives, and waits for both.
                b.now_ns = step * 20 * MS
                peers = {"send": (rank + 1) % 3, "recv_": (rank - 1) % 3}
                with ExitStack() as begun:
                    for name, peer in peers.items():
                        begin(b, begun, name, peer)
                    b.advance(5 * MS)
        b.write(tmp_path / f"rank{rank}.pt.trace.json")

    collectives = analyze(tmp_path).collectives
    assert collectives is not None
    assert (collectives.matched_share, collectives.unmatched) == (1.0, ())
    assert sum(group.n for group in collectives.groups) == 3 * 3


def begin(b: TraceBuilder, begun: ExitStack, name: str, peer: int) -> None:
    """Begin an annotation in its operator, and leave it open."""
    with b.op(f"c10d::{name}", self_ns=10_000, dims=[[]] * 4, values=["", "", str(peer), "0"]):
        start_ns = b.now_ns - 5_000
    b.now_ns = start_ns
    begun.enter_context(b.annotation(f"gloo:{name.strip('_')}"))
    b.advance(10_000)


def test_a_dump_without_calls_belongs_to_the_trace_of_its_rank(tmp_path: Path) -> None:
    for rank in range(3):
        dump = {"version": "2.10", "pg_config": {"": {"ranks": "[0, 1, 2]"}}, "pg_status": {}}
        (tmp_path / f"fr_rank{rank}.json").write_text(json.dumps(dump))
    assert report(tmp_path, 3).source.kind == "ranks"
