"""Dynamo's records are read in every version of torch, and reading never raises."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from profkit.capture.process import compiles, compiling
from profkit.model.capture_info import GraphBreak

UTILS = "torch._dynamo.utils"
TRAIN, NET = "/home/me/train.py", "/home/me/net.py"
LIBRARY = "/lib/site-packages/them/modeling.py"


def dynamo(monkeypatch: pytest.MonkeyPatch, **attributes: object) -> None:
    """Replace ``torch._dynamo.utils`` by one with these attributes."""
    monkeypatch.setitem(sys.modules, UTILS, SimpleNamespace(**attributes))


def build_metric(**changes: object) -> SimpleNamespace:
    """Build the record of one compilation in torch 2.13."""
    defaults: dict[str, object] = {
        "compile_id": "1/2",
        "co_filename": NET,
        "co_firstlineno": 36,
        "co_name": "forward",
        "start_time_us": 1_790_000_000_000_001,
        "duration_us": 2_500,
        "graph_op_count": 6,
        "recompile_reason": "1/1: tensor 'x' size mismatch at index 0. expected 4, actual 5",
        "fail_reason": None,
        "is_forward": True,
        "is_runtime": False,
        "stack_trace": [
            f"Line: 12, Name: main, Filename: {TRAIN}",
            f"Line: 511, Name: __call__, Filename: {LIBRARY}",
            f"Line: 36, Name: forward, Filename: {NET}",
        ],
    }

    return SimpleNamespace(**(defaults | changes))


def frame(file: str, line: int, name: str) -> SimpleNamespace:
    return SimpleNamespace(filename=file, lineno=line, name=name)


def only(*metrics: SimpleNamespace) -> dict[str, Any]:
    return {"get_compilation_metrics": lambda: list(metrics), "graph_break_reasons": []}


def test_nothing_is_read_or_imported_in_a_program_that_does_not_compile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, UTILS, raising=False)
    assert compiles.read() is None
    assert not compiling.has_compiled()
    assert UTILS not in sys.modules
    dynamo(monkeypatch, **only(), counters={})
    assert compiles.read() is None
    assert not compiling.has_compiled()


def test_every_field_of_a_recompilation_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    dynamo(monkeypatch, **only(build_metric()), counters={"frames": {"total": 1}})

    assert compiling.has_compiled()
    record = compiles.read()
    assert record is not None
    (compilation,) = record.compiled
    assert compilation.number == "1/2"
    assert compilation.code == (NET, 36, "forward")
    assert compilation.is_users
    assert compilation.caller == (TRAIN, 12, "main")
    assert compilation.start_ns == 1_790_000_000_000_001_000
    assert compilation.dur_ns == 2_500_000
    assert compilation.n_ops == 6
    assert compilation.again
    assert compilation.reason.startswith("1/1: tensor 'x' size mismatch")
    assert not compilation.failure


def test_a_first_compilation_is_not_a_recompilation_and_backward_passes_are_excluded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, backward = build_metric(recompile_reason=None), build_metric(is_forward=False)
    dynamo(monkeypatch, **only(first, backward, build_metric(is_runtime=True)))
    record = compiles.read()
    assert record is not None
    assert [(compilation.again, compilation.reason) for compilation in record.compiled] == [
        (False, "")
    ]


def test_before_torch_2_7_the_reason_is_the_last_guard_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    old = SimpleNamespace(
        co_filename=NET,
        co_firstlineno=36,
        co_name="forward",
        cache_size=1,
        start_time_us=1_700_000_000_500_000,
        duration_us=250_000,
        graph_op_count=2,
        fail_reason=None,
    )
    code, other_code = (compile("1", NET, "eval").replace(co_firstlineno=line) for line in (36, 90))
    dynamo(
        monkeypatch,
        **only(SimpleNamespace(**{**vars(old), "cache_size": 0}), old),
        guard_failures={other_code: ["n == 1"], code: ["n == 2", "n == 3"]},
    )

    record = compiles.read()
    assert record is not None
    assert [(compilation.again, compilation.reason) for compilation in record.compiled] == [
        (False, ""),
        (True, "n == 3"),
    ]
    assert record.compiled[1].number == ""
    assert record.compiled[1].start_ns == 1_700_000_000_500_000_000
    assert record.compiled[1].dur_ns == 250_000_000


def test_a_function_that_torch_generated_is_not_a_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    stack = [
        f"Line: 12, Name: main, Filename: {TRAIN}",
        f"Line: 40, Name: torch_dynamo_resume_in_forward_at_40, Filename: {NET}",
        f"Line: 50, Name: helper, Filename: {NET}",
    ]
    dynamo(monkeypatch, **only(build_metric(stack_trace=stack), build_metric(stack_trace=["odd"])))
    record = compiles.read()
    assert record is not None
    assert [compilation.caller for compilation in record.compiled] == [(TRAIN, 12, "main"), None]


def test_a_graph_break_is_listed_once_with_its_innermost_user_frame(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    deep = [frame(TRAIN, 12, "main"), frame(NET, 40, "forward"), frame(LIBRARY, 99, "attend")]
    reasons = [
        SimpleNamespace(reason="no", user_stack=deep),
        SimpleNamespace(reason="no", user_stack=list(deep)),
        SimpleNamespace(reason="no", user_stack=[frame(LIBRARY, 99, "attend")]),
        SimpleNamespace(reason="ours", user_stack=[frame(compiles.__file__, 5, "read")]),
        SimpleNamespace(reason="nowhere", user_stack=[]),
    ]
    dynamo(monkeypatch, graph_break_reasons=reasons)
    record = compiles.read()
    assert record is not None

    attend = (LIBRARY, 99, "attend")
    assert record.breaks == [
        GraphBreak("no", [attend, (NET, 40, "forward"), (TRAIN, 12, "main")], user=1, n=2),
        GraphBreak("no", [attend], user=-1, n=1),
    ]


class Hostile:
    """Raises on every attribute access."""

    def __getattr__(self, name: str) -> object:
        raise RuntimeError(name)


def test_an_unreadable_record_is_skipped_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    odd = [
        Hostile(),
        None,
        build_metric(co_firstlineno="x"),
        build_metric(stack_trace=[3]),
        build_metric(),
    ]
    breaks = [Hostile(), SimpleNamespace(reason=3, user_stack=None)]

    dynamo(
        monkeypatch,
        get_compilation_metrics=lambda: odd,
        graph_break_reasons=breaks,
        counters=Hostile(),
    )
    record = compiles.read()
    assert record is not None
    assert len(record.compiled) == 1
    assert not compiling.has_compiled()

    dynamo(monkeypatch, get_compilation_metrics=Hostile().__class__, graph_break_reasons=breaks)
    assert compiles.read() is None


def test_the_number_and_length_of_entries_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    many = [build_metric(compile_id=f"{i}/0", recompile_reason="x" * 10**6) for i in range(1_000)]
    breaks = [
        SimpleNamespace(reason="y" * 10**5, user_stack=[frame(NET, i, "forward")] * 50)
        for i in range(1_000)
    ]
    dynamo(monkeypatch, get_compilation_metrics=lambda: many, graph_break_reasons=breaks)
    record = compiles.read()
    assert record is not None
    assert record.n_left_out == 2_000 - len(record.compiled) - len(record.breaks) > 0
    assert len(record.compiled) <= 300
    assert record.compiled[-1].number == "999/0"
    assert len(record.compiled[0].reason) <= 1_000
    assert max(len(graph_break.stack) for graph_break in record.breaks) <= 20
