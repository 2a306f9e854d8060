"""compile-in-window finds first compilations in a recording, and what they cost."""

from collections.abc import Callable

import pytest

from profkit.model.finding import Finding
from profkit.model.report import Report
from profkit.testing import TraceBuilder

RULE = "compile-in-window"
Found = Callable[..., tuple[Finding, ...]]
Analyzed = Callable[..., Report]
MS = 1_000_000


def compile_model(b: TraceBuilder, compile_id: str = "0/0", ms: int = 30) -> None:
    """Add a compilation as torch 2.13 records it, and the run of its result."""
    with b.op("entire_frame_compile (dynamo_timed)"), b.op("dynamo"):
        b.advance(ms * MS)
    with b.op(f"Torch-Compiled Region: {compile_id}"):
        b.compute("aten::mm", MS)


def frame(*place: object) -> Callable[[TraceBuilder], None]:
    def compiles(b: TraceBuilder) -> None:
        with b.frame(*place):  # type: ignore[arg-type]
            b.advance(30 * MS)

    return compiles


def program(compiles: Callable[[TraceBuilder], None] | None, *, in_step: int = 0) -> TraceBuilder:
    """Four steps of 10 ms, of which one compiles."""
    b = TraceBuilder(stacks=True, device_names=())
    for number in range(4):
        with b.step(), b.frame("train.py", 10, "train"):
            if compiles is not None and number == in_step:
                compiles(b)
            b.compute("aten::mm", 10 * MS)
    return b


TRITON = ("/venv/triton/compiler/compiler.py", 226, "compile")
SCRIPT = ("torch/jit/_script.py", 1300, "script")
EXTENSION = ("torch/utils/cpp_extension.py", 1200, "load_inline")


@pytest.mark.parametrize(
    ("compiles", "what"),
    [
        (compile_model, "torch.compile 30.0 ms"),
        (frame(*TRITON), "Triton 30.0 ms"),
        (frame(*SCRIPT), "TorchScript 30.0 ms"),
        (frame(*EXTENSION), "C++ extensions 30.0 ms"),
    ],
)
def test_it_costs_the_time_and_says_what_compiles(
    found: Found, compiles: Callable[[TraceBuilder], None], what: str
) -> None:
    b = program(compiles)
    (finding,) = found(b, RULE)
    assert finding.cost.ns == 30 * MS
    assert finding.cost.basis == "replay"
    assert finding.severity == "note"
    share = f"{30 * MS / b.now_ns:.0%}"
    assert f"for the first time takes 30.0 ms of the steps ({share}): {what}." in finding.message
    assert "warmup=1" in finding.fix


def test_kernels_that_torch_compile_has_compiled_count_once(found: Found) -> None:
    def compiles(b: TraceBuilder) -> None:
        with b.op("entire_frame_compile (dynamo_timed)"), b.op("dynamo"):
            b.advance(10 * MS)
            with b.frame(*TRITON):
                b.advance(20 * MS)

    (finding,) = found(program(compiles), RULE)
    assert finding.message.endswith(": torch.compile 30.0 ms.")


def scripted(pauses_ms: list[int], *, fallback: bool = True, python: bool = False) -> TraceBuilder:
    """Calls of a function of TorchScript, each after a pause."""
    b = TraceBuilder(device_names=())
    b.compute("aten::mm", MS)
    for ms in pauses_ms:
        if python:
            b.advance(ms * MS // 2)
            with b.builtin("function collate"):
                b.advance(1_000)
            b.advance(ms * MS // 2)
        else:
            b.advance(ms * MS)
        with b.op("delta_r2"), b.op("fallback_function" if fallback else "aten::mul"):
            b.compute("aten::sub", MS)
    return b


def test_the_time_before_a_fallback_is_spent_in_the_fuser(found: Found) -> None:
    (finding,) = found(scripted([300, 5, 5]), RULE)
    assert finding.cost.ns == 300 * MS
    assert finding.confidence == "medium"
    assert finding.message.endswith("of the recording (96%): TorchScript 300 ms.")
    assert "three times" in finding.fix


@pytest.mark.parametrize(
    "built",
    [
        scripted([300, 5, 5], fallback=False),
        scripted([300, 290, 310]),
        scripted([40, 1, 1]),
        scripted([90, 5, 5], python=True),
    ],
    ids=["no fallback", "a pause before each call", "short", "Python runs meanwhile"],
)
def test_other_pauses_are_not_the_fusers(found: Found, built: TraceBuilder) -> None:
    assert found(built, RULE) == ()


def test_a_recording_after_warm_up_has_none(found: Found) -> None:
    assert found(program(None), RULE) == ()


def test_recompilations_have_another_finding(found: Found) -> None:
    b = TraceBuilder(stacks=True, device_names=())
    for number in range(4):
        with b.step(), b.frame("train.py", 10, "train"):
            compile_model(b, f"0/{number + 3}")
    assert found(b, RULE) == ()
    assert len(found(b, "recompiles")) == 1


def test_compiling_before_the_steps_is_in_no_figure(found: Found) -> None:
    b = TraceBuilder(device_names=())
    compile_model(b)
    for _ in range(3):
        with b.step():
            b.compute("aten::mm", 10 * MS)
    assert found(b, RULE) == ()


def test_a_small_share_is_not_reported(found: Found) -> None:
    def compiles(b: TraceBuilder) -> None:
        compile_model(b, ms=1)

    assert found(program(compiles), RULE) == ()
    assert found(program(compiles), RULE, min_saved_share=0.01) != ()


def test_one_cause_has_one_finding(found: Found) -> None:
    assert found(program(compile_model), "no-warm-up") == ()
    assert found(program(compile_model), "no-warm-up", max_cold_share=2) != ()


def test_without_operators_it_is_skipped(analyzed: Analyzed, device_alone: TraceBuilder) -> None:
    (unchecked,) = analyzed(device_alone, RULE).unchecked
    assert unchecked.rule == "CMP004"
