"""uncollected-cycle tells of tensors in reference cycles that wait for the collector."""

from collections.abc import Callable

from profkit.model.finding import Finding
from profkit.model.live import Chain
from profkit.model.report import Report
from profkit.testing import LiveBuilder

RULE = "uncollected-cycle"
Analyzed = Callable[..., Report]
Found = Callable[..., tuple[Finding, ...]]
Watched = Callable[..., LiveBuilder]
KIB = 1024

CYCLE = ("Episode", "dict", "function", "cell", "Episode")


def test_garbage_is_told_with_its_cycle(found: Found, watched: Watched) -> None:
    (finding,) = found(watched(kind="garbage", chains=(), cycle=CYCLE), RULE)
    assert finding.message == (
        "Each step from 1 to 200 keeps 64.0 KiB more in host memory: 200 tensors, made at "
        "train.py:31. Nothing can reach them; they hang on a reference cycle, which only the "
        "garbage collector can free: `Episode -> dict -> function -> cell -> Episode`."
    )
    assert finding.fix.startswith("Break the cycle of `Episode`: refer back by `weakref.ref`")
    assert finding.evidence["cycle"] == list(CYCLE)
    assert (finding.severity, finding.confidence) == ("warning", "high")


def test_a_cycle_of_plain_types_names_no_class(found: Found, watched: Watched) -> None:
    plain = ("function", "tuple", "cell", "function")
    (finding,) = found(watched(kind="garbage", chains=(), cycle=plain), RULE)
    assert finding.fix.startswith("Break the cycle: refer back")


def test_a_cycle_that_is_not_known_makes_it_less_sure(found: Found, watched: Watched) -> None:
    (finding,) = found(watched(kind="garbage", chains=()), RULE)
    assert finding.confidence == "medium"
    assert finding.message.endswith("which only the garbage collector can free.")


def test_what_is_held_is_no_garbage(found: Found, watched: Watched) -> None:
    held = (Chain("instance", ("__main__.episode", ".tensors", "[3]"), "list", 200),)
    assert found(watched(chains=held), RULE) == ()


def test_after_too_few_steps_it_could_not_look(analyzed: Analyzed) -> None:
    (unchecked,) = analyzed(LiveBuilder(n_judged_steps=0), RULE).unchecked
    assert unchecked.rule == "MEM006"
    assert unchecked.how == "Let it run for more steps."
