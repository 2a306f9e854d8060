"""host-growth tells of host memory that no tensor owns."""

from collections.abc import Callable

from profkit.model.finding import Finding
from profkit.model.live import Chain
from profkit.model.report import Report
from profkit.testing import LiveBuilder

RULE = "host-growth"
Analyzed = Callable[..., Report]
Found = Callable[..., tuple[Finding, ...]]
Watched = Callable[..., LiveBuilder]
KIB = 1024

ARRAYS = Chain("frame", ("predictions", "[199]", " in main at train.py:12"), "list", 200)


def test_arrays_that_pile_up_are_told_by_type_and_holder(found: Found, watched: Watched) -> None:
    b = watched(kind="host", device="host", type="numpy.ndarray", chains=(ARRAYS,))
    (finding,) = found(b, RULE)
    assert finding.message == (
        "Each step from 1 to 200 keeps 64.0 KiB more in host memory: 200 objects of type "
        "`numpy.ndarray`, made at train.py:31 and held by `predictions` in main at train.py:12 "
        "(list, 200 entries)."
    )
    assert finding.fix.startswith("Empty `predictions` once its values")
    assert finding.evidence["type"] == "numpy.ndarray"


def test_growth_that_nobody_holds_is_told_with_less_confidence(
    found: Found, watched: Watched
) -> None:
    b = watched(kind="host", device="host", n=0, chains=(), stack=(), stack_is="unknown")
    (finding,) = found(b, RULE)
    assert finding.message == (
        "Each step from 1 to 200 keeps 64.0 KiB more in host memory, and no object of Python is "
        "seen to hold it."
    )
    assert finding.confidence == "low"
    assert finding.fix.startswith("See which library takes it")


def test_tensors_are_another_rules(found: Found, watched: Watched) -> None:
    assert found(watched(), RULE) == ()


def test_after_too_few_steps_it_could_not_look(analyzed: Analyzed) -> None:
    (unchecked,) = analyzed(LiveBuilder(n_judged_steps=0), RULE).unchecked
    assert unchecked.rule == "MEM009"
    assert unchecked.how == "Let it run for more steps."
