"""starved-by-loader names the function in which a loader spends its time, from sampled stacks."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from profkit import analyze
from profkit.model.capture_info import CaptureInfo, HostThreads, LoaderWorkers, SampledFunction
from profkit.model.finding import Finding
from profkit.present.diagnosis import headline
from profkit.testing import TraceBuilder
from tests.sampled_steps import FILE, MS, function, recording, sampled

RULE = "starved-by-loader"
Found = Callable[..., tuple[Finding, ...]]


def step(*, workers: bool) -> Callable[[TraceBuilder], None]:
    """Return a step that waits 8 of its 10 ms for a batch."""

    def of_builder(b: TraceBuilder) -> None:
        b.load(8 * MS, workers=workers)
        b.compute("aten::mm", 2 * MS)

    return of_builder


def with_workers(*functions: SampledFunction, busy_share: float = 0.9) -> TraceBuilder:
    """Three such steps, whose loader's workers were sampled."""
    fetching_ns = sum(function.ns for function in functions)
    n = sum(function.n for function in functions)
    workers = LoaderWorkers(2, n, round(fetching_ns / busy_share), fetching_ns, list(functions))
    info = CaptureInfo(version="1", name="train", steps="optimizer", loader_workers=workers)
    b = TraceBuilder(capture=info)
    for _ in range(3):
        with b.step():
            step(workers=True)(b)
    return b


def test_a_loader_without_workers_is_told_by_its_function_and_line(found: Found) -> None:
    functions = [
        function("augment", 6, 50, part="data"),
        function("augment", 7, 10, part="data"),
        function("__getitem__", 12, 10, part="data"),
        function("main", 22, 20, library="torch", callee="net"),
    ]
    (finding,) = found(recording(functions, step(workers=False)), RULE)
    assert finding.message.endswith(
        "86% of the time in the loader is spent in `augment` (train.py:6)."
    )
    assert finding.fix.endswith("or do less in `augment`.")
    assert finding.locations[-1].place == "train.py:6"
    assert finding.evidence["function_share"] == pytest.approx(60 / 70)
    assert finding.evidence["workers_busy_share"] is None


def test_a_call_that_takes_most_of_a_function_is_named_with_its_line(found: Found) -> None:
    functions = [
        function("__getitem__", 12, 60, part="data", callee="Image.open", library="PIL"),
        function("__getitem__", 13, 5, part="data"),
    ]
    (finding,) = found(recording(functions, step(workers=False)), RULE)
    assert "in `Image.open()`, called at train.py:12 in __getitem__." in finding.message
    assert finding.fix.endswith("or call `Image.open` less often in `__getitem__`.")


def test_a_search_in_a_list_has_a_dict_as_its_fix(found: Found) -> None:
    functions = [function("tokenize", 12, 60, part="data", callee="VOCAB.index")]
    (finding,) = found(recording(functions, step(workers=False)), RULE)
    assert finding.fix.startswith(
        "Make a `dict` of the places once, instead of a search by `VOCAB.index` each time. Or use "
        "`DataLoader(..., num_workers=2"
    )


@pytest.mark.parametrize(
    ("dims", "computes", "is_loop"),
    [([200], True, True), ([16, 200], True, False), ([200], False, False)],
)
def test_a_loop_over_the_elements_of_a_batch_is_named(
    found: Found,
    dims: list[int],
    computes: bool,  # noqa: FBT001
    is_loop: bool,  # noqa: FBT001
) -> None:
    def wait_and_compute(b: TraceBuilder) -> None:
        with b.annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"):
            for _ in range(300):
                b.compute("aten::select", 1_000, dims=[dims, [], []])
                b.compute("aten::copy_" if computes else "aten::stack", 1_000, dims=[[], [], []])
        b.compute("aten::mm", 100_000, dims=[[8, 8], [8, 8]])

    functions = [function("stack_rows", 12, 60, part="data")]
    (finding,) = found(recording(functions, wait_and_compute), RULE)
    advice = "Compute with whole tensors in `stack_rows`, which runs 600 operators per batch"
    assert finding.fix.startswith(advice) == is_loop


def test_workers_are_told_by_their_function_and_how_busy_they_are(found: Found) -> None:
    b = with_workers(function("augment", 6, 60), function("__getitem__", 12, 20))
    (finding,) = found(b, RULE)
    assert finding.message.endswith(
        "Its workers are busy 90% of the time, 75% of it in `augment` (train.py:6)."
    )
    assert "Raise `num_workers` or `prefetch_factor`, or do less in `augment`" in finding.fix
    assert finding.evidence["workers_busy_share"] == pytest.approx(0.9, abs=0.001)


def test_more_workers_are_not_a_cure_where_they_wait(found: Found) -> None:
    (finding,) = found(with_workers(function("augment", 6, 60), busy_share=0.2), RULE)
    assert "busy 20% of the time" in finding.message
    assert "num_workers" not in finding.fix
    assert "prefetch_factor" in finding.fix


@pytest.mark.parametrize(
    "functions",
    [
        [function("augment", 6, 2, part="data"), function("crop", 9, 2, part="data")],
        [function(name, 6, 10, part="data") for name in "abcdefghi"],
        [function("augment", 6, 60)],
        [],
    ],
    ids=["few samples", "none stands out", "outside of the loader", "no samples"],
)
def test_without_a_function_that_stands_out_none_is_named(
    found: Found, functions: list[SampledFunction]
) -> None:
    other_functions = [function("main", 22, 20, library="torch", callee="net")]
    (finding,) = found(recording([*functions, *other_functions], step(workers=False)), RULE)
    assert "spent in" not in finding.message
    assert "the dataset's `__getitem__`" in finding.fix


def test_a_loop_of_which_a_library_makes_the_batches_is_not_named_as_its_function(
    found: Found,
) -> None:
    info = CaptureInfo(
        version="1",
        name="train",
        steps="optimizer",
        sampled=sampled(
            function("main", 20, 60, part="data", library="torch"),
            function("main", 22, 20, library="torch", callee="net"),
        ),
    )
    b = TraceBuilder(stacks=True, capture=info)
    for _ in range(3):
        with b.step(), b.frame(FILE, 20, "main"):
            step(workers=False)(b)

    (finding,) = found(b, RULE)
    assert "spent in" not in finding.message


def test_the_headline_has_the_function(tmp_path: Path) -> None:
    b = with_workers(function("augment", 6, 60), function("__getitem__", 12, 20))
    report = analyze(b.write(tmp_path / "t.json"))
    assert "waits for data for 80%" in headline(report)
    assert "mostly in augment at train.py:6." in headline(report)


def with_full_queue(
    n_waiting: int, *, busy_share: float = 0.9, n_workers: int = 2, wait_ms: float = 0.1
) -> TraceBuilder:
    """Three steps of 2 ms that find their batches ready, and 20 sampled ones of 100 ms."""
    functions = [
        function("main", 20, n_waiting, part="data", library="torch"),
        function("main", 22, 100 - n_waiting, library="torch", callee="net"),
    ]
    b = recording(functions, lambda _: None)
    assert b.capture is not None
    augment = [function("augment", 6, 100)]
    workers = LoaderWorkers(n_workers, 100, round(2_000 * MS / busy_share), 2_000 * MS, augment)
    b = TraceBuilder(device_names=(), capture=replace(b.capture, loader_workers=workers))
    for _ in range(3):
        with b.step():
            b.load(round(wait_ms * MS), workers=n_workers > 0)
            b.compute("aten::mm", 2 * MS)
    return b


def test_recorded_steps_that_find_a_full_queue_hide_no_waits(found: Found, tmp_path: Path) -> None:
    b = with_full_queue(60)
    (finding,) = found(b, RULE)
    assert finding.message.startswith(
        "The loop waits for its next batch for 60% of each 100 ms step, by 100 samples over 20 "
        "steps. The recorded ones found theirs ready"
    )
    assert "Its workers are busy 90% of the time, 100% of it in `augment`" in finding.message
    assert "Raise `num_workers`" in finding.fix
    # 60 of 100 ms, of which the recorded steps show 0.1.
    assert (finding.cost.ns, finding.cost.per_step_ns) == (None, 59_900_000)
    assert finding.cost.basis == "estimate"

    report = analyze(b.write(tmp_path / "t.json"))
    assert headline(report) == (
        "The program waits for data for 60% of each 100 ms step, mostly in augment at train.py:6; "
        "the recorded steps found theirs ready. Highest cost: loop waits for the data loader at "
        "train.py:6, about 59.9 ms per step."
    )


@pytest.mark.parametrize(
    "b",
    [
        with_full_queue(10),
        with_full_queue(60, busy_share=0.3),
        with_full_queue(60, n_workers=0),
        with_full_queue(0),
    ],
    ids=["few samples", "idle workers", "no workers", "no waits"],
)
def test_waits_that_are_not_known_to_be_for_busy_workers_are_not_hidden(
    found: Found, b: TraceBuilder
) -> None:
    assert found(b, RULE) == ()


def test_waits_that_the_recorded_steps_show_are_reported_once(found: Found) -> None:
    (finding,) = found(with_full_queue(60, wait_ms=35), RULE)
    assert finding.cost.ns is not None


def test_recorded_steps_that_wait_for_less_than_half_are_not_what_counts(
    found: Found, tmp_path: Path
) -> None:
    b = with_full_queue(60, wait_ms=1)
    (finding,) = found(b, RULE)
    assert "The recorded ones waited for less." in finding.message
    assert (finding.cost.ns, finding.cost.per_step_ns) == (None, 59_000_000)
    assert "; the recorded steps waited less." in headline(analyze(b.write(tmp_path / "t.json")))


@pytest.mark.parametrize(
    ("threads", "fix"),
    [
        (HostThreads(2, 1, n_workers=2), "Do less in `augment`: the loader's workers are too slow"),
        (HostThreads(8, 1, n_ranks=4, n_workers=2), "and there are no cores for more of them."),
        (HostThreads(8, 1, n_workers=2), "Raise `num_workers` or `prefetch_factor`"),
    ],
)
def test_more_workers_are_advised_where_they_have_cores(
    found: Found, threads: HostThreads, fix: str
) -> None:
    b = with_workers(function("augment", 6, 60))
    assert b.capture is not None
    b.capture = replace(b.capture, threads=threads)
    (finding,) = found(b, RULE)
    assert fix in finding.fix


def test_workers_that_the_loop_waits_for_are_not_called_idle(found: Found) -> None:
    (finding,) = found(with_full_queue(60, busy_share=0.1, wait_ms=35), RULE)
    assert "busy" not in finding.message
    assert finding.evidence["workers_busy_share"] is None
    assert not finding.fix.startswith("Raise `prefetch_factor`")


def without_workers(n_cores: int, *functions: SampledFunction) -> TraceBuilder:
    """Return steps that wait 8 of 10 ms for a loader without workers."""
    b = recording(functions, step(workers=False))
    assert b.capture is not None
    b.capture = replace(b.capture, threads=HostThreads(n_cores, 1))
    return b


AUGMENT = function("augment", 6, 60, part="data")
DOWNLOAD = function("download", 6, 60, part="data", callee="requests.get", waits=True)


@pytest.mark.parametrize(
    ("n_cores", "basis", "fix"),
    [
        (1, "upper-bound", "Do less in `augment`: the program has one core, which workers would"),
        # 10 ms of work take two cores 5 ms, and the loader 8 of them now.
        (
            2,
            "upper-bound",
            "with the model (which saves up to 5.00 ms of it on 2 cores), or do less",
        ),
        (8, "replay", "in parallel with the model, or do less in `augment`."),
    ],
)
def test_workers_save_no_more_than_the_cores_allow(
    found: Found, n_cores: int, basis: str, fix: str
) -> None:
    (finding,) = found(without_workers(n_cores, AUGMENT), RULE)
    assert fix in finding.fix
    assert finding.cost.basis == basis


def test_workers_that_wait_are_more_than_cores(found: Found) -> None:
    (finding,) = found(without_workers(1, DOWNLOAD), RULE)
    assert "num_workers=4" in finding.fix
    assert "do the waits of a batch at once" in finding.fix
    assert finding.cost.basis == "replay"


def test_a_stream_is_divided_between_workers(found: Found) -> None:
    (finding,) = found(without_workers(8, function("__iter__", 6, 60, part="stream")), RULE)
    assert "by `get_worker_info()` in the dataset's `__iter__`" in finding.fix


def test_a_file_that_is_opened_for_each_sample_may_be_opened_once(found: Found) -> None:
    opens = function("__getitem__", 6, 60, part="data", callee="h5py.File", library="h5py")
    (finding,) = found(without_workers(8, opens), RULE)
    assert "do `h5py.File` once per worker, if each sample reads the same file" in finding.fix


def test_rows_of_a_table_are_converted_once(found: Found) -> None:
    row = function("__getitem__", 25, 60, part="data", library="pandas")
    (finding,) = found(without_workers(8, row), RULE)
    assert "do the conversion of the table's columns to tensors once" in finding.fix


@pytest.mark.parametrize("workers", [False, True])
def test_a_slow_sampler_needs_no_workers(found: Found, *, workers: bool) -> None:
    draws = function("__iter__", 6, 60, part="sampler", callee="random.shuffle")
    b = recording([draws], step(workers=workers))
    (finding,) = found(b, RULE)
    assert "100% of it is spent on the indices of the batch, in `random.shuffle()`" in (
        finding.message
    )
    assert finding.fix.startswith("Call `random.shuffle` once per epoch and not for each batch")
    assert "num_workers" not in finding.fix


@pytest.mark.parametrize(
    ("slow", "fix"),
    [
        (function("download", 6, 60, callee="time.sleep"), "Raise `num_workers`, also beyond the"),
        (
            function("read", 6, 60, library="multiprocessing", waits=True),
            "Do less while `read` holds its lock: workers wait for each other there",
        ),
    ],
)
def test_workers_that_wait_have_another_cure(found: Found, slow: SampledFunction, fix: str) -> None:
    b = with_workers(slow)
    assert b.capture is not None
    b.capture = replace(b.capture, threads=HostThreads(2, 1, n_workers=2))
    (finding,) = found(b, RULE)
    assert finding.fix.startswith(fix)
