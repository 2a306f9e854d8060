"""The arguments of collectives, as different versions of torch write them."""

import json
from pathlib import Path
from typing import Any

import pytest

from profkit.index.ranks.calls import CollectiveCalls, find_collective_calls
from profkit.model.events import MISSING
from profkit.model.process_group import ProcessGroup, ranks_of
from profkit.readers.kineto.decode import BatchReader
from profkit.readers.kineto.split import TraceText
from profkit.readers.progress import Stages
from profkit.testing import TraceBuilder
from tests.traces import load_trace, read_context

ARGS: dict[str, Any] = {
    "Collective name": "_allgather_base", "dtype": "BFloat16", "In msg nelems": 8,
    "Out msg nelems": 32, "Group size": 4, "Process Group Name": "dp",
    "Process Group Description": "data", "Process Group Ranks": "[0, 2, 4, 6]",
}  # fmt: skip
KERNEL = "ncclDevKernel_AllGather_RING_LL"
GROUP = ProcessGroup("dp", (0, 2, 4, 6), 4, "data")


def calls_of(b: TraceBuilder, folder: Path) -> CollectiveCalls:
    ctx = read_context(b, folder)
    return find_collective_calls(ctx.trace, ctx.tree, ctx.launches, ctx.steps)


def launched(op_args: dict[str, Any], kernel_args: dict[str, Any], **head: object) -> TraceBuilder:
    """Build a step with a collective that an operator with arguments launches."""
    b = TraceBuilder(first_step=7, head=head)
    with b.step():
        b.launch("aten::mm", kernel="gemm", host_ns=10_000, device_ns=30_000)
        with b.op("record_param_comms", self_ns=1_000) as op:
            op.args = {**(op.args or {}), **op_args}
            ident = b.call("LaunchKernel", 4_000)
            b.kernel(KERNEL, 50_000, correlation=ident, stream=20, **kernel_args)
        b.synchronize()
    return b


@pytest.mark.parametrize("on", ["operator", "kernel", "both"])
def test_arguments_come_from_the_kernel_or_from_the_operator_around_its_launch(
    on: str, tmp_path: Path
) -> None:
    b = launched(ARGS if on != "kernel" else {}, ARGS if on != "operator" else {})
    calls = calls_of(b, tmp_path)
    assert calls.kind == ("all-gather",)
    assert calls.groups == (GROUP,)
    assert calls.element_type == ("BFloat16",)
    assert (calls.n_in.tolist(), calls.n_out.tolist()) == ([8], [32])
    assert calls.step.tolist() == [7]
    assert calls.seq.tolist() == calls.source.tolist() == [MISSING]
    assert calls.idle_ns.tolist() == [0], "the multiplication still runs"


def test_a_number_an_id_and_the_other_rank(tmp_path: Path) -> None:
    more = {"Seq": 17, "Comms Id": 1 << 63, "Src Rank": 3, "Collective name": "recv"}
    calls = calls_of(launched({}, {**ARGS, **more}), tmp_path)
    assert (calls.kind, calls.seq.tolist(), calls.source.tolist()) == (("receive",), [17], [3])
    assert calls.comms_id == (str(1 << 63),)
    assert calls.target.tolist() == [MISSING]


def test_ranks_that_torch_left_out_come_from_the_configuration(tmp_path: Path) -> None:
    cut = {**ARGS, "Process Group Ranks": "[0, 2, ...]"}
    config: list[dict[str, Any]] = [
        {"pg_name": "dp", "ranks": "[0, 2, 4, 6]"},
        {"pg_name": 3},
    ]
    calls = calls_of(launched({}, cut), tmp_path)
    assert calls.groups[0].ranks is None
    assert calls.groups[0].size == 4
    for written in (config[:1], [{**config[0], "ranks": [0, 2, 4, 6]}]):
        head = {"distributedInfo": {"rank": 2, "world_size": 8, "pg_config": written}}
        assert calls_of(launched({}, cut, **head), tmp_path).groups == (GROUP,)
    # What is no list of groups is none.
    head = {"distributedInfo": {"rank": 2, "world_size": 8, "pg_config": config}}
    assert calls_of(launched({}, cut, **head), tmp_path).groups[0].ranks is None


@pytest.mark.parametrize(
    ("written", "ranks"),
    [
        ([0, 1], (0, 1)), ("[0, 1]", (0, 1)), ('"[0, 1]"', (0, 1)), ("[0, ...]", None), ("", None),
        ("[]", None), ('["a"]', None), (f"[{1 << 40}]", None), ("[" * 100_000, None), (None, None),
    ],
)  # fmt: skip
def test_ranks_of_a_group(written: object, ranks: tuple[int, ...] | None) -> None:
    assert ranks_of(written) == ranks


def test_reading_is_the_same_in_one_batch_or_event_by_event(tmp_path: Path) -> None:
    path = launched(ARGS, {**ARGS, "Seq": 3}).write(tmp_path / "t.json")
    whole = load_trace(path).events
    text = json.loads(Path(path).read_text())
    text["traceEvents"].append("no event")  # its batch is decoded event by event
    broken = tmp_path / "broken.json"
    broken.write_text(json.dumps(text))
    salvaged = load_trace(broken).events

    for name in ("collective", "group_name", "group_size", "n_out", "collective_seq"):
        expected, salvaged_column = getattr(whole, name), getattr(salvaged, name)
        assert expected.rows.tolist() == salvaged_column.rows.tolist() != []
        if name in ("collective", "group_name"):
            assert [whole.names[i] for i in expected.values] == [
                salvaged.names[i] for i in salvaged_column.values
            ]
        else:
            assert expected.values.tolist() == salvaged_column.values.tolist()


def test_a_file_may_have_collectives_in_some_of_its_batches_only() -> None:
    reader = BatchReader(TraceText(), Stages())
    event = {"ph": "X", "cat": "cpu_op", "name": "op", "pid": 1, "tid": 1, "ts": 1, "dur": 1}
    other = {**event, "args": {"External id": 1, "dtype": 7}}
    texts = [
        json.dumps([other]),
        json.dumps([other, {**event, "args": ARGS}]),
        json.dumps([{**event, "args": {"External id": 1}}]),
        json.dumps([other]),
    ]

    batches = [reader.columns(text.encode()) for text in texts]
    assert [batch.n_complete for batch in batches] == [1, 2, 1, 1]
    with_collectives = [dict(batch.sparse).get("collective") for batch in batches]
    assert [column and list(column[0]) for column in with_collectives] == [None, [1], None, None]
    assert all(list(batch.sparse["external_id"][0]) == [0] for batch in batches)
