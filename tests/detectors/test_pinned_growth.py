"""pinned-growth reports pinned memory that accumulates."""

from collections.abc import Callable

from profkit.model.finding import Finding
from profkit.model.live_memory import Chain
from profkit.model.report import Report
from profkit.testing import LiveBuilder

RULE = "pinned-growth"
Analyzed = Callable[..., Report]
Found = Callable[..., tuple[Finding, ...]]
Watched = Callable[..., LiveBuilder]
KIB = 1024


def test_pinned_tensors_that_accumulate_are_reported(found: Found, watched: Watched) -> None:
    (finding,) = found(watched(device="pinned"), RULE)
    assert finding.message == (
        "Pinned host memory grows by 64.0 KiB per step (steps 1 to 200): 200 tensors, allocated "
        "at train.py:31 and retained by `kept` (list, 200 entries)."
    )
    assert finding.fix.startswith("Release the tensors in `kept` after their copy to the GPU")
    assert finding.evidence["device"] == "pinned"


def test_a_cache_of_pinned_tensors_is_a_cache(found: Found, watched: Watched) -> None:
    held = (Chain("cache", ("functools.cache of load",), "cache", 200, "functools.cache of load"),)
    assert found(watched(device="pinned", chains=held), RULE) == ()


def test_other_host_memory_is_reported_by_another_rule(found: Found, watched: Watched) -> None:
    assert found(watched(), RULE) == ()


def test_after_too_few_steps_it_is_skipped(analyzed: Analyzed) -> None:
    (unchecked,) = analyzed(LiveBuilder(n_evaluated_steps=0), RULE).unchecked
    assert unchecked.rule == "MEM016"
    assert unchecked.remedy == "Let the program run for more steps."
