"""unbounded-cache reports caches that gain an entry in every step."""

from collections.abc import Callable

from profkit.model.finding import Finding
from profkit.model.live_memory import Chain, Graph
from profkit.model.report import Report
from profkit.testing import LiveBuilder

RULE = "unbounded-cache"
Analyzed = Callable[..., Report]
Found = Callable[..., tuple[Finding, ...]]
Watched = Callable[..., LiveBuilder]
KIB = 1024

LRU = Chain(
    "cache",
    ("functools.lru_cache of positional",),
    "functools._lru_cache_wrapper",
    200,
    "functools.lru_cache of positional",
)
OWN = Chain(
    "instance", ("__main__.model", "._mask_cache", "[1017]"), "dict", 200, "model._mask_cache"
)


def test_a_cache_of_functools_is_reported_with_its_function(found: Found, watched: Watched) -> None:
    (finding,) = found(watched(chains=(LRU,)), RULE)
    assert "retained by `functools.lru_cache of positional` (200 entries)" in (finding.message)
    assert finding.fix == (
        "Limit `functools.lru_cache of positional` (`functools.lru_cache(maxsize=32)`), or pass "
        "arguments that repeat: a tensor or the number of a step is a new key every time."
    )


def test_a_dict_that_the_program_calls_a_cache_is_one(found: Found, watched: Watched) -> None:
    (finding,) = found(watched(chains=(OWN,), graph=Graph(200, 1 << 20, "MulBackward0")), RULE)
    assert finding.fix == (
        "Limit `model._mask_cache`: remove the oldest entry for each new one, or clear it every "
        "epoch, and use keys that repeat. Store its tensors `.detach()`ed."
    )


def test_results_that_are_not_tensors_are_reported_too(found: Found, watched: Watched) -> None:
    b = watched(kind="host", device="host", type="numpy.ndarray", chains=(LRU,))
    (finding,) = found(b, RULE)
    assert "200 objects of type `numpy.ndarray`, allocated at" in finding.message


def test_a_plain_dict_is_reported_by_another_rule(found: Found, watched: Watched) -> None:
    plain = Chain(
        "instance", ("__main__.model", ".outputs", "[1017]"), "dict", 200, "model.outputs"
    )
    assert found(watched(chains=(plain,)), RULE) == ()


def test_after_too_few_steps_it_is_skipped(analyzed: Analyzed) -> None:
    (unchecked,) = analyzed(LiveBuilder(n_evaluated_steps=0), RULE).unchecked
    assert unchecked.rule == "MEM008"
    assert unchecked.remedy == "Let the program run for more steps."
