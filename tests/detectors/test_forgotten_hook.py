"""forgotten-hook reports hooks that retain tensors, and hooks added in every step."""

from collections.abc import Callable

from profkit.model.finding import Finding
from profkit.model.live_memory import Chain, Graph
from profkit.model.report import Report
from profkit.testing import LiveBuilder

RULE = "forgotten-hook"
Analyzed = Callable[..., Report]
Found = Callable[..., tuple[Finding, ...]]
Watched = Callable[..., LiveBuilder]
KIB = 1024


def test_a_hook_registered_in_every_step_is_reported(found: Found, watched: Watched) -> None:
    hooks = Chain(
        "hook",
        ("__main__", ".model", ".fc", "._forward_hooks", "[17]"),
        "collections.OrderedDict",
        200,
        "model.fc._forward_hooks",
    )
    (finding,) = found(watched(chains=(hooks,)), RULE)
    assert "retained by `model.fc._forward_hooks` (OrderedDict, 200 entries)." in finding.message
    assert finding.fix == (
        "Register the hook once before the loop, or call `handle.remove()` at the end of the step."
    )
    assert finding.holders == (hooks.parts,)


def test_a_hook_that_fills_a_list_is_reported_with_its_graph(
    found: Found, watched: Watched
) -> None:
    seen = Chain(
        "hook",
        (
            "__main__",
            ".net",
            "._forward_hooks",
            "[3]",
            " → seen",
            "[17]",
            " in the closure of hook at x.py:5",
        ),
        "list",
        200,
        name="seen",
        scope=" in the closure of hook at x.py:5",
        is_entry=True,
    )
    graph = Graph(600, 1 << 20, "ReluBackward0")

    (finding,) = found(watched(chains=(seen,), graph=graph), RULE)
    assert finding.message.endswith("which save 1.00 MiB for backward.")
    assert finding.fix == (
        "Store `.detach()`ed values in the hook, clear `seen` in every step, and call "
        "`handle.remove()` when the hook is no longer needed."
    )


def test_what_no_hook_holds_is_reported_by_another_rule(found: Found, watched: Watched) -> None:
    assert found(watched(), RULE) == ()


def test_after_too_few_steps_it_is_skipped(analyzed: Analyzed) -> None:
    (unchecked,) = analyzed(LiveBuilder(n_evaluated_steps=0), RULE).unchecked
    assert unchecked.rule == "MEM005"
    assert unchecked.remedy == "Let the program run for more steps."
