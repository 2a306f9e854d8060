"""graph-breaks finds graph breaks in steps, without those that the program requests."""

from collections.abc import Callable
from contextlib import nullcontext

import pytest

from profkit.model.capture_info import CaptureInfo, Compiled, Compiles, GraphBreak
from profkit.model.finding import Finding
from profkit.model.report import Report
from profkit.testing import TraceBuilder

RULE = "graph-breaks"
US = 1_000
NET = "/home/me/net.py"
CALL = ("/home/me/train.py", 12, "main")
LIBRARY = "/lib/python3.11/site-packages/them/modeling.py"
LOGGER = (
    "logging.Logger method not supported for non-export cases\n"
    "  Explanation: logging.Logger methods are not supported for non-export cases.\n"
    "  Hint: Add the logging method to `torch._dynamo.config.ignore_logging_functions`.\n\n"
    "  Developer debug context: method: <Logger layers (WARNING)>.info"
)
DISABLED = "Skip calling `torch.compiler.disable()`d function\n  Explanation: ..."
CALLED = "Call to `torch._dynamo.graph_break()`\n  Explanation: User-inserted graph break."
Found = Callable[..., tuple[Finding, ...]]
Analyzed = Callable[..., Report]


def build_capture(*breaks: GraphBreak, n_ops: int | None = 3) -> CaptureInfo:
    """Build torch's record of ``forward`` in net.py and of its continuation behind line 40."""
    return CaptureInfo(
        version="1",
        name="run",
        compiles=Compiles(
            compiled=[
                Compiled("0/0", (NET, 36, "forward"), is_users=True, caller=CALL, n_ops=2),
                Compiled(
                    "1/0",
                    (NET, 40, "torch_dynamo_resume_in_forward_at_40"),
                    is_users=True,
                    caller=CALL,
                    n_ops=n_ops,
                ),
            ],
            breaks=list(breaks),
        ),
    )


def at_line(reason: str = LOGGER, line: int = 40) -> GraphBreak:
    return GraphBreak(reason, [(NET, line, "forward")], user=0)


def cut(b: TraceBuilder, *, stacks: bool = False) -> None:
    """Add a call that runs as two graphs, with 30 µs of Python between them."""
    called = b.frame("train.py", 10, "main") if stacks else b.annotation("call")
    resumed = b.frame("net.py", 40, "torch_dynamo_resume_in_forward_at_40")
    with called, b.op("Torch-Compiled Region: 0/0"):
        b.advance(10 * US)
        b.compute("aten::addmm", 100 * US)
        b.advance(25 * US)
        b.compute("TorchDynamo Cache Lookup", 3 * US)
        with b.op("Torch-Compiled Region: 1/0"):
            b.advance(2 * US)
            with resumed if stacks else nullcontext():
                b.compute("aten::tanh", 100 * US)


def whole(b: TraceBuilder) -> None:
    """Add a call that runs as one graph."""
    with b.op("Torch-Compiled Region: 0/0"):
        b.advance(10 * US)
        b.compute("aten::addmm", 100 * US)
        b.compute("aten::tanh", 100 * US)


def steps(
    n_cuts: int = 1, *, rest_us: int = 0, capture: CaptureInfo | None = None, stacks: bool = False
) -> TraceBuilder:
    b = TraceBuilder(capture=capture, device_names=())
    for _ in range(3):
        with b.step():
            for _ in range(n_cuts):
                cut(b, stacks=stacks)
            b.compute("aten::add", rest_us * US)
    return b


def test_it_names_the_line_and_the_reason_and_the_python_between_the_graphs(found: Found) -> None:
    (finding,) = found(steps(2, capture=build_capture(at_line())), RULE)

    assert (finding.locations[0].file, finding.locations[0].line) == (NET, 40)
    # Two calls in each of three steps, with 30 µs from the one graph to the other.
    assert finding.cost.ns == 3 * 2 * 30 * US
    assert finding.cost.basis == "estimate"
    assert sum(end - start for start, end in finding.spans) == finding.cost.ns
    assert (finding.n, finding.severity, finding.confidence) == (6, "warning", "high")
    assert finding.message == (
        "Graph break at net.py:40, twice per step: “logging.Logger method not supported for "
        "non-export cases”. The compiled code runs as 2 graphs instead of one, with 60.0 µs per "
        "step (12%) of Python between them; the cost of missed fusion is not included."
    )
    assert finding.fix == (
        "Log outside the compiled function. PyTorch's hint: “Add the logging method to "
        "`torch._dynamo.config.ignore_logging_functions`”."
    )
    assert (finding.evidence["n_graphs"], finding.evidence["n_calls"]) == (12, 6)


def test_from_the_stacks_of_a_trace_of_another_program_the_line_is_known_and_not_why(
    found: Found,
) -> None:
    (finding,) = found(steps(stacks=True), RULE)
    place = finding.locations[0]
    assert (place.file, place.line, place.function) == ("net.py", 40, "forward")
    assert finding.confidence == "medium"
    assert finding.cost.ns == 3 * 30 * US
    assert "TORCH_LOGS=graph_breaks" in finding.fix


def test_without_stacks_and_reasons_it_reports_breaks_without_their_line(found: Found) -> None:
    (finding,) = found(steps(), RULE)
    assert finding.n == 3
    assert finding.message.startswith("Graph break in the function called, once per step. ")
    assert finding.cost.ns == 3 * 30 * US


def test_one_graph_a_call_is_the_fix(found: Found) -> None:
    b = TraceBuilder(capture=build_capture(at_line()), device_names=())
    for _ in range(3):
        with b.step():
            whole(b)
    assert found(b, RULE) == ()


@pytest.mark.parametrize("reason", [DISABLED, CALLED])
def test_breaks_that_the_program_asks_for_are_not_reported(found: Found, reason: str) -> None:
    assert found(steps(4, capture=build_capture(at_line(reason))), RULE) == ()


def test_a_line_at_the_end_has_no_other_graph_behind_it(found: Found) -> None:
    assert found(steps(capture=build_capture(at_line(), n_ops=0)), RULE) == ()
    b = TraceBuilder(device_names=())
    for _ in range(3):
        with b.step(), b.op("Torch-Compiled Region: 0/0"):
            b.compute("aten::addmm", 100 * US)
            with b.op("Torch-Compiled Region: 1/0"):
                b.advance(10 * US)
    assert found(b, RULE) == ()


def test_of_two_lines_only_the_one_with_a_graph_behind_it_is_reported(found: Found) -> None:
    capture = build_capture(at_line(), at_line(line=60))
    assert capture.compiles is not None
    last = Compiled("2/0", (NET, 60, "torch_dynamo_resume_in_forward_at_60"), n_ops=None)
    capture.compiles.compiled.append(last)
    b = TraceBuilder(capture=capture, device_names=())
    for _ in range(3):
        with b.step(), b.op("Torch-Compiled Region: 0/0"):
            b.compute("aten::addmm", 100 * US)
            with b.op("Torch-Compiled Region: 1/0"):
                b.compute("aten::tanh", 100 * US)
                with b.op("Torch-Compiled Region: 2/0"):
                    b.compute("aten::item", US)

    (finding,) = found(b, RULE)
    assert finding.locations[0].line == 40
    assert finding.evidence["n_graphs"] == 6


def test_a_line_before_the_only_graph_cuts_nothing(found: Found) -> None:
    capture = build_capture(at_line())
    assert capture.compiles is not None
    capture.compiles.compiled[0] = Compiled("0/0", (NET, 36, "forward"), n_ops=0)
    assert found(steps(capture=capture), RULE) == ()


def test_breaks_outside_of_steps_are_not_reported(found: Found) -> None:
    b = TraceBuilder(capture=build_capture(at_line()), device_names=())
    cut(b)
    for _ in range(3):
        with b.step():
            whole(b)
    assert found(b, RULE) == ()


def test_a_line_that_ended_graphs_only_in_another_function_is_not_reported(found: Found) -> None:
    # Its reason is remembered, and nothing goes on behind it in the steps.
    (finding,) = found(steps(capture=build_capture(at_line(), at_line(line=90))), RULE)
    assert finding.locations[0].line == 40


def test_two_functions_of_one_graph_each_one_after_another_are_whole(found: Found) -> None:
    b = TraceBuilder(device_names=())
    for _ in range(3):
        with b.step():
            for number in ("0/0", "1/0"):
                with b.op(f"Torch-Compiled Region: {number}"):
                    b.compute("aten::mm", 100 * US)
    assert found(b, RULE) == ()


def test_a_break_in_what_a_function_calls_is_reported_at_its_own_line(found: Found) -> None:
    # forward:40 calls helper, which cannot be compiled in one piece because of its line 7.
    inner = GraphBreak(LOGGER, [(NET, 7, "helper"), (NET, 40, "forward")], user=0)
    (finding,) = found(steps(capture=build_capture(inner)), RULE)
    assert finding.locations[0].line == 7


def test_a_break_in_a_library_is_reported_at_the_users_line_that_leads_there(found: Found) -> None:
    deep = GraphBreak(LOGGER, [(LIBRARY, 99, "attend"), (NET, 40, "forward")], user=1)
    (finding,) = found(steps(capture=build_capture(deep)), RULE)
    assert [(place.file, place.line) for place in finding.locations] == [(NET, 40), (LIBRARY, 99)]
    alone = GraphBreak(LOGGER, [(NET, 40, "forward")], user=-1)
    (finding,) = found(steps(capture=build_capture(alone)), RULE)
    assert finding.locations[0].line == 40


def test_few_breaks_that_cost_little_are_a_note(found: Found) -> None:
    def severity(n_cuts: int, rest_us: int) -> str:
        capture = build_capture(at_line())
        return found(steps(n_cuts, rest_us=rest_us, capture=capture), RULE)[0].severity

    # 30 µs of a step of 240 µs and the rest: a hundredth of 3 ms.
    assert severity(1, 2760) == "warning"
    assert severity(1, 2761) == "note"
    assert severity(3, 100_000) == "note"
    assert severity(4, 100_000) == "warning"


def test_python_between_graphs_costs_nothing_if_the_host_waits_for_the_device_anyway(
    found: Found,
) -> None:
    def training(device_ns: int) -> TraceBuilder:
        b = TraceBuilder(capture=build_capture(at_line()))
        for _ in range(3):
            with b.step():
                b.launch("aten::mm", kernel="gemm", host_ns=10 * US, device_ns=device_ns)
                cut(b)
                b.synchronize()
        return b

    (busy,) = found(training(400 * US), RULE)
    # The host waits for the kernel from 250 to 410 µs; 30 µs earlier it waits for 30 µs more.
    assert busy.cost.ns == 0
    assert busy.evidence["python_ns"] == 3 * 30 * US
    (idle,) = found(training(50 * US), RULE)
    assert idle.cost.ns == 3 * 30 * US


def test_breaks_of_two_threads_are_each_measured_on_their_own(found: Found) -> None:
    b = TraceBuilder(capture=build_capture(at_line()), device_names=())
    with b.step():
        cut(b)
        with b.thread(77):
            cut(b)
    (finding,) = found(b, RULE)
    assert finding.cost.ns == 2 * 30 * US


def test_a_function_left_uncompiled_as_a_whole_is_reported_where_it_runs_in_steps(
    found: Found,
) -> None:
    failed = Compiled(
        "0/0",
        (NET, 36, "forward"),
        is_users=True,
        caller=CALL,
        failure="Failed to trace builtin operator `print`\n  Explanation: ...",
    )
    capture = CaptureInfo(version="1", name="run", compiles=Compiles([failed]))

    def running(function: str) -> TraceBuilder:
        b = TraceBuilder(capture=capture, device_names=())
        for _ in range(3):
            with b.step(), b.frame(NET, 36, function):
                b.compute("aten::mm", 100 * US)
        return b

    (finding,) = found(running("forward"), RULE)
    assert finding.message.startswith("`forward` at net.py:36 runs uncompiled: ")
    assert "Failed to trace builtin operator `print`" in finding.message
    assert [place.line for place in finding.locations] == [12, 36]
    assert found(running("other"), RULE) == ()


@pytest.mark.parametrize(
    ("reason", "fix"),
    [
        ("generic_jump TensorVariable()", "torch.where(condition, a, b)"),
        ("Unsupported Tensor.item() call with capture_scalar_outputs=False", "Keep the value a"),
        ("Failed to trace builtin operator `print`", "Log outside the compiled function."),
        ("Something new", "Move the line out of the compiled function."),
    ],
)
def test_the_fix_matches_the_reason(found: Found, reason: str, fix: str) -> None:
    (finding,) = found(steps(capture=build_capture(at_line(reason))), RULE)
    assert fix in finding.fix


def test_a_hint_to_report_a_bug_is_not_help(found: Found) -> None:
    reason = "Something new\n  Hint: Please report an issue to PyTorch.\n  Hint: Do\n    this.\n\n"
    (finding,) = found(steps(capture=build_capture(at_line(reason))), RULE)
    assert finding.fix == "Move the line out of the compiled function. PyTorch's hint: “Do this”."


def test_a_program_that_compiles_nothing_is_clean(found: Found, host_alone: TraceBuilder) -> None:
    assert found(host_alone, RULE) == ()


def test_before_torch_marked_compiled_regions_it_is_skipped(analyzed: Analyzed) -> None:
    b = TraceBuilder(device_names=())
    with b.step():
        b.compute("CompiledFunction", 100 * US)
    (unchecked,) = analyzed(b, RULE).unchecked
    assert unchecked.remedy == "Record with torch 2.2 or newer."


def test_without_steps_it_is_skipped(analyzed: Analyzed) -> None:
    b = TraceBuilder(device_names=())
    cut(b)
    assert [check.rule for check in analyzed(b, RULE).unchecked] == ["CMP002"]


def test_a_function_that_the_break_keeps_out_of_the_graph_costs_the_way_into_it(
    found: Found,
) -> None:
    capture = CaptureInfo(
        version="1",
        name="run",
        compiles=Compiles(
            compiled=[
                Compiled("0/0", (NET, 80, "loop"), is_users=True, caller=CALL, n_ops=0),
                Compiled("1/0", (NET, 36, "forward"), is_users=True, caller=CALL, n_ops=1),
                Compiled(
                    "2/0",
                    (NET, 40, "torch_dynamo_resume_in_forward_at_40"),
                    is_users=True,
                    caller=CALL,
                    n_ops=1,
                ),
                Compiled("3/0", (NET, 90, "head"), is_users=True, caller=CALL, n_ops=1),
            ],
            breaks=[at_line()],
        ),
    )
    b = TraceBuilder(capture=capture, device_names=())
    for _ in range(3):
        with b.step():
            with b.op("Torch-Compiled Region: 0/0"):
                for _ in range(2):
                    b.advance(40 * US)
                    with b.op("Torch-Compiled Region: 1/0"):
                        b.advance(5 * US)
                        b.compute("aten::addmm", 100 * US)
                        b.advance(20 * US)
                        with b.op("Torch-Compiled Region: 2/0"):
                            b.advance(10 * US)
                            b.compute("aten::tanh", 100 * US)
                b.advance(50 * US)
                with b.op("Torch-Compiled Region: 3/0"):
                    b.compute("aten::addmm", 100 * US)
            b.compute("aten::add", 100 * US)

    (finding,) = found(b, RULE)
    # Twice 30 µs behind the line, and 45 into the second layer, as one graph has to be entered too;
    # then 50 into the head.
    assert finding.cost.ns == 3 * (2 * 30 + 45 + 50) * US
    assert finding.n == 6
    assert finding.evidence["n_graphs"] == 3 * 5
