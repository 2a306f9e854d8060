"""growing-container reports tensors that accumulate in a container that is never emptied."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from profkit.model.finding import Finding
from profkit.model.live_memory import Chain, Graph, Leak, TensorShape
from profkit.model.report import Report
from profkit.testing import LiveBuilder

RULE = "growing-container"
Analyzed = Callable[..., Report]
Found = Callable[..., tuple[Finding, ...]]
Watched = Callable[..., LiveBuilder]
KIB = 1024


def test_a_list_that_is_never_emptied_is_reported(found: Found, watched: Watched) -> None:
    (finding,) = found(watched(shape=TensorShape("float32", (128, 128), 4)), RULE)
    assert finding.message == (
        "Host memory grows by 64.0 KiB per step (steps 1 to 200): 200 tensors of shape "
        "(128, 128) float32, allocated at train.py:31 and retained by `kept` (list, 200 entries)."
    )
    assert finding.fix == (
        "Clear `kept` after its tensors are used, or keep only the last ones "
        "(`collections.deque(maxlen=100)`)."
    )
    assert finding.holders == (("__main__.kept", "[199]"),)
    assert (finding.severity, finding.cost.per_step_bytes) == ("warning", 64 * KIB)


def test_what_stays_on_a_device_may_go_to_the_host(found: Found, watched: Watched) -> None:
    (finding,) = found(watched(device="cuda:0"), RULE)
    assert finding.message.startswith("Memory of cuda:0 grows by 64.0 KiB per step")
    assert finding.fix.endswith("or move them to the host with `.cpu()`.")


def test_a_view_retains_its_whole_storage(found: Found, watched: Watched) -> None:
    shape = TensorShape("float32", (16,), 4)
    (finding,) = found(watched(shape=shape, storage_bytes=64 * KIB), RULE)
    assert "Each is a view that retains a storage 1024 times as large." in (finding.message)
    assert finding.fix.startswith("Store a `.detach().clone()` of the view")


@pytest.mark.parametrize("dims", [(), (1,)])
def test_a_loss_retains_the_storage_that_it_was_reduced_in(
    found: Found, watched: Watched, dims: tuple[int, ...]
) -> None:
    shape = TensorShape("float32", dims, 4)
    (finding,) = found(watched(shape=shape, storage_bytes=64 * KIB), RULE)
    assert "Each is a number that retains a storage 16384 times as large." in finding.message
    assert finding.fix.startswith("Store the number itself, by `.item()`")


@pytest.mark.parametrize(
    "shape",
    [
        TensorShape("float32", (16384,), 4), TensorShape("bool", (65536,), 1),
        TensorShape("bfloat16", (32768,), 2), TensorShape("float32", (0,), 4),
        TensorShape("float32", (128, 127), 4), TensorShape("float32", None, 4), None,
    ],
    ids=str,
)  # fmt: skip
def test_a_tensor_that_fills_its_storage_is_not_a_view(
    found: Found, watched: Watched, shape: TensorShape | None
) -> None:
    (finding,) = found(watched(shape=shape, storage_bytes=64 * KIB), RULE)
    assert "is a view" not in finding.message


def test_a_number_in_a_rounded_block_is_not_a_view(found: Found, watched: Watched) -> None:
    b = watched(shape=TensorShape("float32", (), 4), bytes=200 * 512, per_step_bytes=4096)
    assert "is a view" not in found(b, RULE)[0].message


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("queue", "or give it a `maxsize`"),
        ("executor", "Wait for earlier results before more is submitted"),
        ("thread", "Delete `kept` after use"),
        ("generator", "`close()` them"),
        ("context", "ctx.save_for_backward"),
        ("optimizer", "once before the loop"),
        ("instance", "Clear `kept`"),
        ("closure", "Clear `kept`"),
    ],
)
def test_the_fix_depends_on_the_holder(
    found: Found, watched: Watched, kind: str, words: str
) -> None:
    held = (Chain(kind, ("__main__.kept", "[3]"), "list", 200, "kept"),)  # type: ignore[arg-type]
    (finding,) = found(watched(chains=held), RULE)
    assert words in finding.fix


@pytest.mark.parametrize("container", ["dict", "collections.OrderedDict", "mine.Dict"])
def test_a_dict_can_drop_its_oldest_entry(found: Found, watched: Watched, container: str) -> None:
    held = (
        Chain("module-global", ("__main__", "._MASKS", "[(70, 79)]"), container, 200, "_MASKS"),
    )
    (finding,) = found(watched(chains=held), RULE)
    assert finding.fix == (
        "Clear `_MASKS` after its tensors are used, or remove the oldest entry for each new one."
    )


@pytest.mark.parametrize("kind", ["module-global", "cache"])
def test_a_holder_with_a_limit_is_reported_with_what_it_takes_at_most(
    found: Found, watched: Watched, kind: str
) -> None:
    held = Chain(
        kind,  # type: ignore[arg-type]
        ("__main__.memory", "[3]"),
        "collections.deque",
        200,
        "memory",
        container_limit=1_000_000,
    )
    (finding,) = found(watched(chains=(held,), limit_bytes=1_000_000 * 65536), RULE)
    assert finding.message.endswith(
        "Once `memory` is full (1,000,000 entries), it takes at least 61.0 GiB."
    )
    assert finding.fix == "Lower the limit of `memory`, or store less in each entry."


def test_a_cycle_over_a_loader_is_not_a_container_to_be_cleared(
    found: Found, watched: Watched
) -> None:
    parts = ("batches", " → the items that itertools.cycle saves", "[5]", "[0]", " in main at a:9")
    held = Chain("frame", parts, "list", 200, name="batches", scope=" in main at a:9")
    (finding,) = found(watched(chains=(held,)), RULE)
    assert finding.fix.startswith("Iterate over the source of `batches` anew in each epoch")


def test_an_item_of_tee_waits_for_the_iterator_that_is_behind(
    found: Found, watched: Watched
) -> None:
    chains = tuple(
        Chain(
            "module-global",
            ("__main__", f".{name}", " → its _tee_dataobject", " → its Tensor"),
            name=name,
        )
        for name in ("train", "preview")
    )
    (finding,) = found(watched(chains=chains), RULE)
    assert finding.fix.startswith(
        "Advance all iterators of `itertools.tee` (`preview` and `train`) equally"
    )


def test_a_variable_of_many_threads_is_not_a_container(found: Found, watched: Watched) -> None:
    variable = Chain("frame", ("batch", " in upload at a.py:5"), name="batch", scope=" in upload")
    thread = Chain("thread", ("threading._active[140]", "._args", "[0]"), name="threading._active")
    (finding,) = found(watched(chains=(variable, thread)), RULE)
    assert finding.fix.startswith("Let the threads end whose calls have the variable `batch`")


def test_an_outdated_number_of_entries_is_not_reported(found: Found, watched: Watched) -> None:
    held = (Chain("module-global", ("__main__", ".kept", "[5]"), "list", 6, "kept"),)
    (finding,) = found(watched(chains=held), RULE)
    assert finding.message.endswith("retained by `kept` (list).")


def test_a_small_growth_is_a_note_and_a_tiny_one_nothing(found: Found, watched: Watched) -> None:
    assert found(watched(per_step_bytes=4096), RULE)[0].severity == "note"
    assert found(watched(per_step_bytes=3600, bytes=200 * 3600), RULE) == ()


def test_rare_growth_counts_by_what_it_has_reached(found: Found, watched: Watched) -> None:
    (finding,) = found(watched(per_step_bytes=700, bytes=14_000_000, last_step=20_001), RULE)
    assert finding.severity == "note"
    assert "200 tensors, about one every 100 steps, allocated at" in finding.message


def test_a_tensor_that_becomes_larger_is_not_told_to_be_a_deque(
    found: Found, watched: Watched
) -> None:
    chain = Chain("module-global", ("__main__", ".cache.keys"), name="cache.keys")
    shape = TensorShape("float32", (8, 8), 4)
    changes = {"n": 1, "chains": (chain,), "is_enlarged": True, "shape": shape}
    (finding,) = found(watched(**changes), RULE)
    assert ": 1 tensor of float32 that becomes larger, allocated at" in finding.message
    assert finding.fix.startswith("Keep only the last part of `cache.keys`")
    assert "deque" not in finding.fix


def test_a_holder_without_a_name_is_not_code_and_not_to_be_cleared(
    found: Found, watched: Watched
) -> None:
    nameless = "a list that no name leads to"
    chain = Chain("unknown", (nameless, "[3]"), "list", 4, nameless)
    (finding,) = found(watched(chains=(chain,)), RULE)
    assert finding.message.endswith("and retained by a list that no name leads to (list).")
    assert finding.fix.startswith("Clear the container after")


def test_a_library_s_holder_is_not_to_be_changed(found: Found, watched: Watched) -> None:
    chain = Chain(
        "module-global", ("lib", ".all", "[3]"), "list", 4, name="lib.all", is_library=True
    )
    (finding,) = found(watched(chains=(chain,)), RULE)
    assert finding.fix.startswith(
        "Find the call that adds to `lib.all`, which belongs to a library"
    )


@pytest.mark.parametrize(
    ("container", "name", "fix"),
    [
        ("list", "opt.state[<Parameter>]['old_dirs']", "Lower the optimizer's `history_size`"),
        ("collections.defaultdict", "opt.state", "Create the optimizer and its groups once"),
    ],
)
def test_an_optimizer_s_history_is_not_a_new_optimizer(
    found: Found, watched: Watched, container: str, name: str, fix: str
) -> None:
    parts = ("__main__", ".opt", ".state", "[<Parameter>]", "['old_dirs']", "[3]")
    chain = Chain("optimizer", parts, container, 40, name=name)
    (finding,) = found(watched(chains=(chain,)), RULE)
    assert finding.fix.startswith(fix)


def test_a_graph_that_explains_the_growth_is_reported_by_another_rule(
    found: Found, watched: Watched
) -> None:
    assert found(watched(graph=Graph(1400, 12_000 * KIB, "MeanBackward0")), RULE) == ()


def test_an_unknown_holder_is_not_named(found: Found, watched: Watched) -> None:
    (finding,) = found(watched(chains=()), RULE)
    assert finding.message.endswith("200 tensors, allocated at train.py:31.")
    assert finding.fix.startswith("Clear the container")
    assert finding.holders == ()


def test_after_too_few_steps_it_is_skipped(analyzed: Analyzed) -> None:
    (unchecked,) = analyzed(LiveBuilder(n_evaluated_steps=0), RULE).unchecked
    assert unchecked.rule == "MEM004"
    assert unchecked.remedy == "Let the program run for more steps."


def test_of_small_tensors_the_objects_count_too(found: Found, watched: Watched) -> None:
    b = watched(n=200 * 400, per_step_bytes=400 * 64, bytes=200 * 400 * 64)
    (finding,) = found(b, RULE)
    assert finding.message.startswith("Host memory grows by about 206 KiB per step")
    assert finding.cost.basis == "estimate"


def test_the_attributes_of_one_object_are_one_finding_with_each_share(
    found: Found, watched: Watched
) -> None:
    preds = Chain("instance", ("metric", ".preds", "[9]"), "list", 200, name="metric.preds")
    target = replace(preds, parts=("metric", ".target", "[9]"), name="metric.target")
    b = watched(chains=(preds,), per_step_bytes=40 * KIB)
    b.add(replace(b.build().leaks[0], chains=(target,), per_step_bytes=32 * KIB))
    (finding,) = found(b, RULE)
    assert finding.message.endswith(
        "This is the sum of `metric.preds` (40.0 KiB) and `metric.target` (32.0 KiB)."
    )
    assert finding.fix.endswith("Do the same for `metric.target`.")
    assert (finding.severity, finding.cost.per_step_bytes) == ("warning", 72 * KIB)


def test_the_globals_of_a_module_are_findings_of_their_own(found: Found, watched: Watched) -> None:
    first = Chain("module-global", ("utils.SEEN", "[9]"), "list", 200, name="utils.SEEN")
    second = replace(first, parts=("utils.KEPT", "[9]"), name="utils.KEPT")
    b = watched(chains=(first,))
    b.add(replace(b.build().leaks[0], chains=(second,)))
    assert len(found(b, RULE)) == 2


def test_the_lists_of_a_dict_are_one_holder(found: Found, watched: Watched) -> None:
    first = Chain("module-global", ("m", ".bank", "[3]", "[9]"), "list", 200, name="bank[3]")
    second = replace(first, parts=("m", ".bank", "[5]", "[2]"), name="bank[5]")
    b = watched(chains=(first,), per_step_bytes=40 * KIB)
    b.add(replace(b.build().leaks[0], chains=(second,), per_step_bytes=32 * KIB))
    (finding,) = found(b, RULE)
    assert finding.cost.per_step_bytes == 72 * KIB


def test_objects_in_a_container_of_tensors_are_in_the_same_finding(
    found: Found, watched: Watched
) -> None:
    records = Chain("module-global", ("m", ".records", "[9]"), "list", 200, name="records")
    b = watched(chains=(records,), per_step_bytes=40 * KIB)
    b.add(Leak("host", "host", 30 * KIB, 6000 * KIB, 9, 1, 200, type="dict", chains=(records,)))
    (finding,) = found(b, RULE)
    assert (finding.cost.per_step_bytes, finding.severity) == (70 * KIB, "warning")
    assert found(b, "host-growth") == ()


def test_objects_without_holder_are_of_the_line_that_makes_the_tensors(
    found: Found, watched: Watched
) -> None:
    b = watched(chains=(), per_step_bytes=70 * KIB)
    stack = (replace(b.build().leaks[0].stack[0], function=""),)
    b.add(Leak("host", "host", 60 * KIB, 6000 * KIB, 9, 1, 200, type="bytes", stack=stack))
    (finding,) = found(b, RULE)
    assert finding.cost.per_step_bytes == 130 * KIB
    assert found(b, "host-growth") == ()


@pytest.mark.parametrize(
    ("changes", "chain", "fix"),
    [
        (
            {},
            Chain("instance", ("m", ".preds", "[9]"), "list", 9, "m.preds", emptied_by="reset"),
            "Call `m.reset()` once the values of `preds` are used: it empties them.",
        ),
        (
            {},
            Chain("instance", ("net", ".out_9"), name="net.out_*"),
            (
                "Store the latest value under one name, or the last ones in a "
                "`collections.deque(maxlen=100)`: each step adds an attribute `net.out_*`."
            ),
        ),
        (
            {},
            Chain("frame", ("rows", "[9]", "._base", " in f at a.py:9"), "list", 9, "rows"),
            (
                "Store a `.detach().clone()` of each view in `rows` that is smaller than its "
                "tensor, so that the rest is freed; or keep only the last ones "
                "(`collections.deque(maxlen=100)`)."
            ),
        ),
        (
            {"type": "torch.nn.parameter.Parameter"},
            Chain("instance", ("net", ".heads", "[9]", ".weight"), name="net.heads", is_entry=True),
            (
                "Create the modules once before the loop, or drop those that are no longer used: "
                "`net.heads` keeps each with its gradients."
            ),
        ),
        (
            {},
            Chain("frame", ("stack", "._exit_callbacks", "[9]"), "deque", 9, "s._exit_callbacks"),
            "Open `s` within the loop: it keeps its callbacks until it is closed.",
        ),
        (
            {},
            Chain(
                "closure",
                ("__main__", ".says", "[9]", " → out", " in the closure of <lambda> at a.py:9"),
                "list",
                9,
                name="says",
            ),
            (
                "Let the functions in `says` close over what they need of `out` (a number, a "
                "text), or call and drop each in its own step: a closure keeps the tensor."
            ),
        ),
        (
            {},
            Chain(
                "closure",
                ("m", ".hooks", "[9]", " → seen", "[7]", " in the closure of hook at a.py:9"),
                "list",
                9,
                name="seen",
            ),
            (
                "Clear `seen` after its tensors are used, or keep only the last ones "
                "(`collections.deque(maxlen=100)`)."
            ),
        ),
        (
            {},
            Chain("class", ("weakref.finalize(<Trainer>, give_back)", "[0]"), is_library=True),
            (
                "Let `weakref.finalize(<Trainer>, give_back)` watch the object that its arguments "
                "belong to, not one that outlives them, or pass it no tensor. A finalizer keeps "
                "its arguments until the object that it watches is freed, or until its `detach()`."
            ),
        ),
        (
            {},
            Chain("optimizer", ("opt", ".param_groups", "[9]"), "list", 9, "opt.param_groups"),
            (
                "Add the groups to `opt.param_groups` once before the loop, or remove those that "
                "are no longer trained: it keeps each parameter that was ever added, with its "
                "gradient."
            ),
        ),
        (
            {},
            Chain("unknown", ("the arguments of a callback in C, such as that of `atexit`",)),
            (
                "Register the callback once, before the loop: its arguments are kept until the "
                "program ends, or until it is unregistered."
            ),
        ),
        (
            {},
            Chain("module-global", ("m", ".pickler"), name="pickler"),
            "Create what `pickler` is anew, or release what it refers to after use.",
        ),
        (
            {},
            Chain(
                "optimizer",
                ("Trial", ".registry", "[9]", ".opt", ".state", "[<Parameter>]", "['step']"),
                "list",
                9,
                name="Trial.registry",
            ),
            (
                "Clear `Trial.registry` after its tensors are used, or keep only the last ones "
                "(`collections.deque(maxlen=100)`)."
            ),
        ),
    ],
)
def test_the_fix_fits_what_holds_the_tensors(
    found: Found, watched: Watched, changes: dict[str, Any], chain: Chain, fix: str
) -> None:
    (finding,) = found(watched(chains=(chain,), **changes), RULE)
    assert finding.fix == fix


def test_several_lists_of_a_dict_are_named_as_one(found: Found, watched: Watched) -> None:
    first, second = (
        Chain("instance", ("log", f"['{key}']", "[9]"), "list", 9, name=f"log['{key}']")
        for key in ("loss", "norm")
    )
    (finding,) = found(watched(chains=(first, second)), RULE)
    assert "retained by `log`." in finding.message
    assert finding.fix.startswith("Clear `log` after its tensors are used")
    (finding,) = found(watched(chains=(first,)), RULE)
    assert "retained by `log['loss']` (list)." in finding.message


def test_a_cache_of_samples_is_full_after_an_epoch(found: Found, watched: Watched) -> None:
    cache = Chain(
        "instance", ("data", ".seen", "[9]"), "dict", 200, name="data.seen", is_by_sample=True
    )
    (finding,) = found(watched(chains=(cache,), per_step_bytes=1 << 20), RULE)
    assert finding.severity == "note"
    assert finding.message.endswith(
        "`data.seen` is full once each sample of the data set was read."
    )
    assert finding.fix.startswith("Leave `data.seen` if all samples fit in memory")
