"""Traces of profkit open in torch-tb-profiler, view by view, on a TensorBoard server."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from isal import igzip

import profkit
from profkit.api import study
from profkit.integrations.tensorboard.torch_tb_profiler_errors import find_misreadings
from tests.corpus.recordings import needs_corpus, trace_path
from tests.tensorboard.recordings import GEMM_NS, RELU_NS, STEPS, write_gpu_training
from tests.tensorboard.server import TensorBoard, serving

RECORDED = Path(__file__).parents[2] / "traces"
ROWS_OF_A_TABLE = {"name", "calls", "host_self_duration"}


def runs_in(logdir: Path) -> list[str]:
    """Return the folders with traces, as TensorBoard names its runs."""
    folders = {path.parent for path in logdir.rglob("*.pt.trace.json.gz")}
    return sorted(folder.relative_to(logdir).as_posix() for folder in folders)


def check_views(server: TensorBoard, run: str) -> None:
    """Load the overview and the operator view of every worker and span of a run."""
    assert {"Overview", "Operator", "Trace"} <= set(server.ask("views", run=run))
    workers = server.ask("workers", run=run, view="Overview")
    assert workers

    for worker in workers:
        spans = server.ask("spans", run=run, worker=worker)
        assert spans
        for span in spans:
            query = {"run": run, "worker": worker, "span": span}
            overview = server.ask("overview", **query)
            assert overview["performance"][0]["name"] == "Average Step Time"
            assert len(overview["steps"]["rows"]) > 0
            assert server.ask("operation", **query, group_by="Operation")
            table = server.ask("operation/table", **query, group_by="Operation")
            assert table["data"]
            assert set(table["data"][0]) >= ROWS_OF_A_TABLE


def only_profile(server: TensorBoard, run: str) -> dict[str, str]:
    """Return the query for the only profile of a run."""
    (worker,) = server.ask("workers", run=run, view="Overview")
    (span,) = server.ask("spans", run=run, worker=worker)
    return {"run": run, "worker": worker, "span": span}


def train_step(network: torch.nn.Module, batch: torch.Tensor) -> None:
    network.zero_grad()
    network(batch).sum().backward()


@pytest.fixture(scope="module")
def logdir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with new traces (single entries, a schedule with steps) and GPU traces."""
    folder = tmp_path_factory.mktemp("logdir")
    network, batch = torch.nn.Linear(16, 4), torch.randn(8, 16)
    for _ in range(2):
        with profkit.trace("each step", dir=str(folder)):
            train_step(network, batch)
    batches = (batch for _ in range(8))
    for step in profkit.steps(batches, "loop", wait=1, warmup=1, active=3, dir=str(folder)):
        train_step(network, step)

    write_gpu_training(folder / "train")
    real = trace_path("h100-qwen-inference")
    if real.exists():
        (folder / "real").mkdir()
        (folder / "real" / "host_8.pt.trace.json.gz").symlink_to(real)
    return folder


@pytest.fixture(scope="module")
def server(logdir: Path) -> Iterator[TensorBoard]:
    with serving(logdir) as started:
        assert sorted(started.runs(n=len(runs_in(logdir)))) == runs_in(logdir)
        yield started


@pytest.mark.slow
@pytest.mark.parametrize("run", ["each_step", "loop"])
def test_new_traces_open(server: TensorBoard, run: str) -> None:
    check_views(server, run)


def test_each_entry_is_a_span(server: TensorBoard) -> None:
    (worker,) = server.ask("workers", run="each_step", view="Overview")
    assert len(server.ask("spans", run="each_step", worker=worker)) == 2


def test_the_steps_of_a_schedule_are_the_steps_of_the_overview(server: TensorBoard) -> None:
    query = only_profile(server, "loop")
    assert len(server.ask("overview", **query)["steps"]["rows"]) == 3


def test_the_trace_view_gets_the_file_that_was_written(logdir: Path, server: TensorBoard) -> None:
    query = only_profile(server, "loop")
    loaded = json.loads(igzip.decompress(server.fetch("trace", **query)))
    (path,) = (logdir / "loop").glob("*.pt.trace.json.gz")
    assert loaded == json.loads(igzip.decompress(path.read_bytes()))


@pytest.mark.slow
def test_every_recorded_trace_of_the_examples_opens() -> None:
    runs = runs_in(RECORDED)
    assert runs
    with serving(RECORDED) as server:
        assert sorted(server.runs(n=len(runs))) == runs
        for run in runs:
            check_views(server, run)


def check_gpu_views(server: TensorBoard, query: dict[str, str]) -> None:
    """Every view of a trace with device work, stacks and memory answers with data."""
    views = set(server.ask("views", run=query["run"]))
    assert views >= {"Overview", "Operator", "Kernel", "Trace", "Memory", "Module"}
    assert server.ask("operation/table", **query, group_by="Operation")["data"]
    assert server.ask("kernel/table", **query, group_by="Kernel")["data"]["rows"]
    assert server.ask("memory", **query)["rows"]
    assert server.ask("memory_curve", **query)["rows"]
    assert server.ask("memory_events", **query)["rows"]
    assert server.ask("module", **query)["data"]
    assert json.loads(igzip.decompress(server.fetch("trace", **query)))["traceEvents"]


def test_every_view_of_a_gpu_trace_has_its_data(server: TensorBoard) -> None:
    query = only_profile(server, "train")
    check_gpu_views(server, query)
    rows = server.ask("kernel/table", **query, group_by="Kernel")["data"]["rows"]
    total_us = {row[0]: row[3] for row in rows}
    assert total_us["gemm"] == STEPS * GEMM_NS / 1000
    assert total_us["relu"] == STEPS * RELU_NS / 1000
    (outer,) = server.ask("module", **query)["data"]
    assert (outer["name"], outer["occurences"]) == ("Net_0", STEPS)


@needs_corpus
def test_every_view_of_a_real_gpu_trace_has_its_data(server: TensorBoard) -> None:
    check_gpu_views(server, only_profile(server, "real"))


def test_the_memory_view_of_a_recorded_cpu_trace_has_its_data(
    server: TensorBoard,
) -> None:
    query = only_profile(server, "loop")
    assert "Memory" in server.ask("views", run="loop")
    assert server.ask("memory", **query)["rows"]["CPU"]
    assert server.ask("memory_curve", **query)["rows"]["CPU"]


def overview_shares(server: TensorBoard, query: dict[str, str]) -> dict[str, float]:
    """Return the overview's average step by part, in microseconds."""
    rows = server.ask("overview", **query)["performance"][0]["children"]
    return {row["name"]: row["value"] for row in rows}


def test_the_reported_misreadings_occur(server: TensorBoard, tmp_path: Path) -> None:
    studied = study(write_gpu_training(tmp_path))
    reported = {
        misreading.where: misreading
        for misreading in find_misreadings(studied.recording.context, studied.report)
    }
    query = only_profile(server, "train")
    operators = server.ask("operation/table", **query, group_by="Operation")["data"]
    assert {op["device_total_duration"] for op in operators} == {0}

    (operator_note,) = (note for where, note in reported.items() if where.startswith("Operator"))
    assert operator_note.actual.startswith("Kernels, copies and fills sum to 3.15 ms")
    steps = server.ask("overview", **query)["steps"]["rows"]
    assert len(steps) == 2 * STEPS
    assert reported["Overview: number of steps and their average"].actual == (
        f"The recording has {STEPS} steps."
    )

    parts = overview_shares(server, query)
    assert "Communication" not in parts
    assert parts["Runtime"] == 0
    assert reported["Overview: Communication; Distributed"].actual == (
        "Kernels of collectives ran 1.20 ms."
    )
    assert "Copies ran" in reported["Overview: GPU Utilization"].actual
