"""kept-traceback reports exceptions that retain the tensors of their frames."""

from collections.abc import Callable
from dataclasses import replace

from profkit.model.finding import Finding
from profkit.model.live_memory import Chain, Graph, Leak, TensorShape
from profkit.model.location import Frame
from profkit.model.report import Report
from profkit.testing import LiveBuilder

RULE = "kept-traceback"
Analyzed = Callable[..., Report]
Found = Callable[..., tuple[Finding, ...]]
Watched = Callable[..., LiveBuilder]
KIB = 1024

ERRORS = Chain(
    "traceback",
    (
        "errors",
        "[17]",
        ".__traceback__",
        " in main at train.py:9",
        " → output",
        " in step at train.py:31",
    ),
    "list",
    200,
    name="errors",
    scope=" in main at train.py:9",
    is_entry=True,
)


def test_stored_exceptions_are_reported_with_their_frames(found: Found, watched: Watched) -> None:
    (finding,) = found(watched(chains=(ERRORS,), graph=Graph(900, 1 << 20, "Addmm")), RULE)
    assert "They are local variables of frames in the traceback of a stored exception." in (
        finding.message
    )
    assert finding.message.endswith("900 nodes, which save 1.00 MiB for backward.")
    assert finding.fix == (
        "Store `traceback.format_exc()` or `str(error)` in `errors` instead of the exception, or "
        "drop its frames with `error.with_traceback(None)`."
    )
    assert finding.holders == (ERRORS.parts,)


def test_all_tensors_of_one_list_of_exceptions_is_one_finding(
    found: Found, watched: Watched
) -> None:
    def local(name: str) -> Chain:
        parts = (*ERRORS.parts[:4], f" → {name}", ERRORS.parts[5])
        return replace(ERRORS, parts=parts)

    b = watched(chains=(local("output"),), shape=TensorShape("float32", (64, 256), 4))
    for line, name in ((12, "batch"), (13, "target"), (13, "target")):
        b.add(
            Leak(
                "tensors",
                "cpu",
                1024 * line,
                200 * 1024 * line,
                200,
                1,
                200,
                stack=(Frame("/home/me/train.py", line, "load"),),
                chains=(local(name),),
            )
        )
    (finding,) = found(b, RULE)
    assert [place.line for place in finding.locations] == [31, 13, 12]
    assert finding.cost.per_step_bytes == (64 + 12 + 13 + 13) * 1024
    assert finding.n == 800
    assert [chain[4] for chain in finding.holders] == [" → output", " → target", " → batch"]
    assert finding.message.endswith("2 more lines allocate into the same holder.")
    assert (
        ": 800 tensors, allocated at train.py:31 and retained by `errors` in main at"
        in finding.message
    )


def test_what_no_traceback_holds_is_reported_by_another_rule(
    found: Found, watched: Watched
) -> None:
    assert found(watched(), RULE) == ()


def test_after_too_few_steps_it_is_skipped(analyzed: Analyzed) -> None:
    (unchecked,) = analyzed(LiveBuilder(n_evaluated_steps=0), RULE).unchecked
    assert unchecked.rule == "MEM007"
    assert unchecked.remedy == "Let the program run for more steps."
