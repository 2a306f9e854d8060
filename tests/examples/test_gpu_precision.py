"""The programs of ``examples/gpu`` on precision, recorded on a CPU and given a GPU's kernels.

Which operators run, within which, of which types and from which lines: all that is recorded with
profkit. What a GPU would have launched for them is put in.
"""

import importlib.util
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import profkit
from profkit.model.report import Report
from tests.examples.on_a_device import FULL, FULL_NS, NS_A_NUMBER, by_precision, write_on_a_device
from traces.recordings import fault_line

PROGRAMS = Path(__file__).parents[2] / "examples" / "gpu"
EXPECTED = json.loads((PROGRAMS / "expected.json").read_text())
RULES = ("float32-matmul", "repeated-casts")
ROWS, WIDTH, KINDS, LAYERS = 80, 40, 10, 8
"""Of the network, with ``--scale 0.02``."""
Recorded = Callable[..., tuple[Path, Report]]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorded]:
    """Records two steps of a program, and gives them to a GPU."""
    precision, n_threads = torch.get_float32_matmul_precision(), torch.get_num_threads()
    torch.set_num_threads(1)
    sys.path.insert(0, str(PROGRAMS))
    measured = importlib.import_module("measured")
    at_first = measured.steps
    recordings: dict[tuple[str, ...], tuple[Path, Report]] = {}

    def record(name: str, *arguments: str) -> tuple[Path, Report]:
        key = (name, *arguments)
        if key in recordings:
            return recordings[key]
        folder = tmp_path_factory.mktemp(name)
        spec = importlib.util.spec_from_file_location(name, PROGRAMS / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        measured.steps = lambda _options: profkit.steps(  # type: ignore[attr-defined]
            range(6), " ".join(key), wait=1, warmup=1, active=2, dir=folder
        )
        with torch.random.fork_rng():
            module.main(["--scale", "0.02", "--device", "cpu", *arguments])
        (trace,) = folder.rglob("*.pt.trace.json.gz")
        tf32 = torch.get_float32_matmul_precision() != "highest"
        work_of = by_precision(tf32=tf32)
        path = write_on_a_device(trace, folder / "on_a_device.pt.trace.json", work_of)
        recordings[key] = path, profkit.analyze(path, select=RULES, strict=True)

        return recordings[key]

    yield record
    measured.steps = at_first  # type: ignore[attr-defined]
    sys.path.remove(str(PROGRAMS))
    sys.modules.pop("measured", None)
    torch.set_num_threads(n_threads)
    torch.set_float32_matmul_precision(precision)


PRECISION = [name for name, facts in EXPECTED.items() if facts["rule"] in RULES]


def test_three_programs_are_about_precision() -> None:
    assert PRECISION == ["fp32_matmul", "fp32_without_autocast", "cast_each_layer"]


@pytest.mark.parametrize("name", PRECISION)
def test_the_fault_is_found_at_its_line_and_nothing_else_is(name: str, recorded: Recorded) -> None:
    _, report = recorded(name)
    assert report.unchecked == ()
    (finding,) = report.findings
    assert finding.name == EXPECTED[name]["rule"]
    assert finding.confidence == "high"
    first = finding.locations[0]
    assert Path(first.file or "").name == f"{name}.py"
    assert first.line == fault_line((PROGRAMS / f"{name}.py").read_text())


@pytest.mark.parametrize("name", PRECISION)
def test_the_cure_is_silent(name: str, recorded: Recorded) -> None:
    _, report = recorded(name, "--cured")
    assert report.findings == ()
    assert report.unchecked == ()


@pytest.mark.parametrize("name", ["fp32_matmul", "fp32_without_autocast"])
def test_products_in_float32_are_measured_by_their_kernels(name: str, recorded: Recorded) -> None:
    path, report = recorded(name)
    kernels = [event["name"] for event in json.loads(path.read_text())["traceEvents"]]
    # Five layers, forwards, and backwards for weights and inputs: the first has no such input.
    assert kernels.count(FULL) == 2 * (3 * 5 - 1)
    # The recorded host is a CPU that computes all of it, so that the GPU's time costs no step.
    (finding,) = report.findings
    assert finding.evidence["kernel_ns"] == 2 * 14 * FULL_NS
    assert finding.cost.ns == 0


def test_casts_are_what_goes_up_and_comes_back_and_their_gradients(recorded: Recorded) -> None:
    _, report = recorded("cast_each_layer")
    (finding,) = report.findings
    assert finding.n == 2 * LAYERS
    activations = 2 * LAYERS * ROWS * WIDTH
    weights = (LAYERS - 1) * (WIDTH * WIDTH + WIDTH) + KINDS * WIDTH + KINDS
    # Of the first layer nothing comes back, and what the last one gives up is for the loss.
    spent_ns = sum(end - start for start, end in finding.spans)
    assert spent_ns == 2 * 2 * NS_A_NUMBER * (activations + weights)
    assert finding.cost.basis == "replay"
    assert finding.evidence["n_casts"] == 2 * 2 * 4 * LAYERS
