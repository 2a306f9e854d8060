"""The programs of ``examples/gpu`` run small on a CPU, and a cure changes nothing but the cost."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from profkit.engine.registry import rules

PROGRAMS = Path(__file__).parents[2] / "examples" / "gpu"
SHARED = {"measured", "record"}
EXPECTED: dict[str, dict[str, Any]] = json.loads((PROGRAMS / "expected.json").read_text())
FACTS = {"rule", "shown", "kind", "arguments", "small", "saves", "needs", "same_rules"}
MAY_HAVE = {"options", "other_cures"}
RULES = {rule.INFO.name for rule in rules()}
TOLERANCES = {
    "fp32_without_autocast": 0.02,
    "cast_each_layer": 0.02,
    "weights_cast_in_inference": 0.02,
    "unfused_attention": 0.02,
}
"""Where the cure computes in another precision, or rounds other numbers to it."""
PRINTED = r"^([\d.]+) ms per step over (\d+) steps$"
COMPILED = {"recompiles": 3, "graph_breaks": 3}
"""How many graphs the faulty program compiles, small; the cured one compiles fewer."""

FAST = {"item_each_step", "kept_graphs", "tiny_kernels"}
"""Programs that every change is tested with; the others are slow tests."""

Main = Callable[[Sequence[str]], float]


def text_of(name: str) -> str:
    return (PROGRAMS / f"{name}.py").read_text()


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], ModuleType]]:
    """Imports a program as it stands; what it sets in torch is put back."""
    import torch

    monkeypatch.syspath_prepend(str(PROGRAMS))
    precision = torch.get_float32_matmul_precision()
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    searches = torch.backends.cudnn.benchmark

    def imported(name: str) -> ModuleType:
        spec = importlib.util.spec_from_file_location(name, PROGRAMS / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        # The workers of a loader look up what they are sent by its module's name.
        monkeypatch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
        return module

    with torch.random.fork_rng():
        yield imported
    torch.set_num_threads(n_threads)
    torch.set_float32_matmul_precision(precision)
    torch.backends.cudnn.benchmark = searches
    sys.modules.pop("measured", None)


def test_the_table_lists_exactly_the_programs() -> None:
    programs = {path.stem for path in PROGRAMS.glob("*.py")} - SHARED
    assert sorted(programs) == sorted(EXPECTED)


def test_the_readme_lists_every_program_with_its_rule() -> None:
    rows = re.findall(
        r"^\| `(\w+)\.py` \|.*\| ([^|]*) \|$", (PROGRAMS / "README.md").read_text(), re.MULTILINE
    )
    assert {name: rule.strip("`") for name, rule in rows} == {
        name: facts["rule"] or "none yet" for name, facts in EXPECTED.items()
    }


@pytest.mark.parametrize("name", EXPECTED)
def test_an_entry_of_the_table_has_all_fields(name: str) -> None:
    facts = EXPECTED[name]
    assert set(facts) >= FACTS
    assert set(facts) <= FACTS | MAY_HAVE
    assert facts["kind"] in {"time", "memory"}
    assert facts["rule"] is None or facts["rule"] in RULES
    assert facts["rule"] is None or not facts["shown"]
    assert set(facts["same_rules"]) <= RULES - {facts["rule"]}
    assert "cpu" in facts["small"]


@pytest.mark.parametrize("name", EXPECTED)
def test_a_program_does_not_use_profkit_and_marks_its_fault_once(name: str) -> None:
    text = text_of(name)
    assert "profkit" not in text
    assert text.count("# fault:") == 1
    assert "\nThe problem: " in text
    assert "\nThe fix (``--cured``): " in text
    assert f"Run: ``python examples/gpu/{name}.py [--cured]" in text


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in FAST else pytest.mark.slow)
        for name in sorted(set(EXPECTED) - set(COMPILED))
    ],
)
def test_the_fixed_program_computes_the_same(
    name: str, program: Callable[[str], ModuleType], capsys: pytest.CaptureFixture[str]
) -> None:
    facts, main = EXPECTED[name], program(name).main
    variants = [[], ["--cured"], *facts.get("other_cures", {}).values()]
    results = [main([*facts["small"], *variant]) for variant in variants]
    tolerance = TOLERANCES.get(name, 1e-4)
    assert results == [pytest.approx(results[0], rel=tolerance)] * len(variants)
    assert results[0] != 0
    printed = re.findall(PRINTED, capsys.readouterr().out, re.MULTILINE)
    assert [int(n) for _, n in printed] == [2] * len(variants)
    assert all(float(milliseconds) > 0 for milliseconds, _ in printed)


COMPILES = """
import importlib, json, sys
import torch._dynamo.utils

main = importlib.import_module(sys.argv[1]).main
for variant in ([], ["--cured"]):
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    result = main([*sys.argv[2:], *variant])
    print(json.dumps([result, torch._dynamo.utils.counters["stats"]["unique_graphs"]]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", COMPILED)
def test_the_fixed_program_compiles_fewer_graphs_and_computes_the_same(name: str) -> None:
    # In a process of its own: what compilers keep is there for all tests that come after.
    finished = subprocess.run(
        [sys.executable, "-c", COMPILES, name, *EXPECTED[name]["small"]],
        env={**os.environ, "PYTHONPATH": str(PROGRAMS)},
        capture_output=True,
        text=True,
        check=True,
    )
    lines = [line for line in finished.stdout.splitlines() if line.startswith("[")]
    (faulty, n_faulty), (cured, n_cured) = map(json.loads, lines)
    assert n_faulty >= COMPILED[name]
    assert n_cured < n_faulty
    assert cured == pytest.approx(faulty, rel=1e-4)


def test_steps_are_timed_after_those_that_profilers_record(
    program: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = program("measured")
    waited: list[int] = []
    done: list[int] = []
    monkeypatch.setattr(measured, "wait", lambda _options: waited.append(len(done)))
    options = measured.options(None, steps=20, arguments=["--device", "cpu"])
    for step in measured.steps(options):
        done.append(step)  # noqa: PERF402  (waits come between)
    assert done == list(range(measured.count(options))) == list(range(32))
    assert waited == [12, 32]
