"""Programs of ``examples/gpu``, recorded on a CPU and given a GPU's work: found, and not if fixed.

Operators, shapes, strides, allocations and source lines are recorded with profkit. What a GPU would
have done for them is put in, so that the rules see what they need of a program.
"""

import importlib.util
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
import torch

import profkit
from profkit.model.report import Report
from tests.examples.on_a_device import AHEAD, Device, write_on_a_device
from traces.recordings import fault_line

PROGRAMS: Final = Path(__file__).parents[2] / "examples" / "gpu"
EXPECTED: Final[dict[str, dict[str, Any]]] = json.loads((PROGRAMS / "expected.json").read_text())
Recorded = Callable[..., Report]


class Small(NamedTuple):
    """How a program is recorded.

    Attributes:
        n: What its finding counts.
        scale: Its ``--scale``.
        active: Recorded steps.
        times: How many times as large its tensors are on the device.
    """

    n: int
    scale: float = 0.02
    active: int = 2
    times: int = 1


SMALL: Final = {
    "grad_norm_sync": Small(2),
    "scaler_sync": Small(2),
    "pageable_copy_to_host": Small(2),
    "unfused_pointwise": Small(2 * 4 * (8 + 11)),
    "unfused_attention": Small(2 * 2),
    "repeated_copies": Small(2 * 4 * 3),
    "layout_transposes": Small(2 * 3 * (4 + 4), 0.1),
    "algorithm_search": Small(2 * (1 + 1), 0.15),
    "dynamic_shapes": Small(11 * 5, 0.1, 12, 100),
}
RULES: Final = [*(EXPECTED[name]["rule"] for name in SMALL), "item-sync", "allocator-churn"]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorded]:
    """Records some steps of a program, and gives them to a GPU."""
    precision, n_threads = torch.get_float32_matmul_precision(), torch.get_num_threads()
    searches = torch.backends.cudnn.benchmark
    torch.set_num_threads(1)
    sys.path.insert(0, str(PROGRAMS))
    measured = importlib.import_module("measured")
    at_first = measured.steps

    def record(name: str, *arguments: str) -> Report:
        small = SMALL[name]
        folder = tmp_path_factory.mktemp(name)
        spec = importlib.util.spec_from_file_location(name, PROGRAMS / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        measured.steps = lambda _options: profkit.steps(  # type: ignore[attr-defined]
            range(small.active + 2), name, wait=1, warmup=1, active=small.active, dir=folder
        )
        torch.backends.cudnn.benchmark = False
        with torch.random.fork_rng():
            module.main(["--scale", str(small.scale), "--device", "cpu", *arguments])
        (trace,) = folder.rglob("*.pt.trace.json.gz")
        device = Device(searches=torch.backends.cudnn.benchmark, times=small.times)
        path = folder / "on_a_device.pt.trace.json"
        write_on_a_device(trace, path, device.work_of, slower=1, ahead=AHEAD)

        return profkit.analyze(path, select=RULES, strict=True)

    yield record
    measured.steps = at_first  # type: ignore[attr-defined]
    sys.path.remove(str(PROGRAMS))
    sys.modules.pop("measured", None)
    torch.set_num_threads(n_threads)
    torch.set_float32_matmul_precision(precision)
    torch.backends.cudnn.benchmark = searches


@pytest.mark.parametrize("name", SMALL)
def test_the_fault_is_found_at_its_line_and_nothing_else_is(name: str, recorded: Recorded) -> None:
    report = recorded(name)
    assert report.unchecked == ()
    assert [finding.name for finding in report.findings] == [EXPECTED[name]["rule"]]
    (finding,) = report.findings
    first = finding.locations[0]
    assert Path(first.file or "").name == f"{name}.py"
    assert first.line == fault_line((PROGRAMS / f"{name}.py").read_text())
    assert finding.n == SMALL[name].n
    assert (finding.cost.ns or 0) > 0 or not EXPECTED[name]["saves"]


@pytest.mark.parametrize("name", SMALL)
def test_the_fix_is_silent(name: str, recorded: Recorded) -> None:
    assert recorded(name, "--cured").findings == ()
