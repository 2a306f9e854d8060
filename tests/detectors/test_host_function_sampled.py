"""host-function names functions that were sampled over the steps."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from profkit.model.capture_info import CpuTime, HostThreads, SampledFunction
from profkit.model.finding import Finding
from profkit.model.report import Report
from profkit.testing import TraceBuilder
from tests.sampled_steps import MS, busy_python, function, op_lines, recording

RULE = "host-function"
Found = Callable[..., tuple[Finding, ...]]
Analyzed = Callable[..., Report]

MAIN_OPS = op_lines(aten__mm=20)
MODEL = partial(function, "main", 20, library="torch", callee="net")


def test_a_collection_in_each_step_is_named_with_its_line_and_share(found: Found) -> None:
    functions = [function("main", 18, 90, callee="gc.collect"), MODEL(10)]
    (finding,) = found(recording(functions, busy_python(9, 1), MAIN_OPS), RULE)
    assert finding.message == (
        "The program spends 9.00 ms per step (90%) in `gc.collect()`, called at train.py:18 in "
        "main."
    )
    assert "gc.freeze()" in finding.fix
    assert (finding.cost.per_step_ns, finding.cost.basis) == (9 * MS, "estimate")
    assert (finding.locations[0].line, finding.severity) == (18, "warning")


def test_the_message_has_the_time_that_it_costs(found: Found) -> None:
    # Samples tell 8.6 ms per step of it, which is all but for their error.
    functions = [function("main", 18, 86, callee="gc.collect"), MODEL(14)]
    (finding,) = found(recording(functions, busy_python(9, 1), MAIN_OPS), RULE)
    assert "The program spends 9.00 ms per step (90%)" in finding.message
    assert finding.cost.ns == finding.evidence["python_ns"] == finding.n * 9 * MS


def test_one_core_has_no_room_for_workers(found: Found) -> None:
    b = recording([function("make_batch", 9, 90), MODEL(10)], busy_python(9, 1), MAIN_OPS)
    assert b.capture is not None
    b.capture = replace(b.capture, threads=HostThreads(n_cores=1, n_threads=1, n_ranks=1))
    (finding,) = found(b, RULE)
    assert finding.fix.startswith("Compute `make_batch` with whole arrays")
    assert "num_workers" not in finding.fix


def test_a_wait_for_a_backward_pass_in_another_thread_is_not_a_function(found: Found) -> None:
    def step(b: TraceBuilder) -> None:
        b.advance(9 * MS)
        with b.thread(3000):
            for _ in range(4):
                b.compute("autograd::engine::evaluate_function: MmBackward0", MS // 2)
                b.advance(2 * MS)
            b.compute("autograd::engine::evaluate_function: MmBackward0", MS // 2)
        b.compute("aten::mm", MS // 2)

    # Of each step of 20 ms, the steps' thread waits for 10.5.
    functions = [
        function("main", 18, 90, callee="gc.collect"),
        function("main", 20, 10, callee="loss.backward", part="backward"),
    ]
    (finding,) = found(recording(functions, step, MAIN_OPS), RULE)
    assert "9.00 ms per step (45%)" in finding.message


@pytest.mark.parametrize(
    ("sampled", "words"),
    [
        (function("main", 9, 90, callee="torch.tensor"), "`torch.from_numpy(np.stack(arrays))`"),
        (function("main", 9, 90, callee="th.as_tensor"), "`th.from_numpy(np.stack(arrays))`"),
        (function("poll", 9, 90, callee="time.sleep", waits=True), "Leave out the sleep"),
        (function("poll", 9, 90, callee="results.get", waits=True), "Make what `results.get` wa"),
        (function("poll", 9, 90, callee="job.result", waits=True), "Start `job.result` in a th"),
        (
            function("make_batch", 9, 90),
            "of `make_batch` in a data set, with `DataLoader(..., num_wor",
        ),
        (function("main", 9, 90, callee="tokenizer.encode", library="tok"), "num_workers=2"),
        (function("main", 9, 90, callee="torch.save", library="torch"), "async_save"),
        (
            function("main", 9, 90, callee="writer.add_histogram", library="torch"),
            "every 100 steps",
        ),
        (function("main", 9, 90, callee="torch.load", library="torch"), "Read the file once"),
        (function("main", 9, 90, callee="save_file", library="safetensors"), "async_save"),
        (function("main", 9, 90, callee="plt.savefig", library="matplotlib"), "every 100 steps"),
        (function("main", 9, 90, callee="print"), "every 100 steps"),
        (function("main", 9, 90, callee="model.save"), "Call `model.save` less often"),
        (function("simulate", 9, 90), "Call `simulate` less often"),
        (function("<module>", 9, 90), "Call this less often"),
        (function("main", 9, 90, callee="stats.collect", library="stats"), "Call `stats.collect`"),
    ],
)
def test_the_fix_fits_what_the_function_does(
    found: Found, sampled: SampledFunction, words: str
) -> None:
    (finding,) = found(recording([sampled, MODEL(10)], busy_python(9, 1), MAIN_OPS), RULE)
    assert words in finding.fix
    assert finding.severity == ("note" if sampled.callee == "results.get" else "warning")
    assert ("waits" in finding.message) == (sampled.waiting_ns > 0)


@pytest.mark.parametrize(("callee", "is_found"), [("torch.mm", False), ("torch.save", True)])
def test_a_function_of_torch_that_is_an_operator_is_no_python(
    found: Found, callee: str, *, is_found: bool
) -> None:
    # It took longer in the steps after the recorded ones, as of a growing tensor.
    functions = [function("main", 18, 90, callee=callee), MODEL(10)]
    assert bool(found(recording(functions, busy_python(9, 1), MAIN_OPS), RULE)) == is_found


@pytest.mark.parametrize(
    ("callee", "library", "is_found"),
    [("torch.save", "torch", True), ("encode", "tokens", False), ("writer.save", "", False)],
)
def test_a_few_samples_are_enough_for_a_call_that_writes_files(
    found: Found, callee: str, library: str, *, is_found: bool
) -> None:
    # Two standard errors of 6 samples out of 41 are 11%, and leave less than 5% of 15%.
    functions = [function("main", 18, 6, callee=callee, library=library), MODEL(35)]
    findings = found(recording(functions, busy_python(9, 31), MAIN_OPS), RULE)
    assert bool(findings) == is_found


def test_the_lines_of_one_function_are_one_finding_at_the_line_with_most(found: Found) -> None:
    functions = [
        function("make_batch", 10, 20),
        function("make_batch", 11, 40, callee="random.choice", library="random"),
        function("make_batch", 14, 15, callee="torch.tensor"),
        MODEL(25),
    ]
    (finding,) = found(recording(functions, busy_python(7.5, 2.5), MAIN_OPS), RULE)
    assert "7.50 ms per step (75%) in `make_batch` (train.py:11)." in finding.message


def test_each_call_in_the_loop_of_steps_has_a_finding(found: Found) -> None:
    functions = [
        function("main", 18, 50, callee="gc.collect"),
        function("main", 19, 40, callee="time.sleep", waits=True),
        MODEL(10),
    ]
    findings = found(recording(functions, busy_python(9, 1), MAIN_OPS), RULE)
    assert [finding.locations[0].line for finding in findings] == [18, 19]
    assert [finding.cost.per_step_ns for finding in findings] == [5 * MS, 4 * MS]


def test_the_operators_of_a_line_are_not_its_python_time(found: Found) -> None:
    functions = [function("main", 20, 60), function("main", 21, 40, callee="loss.backward")]
    assert found(recording(functions, busy_python(0.9, 9), MAIN_OPS), RULE) == ()


@pytest.mark.parametrize(
    ("sampled", "is_found"),
    [
        (function("main", 20, 100, callee="optimizer.step", library="torch"), False),
        (function("main", 22, 100, callee="torch.distributions.f", library="torch"), False),
        (function("main", 20, 100, callee="trainer.fit", library="trainers"), False),
        (function("main", 22, 100, callee="client.post", library="flask"), True),
        (function("main", 22, 100, callee="queue.get", library="torch", waits=True), True),
    ],
)
def test_a_librarys_python_around_the_operators_that_it_runs_is_not_a_function(
    found: Found, sampled: SampledFunction, *, is_found: bool
) -> None:
    findings = found(recording([sampled], busy_python(7, 3), MAIN_OPS), RULE)
    assert bool(findings) == is_found


def test_operators_of_the_backward_pass_and_batches_of_a_loader_do_not_count(found: Found) -> None:
    def step(b: TraceBuilder) -> None:
        b.load(5 * MS)
        b.advance(1 * MS)
        b.compute("aten::mm", 4 * MS)

    functions = [
        function("__getitem__", 5, 50, part="data"),
        function("main", 21, 40, callee="loss.backward", library="torch", part="backward"),
        function("main", 22, 10),
    ]
    assert found(recording(functions, step, MAIN_OPS), RULE) == ()


def test_python_between_short_operators_is_not_a_function(found: Found) -> None:
    def step(b: TraceBuilder) -> None:
        for _ in range(50):
            b.advance(round(0.2 * MS))
            b.compute("aten::mm", 10_000)

    functions = [function("forward", 30, 95), MODEL(5)]
    assert found(recording(functions, step), RULE) == ()


@pytest.mark.parametrize(("n", "of", "python_ms"), [(4, 100, 0.4), (2, 4, 5)])
def test_little_python_time_and_few_samples_are_silent(
    found: Found, n: int, of: int, python_ms: float
) -> None:
    functions = [function("make_batch", 10, n), MODEL(of - n)]
    step = busy_python(python_ms, 10 - python_ms)
    assert found(recording(functions, step, MAIN_OPS), RULE) == ()


def test_while_the_gpu_works_the_time_costs_nothing(found: Found) -> None:
    def step(b: TraceBuilder) -> None:
        b.launch("aten::mm", kernel="gemm", host_ns=10_000, device_ns=20 * MS)
        b.advance(9 * MS)
        b.synchronize()

    functions = [function("make_batch", 10, 90), MODEL(10)]
    assert found(recording(functions, step, MAIN_OPS), RULE) == ()


def test_with_recorded_calls_the_samples_are_not_used(found: Found) -> None:
    def step(b: TraceBuilder) -> None:
        with b.frame("train.py", 10, "make_batch"):
            b.launch("aten::mm", kernel="gemm", host_ns=10_000, device_ns=10_000)
            b.advance(9 * MS)

    findings = found(recording([function("make_batch", 10, 100)], step), RULE)
    assert len(findings) == 1
    assert "GPU is idle" in findings[0].message


def test_without_samples_or_a_gpu_it_says_what_is_missing(analyzed: Analyzed) -> None:
    b = TraceBuilder()
    with b.step():
        b.compute("aten::mm", 1 * MS)
    (unchecked,) = analyzed(b, RULE).unchecked
    assert unchecked.rule == "CPU002"


# Of 7 ms with a core, 1 ms is surely Python's, of 6 ms none; where Python alone runs, it is all.
@pytest.mark.parametrize(
    ("python_ms", "delayed_ms", "spent"),
    [(4, 3, ["1.43 ms per step (14%)"]), (4, 4, []), (9, 5, ["8.00 ms per step (80%)"])],
)
def test_time_without_a_core_is_first_taken_from_python(
    found: Found, python_ms: int, delayed_ms: int, spent: list[str]
) -> None:
    functions = [
        function("main", 18, 10 * python_ms, callee="gc.collect"),
        MODEL(100 - 10 * python_ms),
    ]
    recorded = recording(functions, busy_python(python_ms, 10 - python_ms), MAIN_OPS)
    assert recorded.capture is not None
    cpu = CpuTime(10 * MS, 6 * MS, 6 * MS, delayed_ns=delayed_ms * MS)
    recorded.capture = replace(recorded.capture, cpu=cpu)

    messages = [finding.message for finding in found(recorded, RULE)]
    assert len(messages) == len(spent)
    assert all(time in message for time, message in zip(spent, messages, strict=True))
