"""uncollected-cycle reports tensors in reference cycles."""

from collections.abc import Callable

from profkit.model.finding import Finding
from profkit.model.live_memory import Chain
from profkit.model.report import Report
from profkit.testing import LiveBuilder

RULE = "uncollected-cycle"
Analyzed = Callable[..., Report]
Found = Callable[..., tuple[Finding, ...]]
Watched = Callable[..., LiveBuilder]
KIB = 1024

CYCLE = ("Episode", "dict", "function", "cell", "Episode")


def test_garbage_is_reported_with_its_cycle(found: Found, watched: Watched) -> None:
    (finding,) = found(watched(kind="garbage", chains=(), cycle=CYCLE), RULE)
    assert finding.message == (
        "Host memory grows by 64.0 KiB per step (steps 1 to 200): 200 tensors, allocated at "
        "train.py:31. They are unreachable, but in a reference cycle that only the garbage "
        "collector can free: `Episode -> dict -> function -> cell -> Episode`."
    )
    assert finding.fix.startswith("Break the cycle of `Episode`: refer back with `weakref.ref`")
    assert finding.evidence["cycle"] == list(CYCLE)
    assert (finding.severity, finding.confidence) == ("warning", "high")


def test_a_cycle_of_plain_types_names_no_class(found: Found, watched: Watched) -> None:
    plain = ("function", "tuple", "cell", "function")
    (finding,) = found(watched(kind="garbage", chains=(), cycle=plain), RULE)
    assert finding.fix.startswith("Break the cycle: refer back")


def test_a_function_in_its_own_closure_is_reported_by_its_name(
    found: Found, watched: Watched
) -> None:
    closure = ("function walk", "cell walk of its closure", "function walk")
    (finding,) = found(watched(kind="garbage", chains=(), cycle=closure), RULE)
    assert "`function walk -> cell walk of its closure -> function walk`" in finding.message
    assert finding.fix.startswith(
        "Break the cycle of `walk`, which refers to itself through its closure: "
    )


def test_functions_that_refer_to_each_other_are_all_named(found: Found, watched: Watched) -> None:
    closures = (
        "function even",
        "cell odd of its closure",
        "function odd",
        "cell even of its closure",
        "function even",
    )
    (finding,) = found(watched(kind="garbage", chains=(), cycle=closures), RULE)
    assert "`even` and `odd`, which refer to each other through their closures: " in finding.fix


def test_a_class_on_the_way_is_named_before_a_function(found: Found, watched: Watched) -> None:
    hooked = ("Linear", "OrderedDict", "function hook", "cell model of its closure", "Linear")
    (finding,) = found(watched(kind="garbage", chains=(), cycle=hooked), RULE)
    assert finding.fix.startswith("Break the cycle of `Linear`: refer back")


def test_a_cycle_of_gradients_is_reported_with_the_call_that_creates_none(
    found: Found, watched: Watched
) -> None:
    ring = ("Parameter.grad", "Tensor.grad_fn", "AccumulateGrad", "Parameter.grad")
    (finding,) = found(watched(kind="garbage", chains=(), cycle=ring), RULE)
    assert finding.message == (
        "Host memory grows by 64.0 KiB per step (steps 1 to 200): 200 tensors. An autograd "
        "reference cycle created at train.py:31 retains them, which no garbage collection can "
        "free: `Parameter.grad -> Tensor.grad_fn -> AccumulateGrad -> Parameter.grad`."
    )
    assert "`torch.autograd.grad(loss, parameters, create_graph=True)`" in finding.fix
    assert "gc.collect" not in finding.fix


def test_a_cycle_through_an_operators_own_node_is_reported_as_such(
    found: Found, watched: Watched
) -> None:
    ring = ("SquaredBackward", "Tensor.grad_fn", "SquaredBackward")
    (finding,) = found(watched(kind="garbage", chains=(), cycle=ring), RULE)
    assert finding.fix.startswith("Save inputs and outputs with `ctx.save_for_backward`")
    assert "gc.collect" not in finding.fix


def test_a_cycle_that_is_not_known_makes_it_less_sure(found: Found, watched: Watched) -> None:
    (finding,) = found(watched(kind="garbage", chains=()), RULE)
    assert finding.confidence == "medium"
    assert finding.message.endswith("that only the garbage collector can free.")


def test_a_reachable_tensor_is_not_garbage(found: Found, watched: Watched) -> None:
    held = (
        Chain("instance", ("__main__.episode", ".tensors", "[3]"), "list", 200, "episode.tensors"),
    )
    assert found(watched(chains=held), RULE) == ()


def test_after_too_few_steps_it_is_skipped(analyzed: Analyzed) -> None:
    (unchecked,) = analyzed(LiveBuilder(n_evaluated_steps=0), RULE).unchecked
    assert unchecked.rule == "MEM006"
    assert unchecked.remedy == "Let the program run for more steps."


def test_gradients_of_inputs_are_not_those_that_zero_grad_clears(
    found: Found, watched: Watched
) -> None:
    cycle = ("Tensor.grad", "Tensor.grad_fn", "AddmmBackward0", "Tensor._base", "Tensor.grad")
    (finding,) = found(watched(kind="garbage", chains=(), cycle=cycle), RULE)
    assert finding.fix.startswith("Set `.grad` of the inputs that require gradients to None")
