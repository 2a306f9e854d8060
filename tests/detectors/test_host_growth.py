"""host-growth reports host memory outside tensors that grows."""

from collections.abc import Callable
from typing import Any

import pytest

from profkit.model.finding import Finding
from profkit.model.live_memory import Chain, TensorShape
from profkit.model.location import Frame
from profkit.model.report import Report
from profkit.testing import LiveBuilder

RULE = "host-growth"
Analyzed = Callable[..., Report]
Found = Callable[..., tuple[Finding, ...]]
Watched = Callable[..., LiveBuilder]
KIB = 1024

ARRAYS = Chain(
    "frame", ("predictions", "[199]", " in main at train.py:12"), "list", 200,
    name="predictions", scope=" in main at train.py:12", is_entry=True,
)  # fmt: skip
WORKERS: dict[str, object] = {
    "kind": "workers",
    "device": "workers",
    "type": "",
    "chains": (),
    "stack": (),
    "stack_basis": "unknown",
}
"""Growth in the workers of a loader, in which no holder is searched."""
LINE = (Frame("/home/me/train.py", 31, "__getitem__"),)


def test_arrays_that_accumulate_are_reported_by_type_and_holder(
    found: Found, watched: Watched
) -> None:
    b = watched(kind="host", device="host", type="numpy.ndarray", chains=(ARRAYS,))
    (finding,) = found(b, RULE)
    assert finding.message == (
        "Host memory grows by 64.0 KiB per step (steps 1 to 200): 200 objects of type "
        "`numpy.ndarray`, allocated at train.py:31 and retained by `predictions` in main at "
        "train.py:12 (list, 200 entries)."
    )
    assert finding.fix.startswith("Clear `predictions` after its values")
    assert finding.evidence["type"] == "numpy.ndarray"


def test_figures_that_pyplot_keeps_are_to_be_closed(found: Found, watched: Watched) -> None:
    figures = Chain(
        "instance", ("matplotlib._pylab_helpers", ".Gcf.figs"), name="Gcf.figs", is_library=True
    )
    b = watched(kind="host", device="host", type="dict", chains=(figures,))
    (finding,) = found(b, RULE)
    assert "retained by `Gcf.figs`" in finding.message
    assert finding.fix.startswith("Close each figure after use, by `plt.close(fig)`")


def test_views_of_arrays_are_to_be_copied(found: Found, watched: Watched) -> None:
    shape = TensorShape("uint8", (64, 64, 3), 1)
    b: dict[str, object] = {
        "kind": "host",
        "device": "host",
        "type": "numpy.ndarray",
        "chains": (ARRAYS,),
        "shape": shape,
        "storage_bytes": 16 * 64 * 64 * 3,
    }

    for n in (200, 0):
        (finding,) = found(watched(**b, n=n), RULE)
        assert finding.message.endswith(
            "Each entry is a view that retains an array 16 times as large."
        )
        assert finding.fix.startswith("Store a `.copy()` of the view, so that the rest of")


def test_arrays_in_a_holder_with_a_limit_are_reported_with_what_it_takes(
    found: Found, watched: Watched
) -> None:
    b = watched(
        kind="host", device="host", type="numpy.ndarray", chains=(ARRAYS,), limit_bytes=8 << 30
    )
    (finding,) = found(b, RULE)
    assert finding.message.endswith("Once `predictions` is full, it takes at least 8.00 GiB.")
    assert finding.fix == "Lower the limit of `predictions`, or store less in each entry."


def test_a_leak_without_a_holder_is_reported_with_less_confidence(
    found: Found, watched: Watched
) -> None:
    b = watched(kind="host", device="host", n=0, chains=(), stack=(), stack_basis="unknown")
    (finding,) = found(b, RULE)
    assert finding.message == (
        "Host memory grows by 64.0 KiB per step (steps 1 to 200), and no Python object that holds "
        "it was found."
    )
    assert finding.confidence == "low"
    assert finding.fix.startswith("Release what each step adds")


def test_objects_of_unknown_type_are_reported_with_their_line(
    found: Found, watched: Watched
) -> None:
    (finding,) = found(watched(kind="host", device="host", n=0, type="", chains=()), RULE)
    assert "per step (steps 1 to 200): Python objects, allocated at " in finding.message
    assert finding.fix.startswith("Release what is allocated at ")


def test_native_growth_is_reported_with_low_confidence(found: Found, watched: Watched) -> None:
    b = watched(
        kind="native", device="host", n=0, type="", chains=(), stack=(), stack_basis="unknown"
    )
    (finding,) = found(b, RULE)
    assert finding.message == (
        "Host memory grows by 64.0 KiB per step (steps 1 to 200). No tensor and no Python object "
        "owns it: a library allocates it and does not free it."
    )
    assert (finding.confidence, finding.cost.per_step_bytes) == ("low", 64 * KIB)
    assert finding.fix.startswith("Free what the library allocates")


def test_native_growth_of_objects_in_a_container_is_not_the_library_s_fault(
    found: Found, watched: Watched
) -> None:
    held = Chain("instance", ("__main__.run", ".history"), name="run.history")
    b = watched(kind="native", device="host", n=0, type="PIL.Image.Image", chains=(held,))
    (finding,) = found(b, RULE)
    assert finding.message == (
        "Host memory grows by 64.0 KiB per step (steps 1 to 200). No tensor and no object that can "
        "be measured owns it: most likely objects of type `PIL.Image.Image` do, allocated at "
        "train.py:31 and retained by `run.history`."
    )
    assert finding.confidence == "medium"
    assert finding.fix.startswith("Clear `run.history` after its values")


def test_tensors_are_reported_by_another_rule(found: Found, watched: Watched) -> None:
    assert found(watched(), RULE) == ()


def test_after_too_few_steps_it_is_skipped(analyzed: Analyzed) -> None:
    (unchecked,) = analyzed(LiveBuilder(n_evaluated_steps=0), RULE).unchecked
    assert unchecked.rule == "MEM009"
    assert unchecked.remedy == "Let the program run for more steps."


def test_workers_that_copy_are_reported_with_what_to_store_instead(
    found: Found, watched: Watched
) -> None:
    (finding,) = found(watched(**WORKERS, n=4, copied_share=0.97), RULE)
    assert finding.message == (
        "The memory of 4 loader workers (one was sampled) grows by about 64.0 KiB per step (steps "
        "1 to 200). At least 97% of it is copies of objects of the main process."
    )
    assert "NumPy arrays or tensors" in finding.fix
    assert (finding.confidence, finding.severity) == ("medium", "warning")
    assert (finding.cost.per_step_bytes, finding.cost.basis) == (64 * KIB, "estimate")


def test_a_worker_that_retains_its_own_objects_is_reported(found: Found, watched: Watched) -> None:
    (finding,) = found(watched(**WORKERS, n=1, made_share=0.9), RULE)
    assert finding.message == (
        "The memory of 1 loader worker grows by 64.0 KiB per step (steps 1 to 200). The workers "
        "retain objects that they create."
    )
    assert finding.fix.startswith("Limit what the dataset stores in `__getitem__`")
    assert finding.cost.basis == "measured"


def test_workers_that_may_copy_or_create_objects_have_both_fixes(
    found: Found, watched: Watched
) -> None:
    (finding,) = found(watched(**WORKERS, n=1, copied_share=0.3, made_share=0.3), RULE)
    assert "It may be copies of objects of the main process, or" in finding.message
    assert finding.fix.startswith("Limit what the dataset stores in `__getitem__`")
    assert "If it stores nothing there: store the dataset's samples in NumPy" in finding.fix


def test_copies_alone_are_reported_as_all_of_it(found: Found, watched: Watched) -> None:
    (finding,) = found(watched(**WORKERS, n=2, copied_share=1.0), RULE)
    assert finding.message.endswith(" All of it is copies of objects of the main process.")


def test_plans_for_new_shapes_are_a_note_with_the_setting_that_bounds_them(
    found: Found, watched: Watched
) -> None:
    b = watched(
        kind="native",
        device="host",
        type="",
        n=0,
        chains=(),
        operators=("aten::convolution",),
        is_for_new_shapes=True,
    )

    (finding,) = found(b, RULE)
    assert finding.message == (
        "Host memory grows by 64.0 KiB per step (steps 1 to 200): a library caches a plan for each "
        "new shape of a tensor in `aten::convolution` at train.py:31."
    )
    assert "`ONEDNN_PRIMITIVE_CACHE_CAPACITY=64 LRU_CACHE_CAPACITY=64`" in finding.fix
    assert finding.severity == "note"


def test_growth_of_which_nothing_is_known_is_a_note(analyzed: Analyzed) -> None:
    (finding,) = analyzed(LiveBuilder(unexplained_per_step_bytes=200 * KIB), RULE).findings
    assert finding.message.startswith("Host memory grows by 200 KiB per step. The run was too ")
    assert (finding.severity, finding.confidence) == ("note", "low")

    small = LiveBuilder(unexplained_per_step_bytes=20 * KIB)
    assert analyzed(small, RULE).findings == ()


def test_code_that_is_compiled_in_every_step_is_to_be_compiled_once(
    found: Found, watched: Watched
) -> None:
    b = watched(
        kind="native",
        device="host",
        type="",
        n=0,
        chains=(),
        code="traced = torch.jit.trace(net, x)",
    )
    (finding,) = found(b, RULE)
    assert finding.fix.startswith("Compile once before the loop: each call at train.py:31")


def test_workers_are_reported_with_the_container_of_their_data_set(
    found: Found, watched: Watched
) -> None:
    chain = Chain("instance", ("Pictures", ".seen"), "list", name="Pictures.seen")
    (finding,) = found(
        watched(**WORKERS | {"chains": (chain,), "stack": LINE, "made_share": 1.0}), RULE
    )
    assert finding.message.endswith(
        "(steps 1 to 200): most likely `Pictures.seen`, to which train.py:31 adds in each worker."
    )
    assert finding.fix == (
        "Limit `Pictures.seen`, or store nothing in it: each worker has its own."
    )
    assert finding.severity == "warning"

    (uncertain,) = found(watched(**WORKERS | {"chains": (chain,), "stack": LINE}), RULE)
    assert "a part of it may be records of operators" in uncertain.message
    assert uncertain.severity == "note"


def test_a_cache_of_samples_in_workers_is_a_note(found: Found, watched: Watched) -> None:
    chain = Chain(
        "instance", ("Pictures", ".cache"), "dict", name="Pictures.cache", is_by_sample=True
    )
    (finding,) = found(
        watched(**WORKERS | {"chains": (chain,), "stack": LINE, "made_share": 1.0}), RULE
    )
    assert finding.severity == "note"
    assert finding.message.endswith("is full once each sample of the data set was read.")


def test_memory_that_was_mapped_beside_the_heap_is_a_librarys(
    found: Found, watched: Watched
) -> None:
    b = watched(kind="native", device="host", type="", n=0, chains=(), stack=(), is_mapped=True)
    (finding,) = found(b, RULE)
    assert finding.message == (
        "Host memory grows by 64.0 KiB per step (steps 1 to 200): it is mapped beside the heap, by "
        "a library or by `mmap`, and is not unmapped."
    )
    assert finding.confidence == "low"


@pytest.mark.parametrize(
    ("changes", "fix"),
    [
        ({"type": "_io.BytesIO", "n": 1}, "Empty `kept` once its contents are used, by `seek(0)`"),
        ({"type": "numpy.ndarray", "n": 1}, "Start `kept` anew after use, keep only its last part"),
        (
            {"type": "bytes"},
            "Clear `kept` after its values are used, write them to disk, or keep o",
        ),
        ({"type": "dict"}, "Clear `kept` after its values are used, write them to disk, or keep a"),
    ],
)
def test_the_fix_fits_the_type_of_what_is_kept(
    found: Found, watched: Watched, changes: dict[str, Any], fix: str
) -> None:
    kept = (Chain("module-global", ("__main__", ".kept"), name="kept"),)
    (finding,) = found(watched(kind="host", device="host", chains=kept, **changes), RULE)
    assert finding.fix.startswith(fix)
