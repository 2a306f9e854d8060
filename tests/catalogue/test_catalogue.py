"""Every rule of the catalogue follows the conventions for rules."""

import ast
import dataclasses
import functools
import inspect
import json
import math
import re
from pathlib import Path
from types import ModuleType
from typing import cast

import pytest

from profkit.api import analyze
from profkit.detectors import half_products, unused_gradients
from profkit.engine.detector import Rule
from profkit.engine.needs import MONITORED_STEPS, MONITORING, RANKS, SNAPSHOT, Need
from profkit.engine.registry import rules
from profkit.model.capture_info import CaptureInfo, CpuTime, HostThreads
from profkit.model.finding import SEVERITIES
from profkit.testing import TraceBuilder

SECTIONS = (
    "What it finds",
    "Why it matters",
    "How to fix it",
    "Example",
    "Use instead",
    "Reads",
    "When to ignore this",
    "Source",
)
FAMILIES = {"SYN", "DAT", "KER", "MEM", "COM", "CMP", "CFG", "CPU", "PRF"}
ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests" / "detectors"
TABLES = (
    "traces/programs.json", "examples/gpu/expected.json", "examples/host/expected.json",
    "examples/leaks/expected.json", "examples/ranks/expected.json",
)  # fmt: skip
UNITS = ("_ns", "_bytes", "_share", "_ratio", "_count")
OWN = tuple(rule for rule in rules() if rule.__name__.startswith("profkit."))
PUBLISHED = {
    "SYN001": "item-sync",
    "SYN002": "explicit-synchronize",
    "SYN003": "pageable-copy-to-host",
    "SYN004": "boolean-indexing-sync",
    "SYN005": "scaler-sync",
    "SYN006": "grad-norm-sync",
    "DAT001": "starved-by-loader",
    "DAT002": "pageable-copy-to-device",
    "DAT003": "host-made-tensor",
    "DAT004": "small-copies",
    "DAT005": "device-to-device-copies",
    "DAT006": "blocking-checkpoint",
    "DAT007": "batch-from-pieces",
    "DAT008": "restarted-workers",
    "KER001": "launch-bound",
    "KER002": "float32-matmul",
    "KER003": "repeated-casts",
    "KER004": "unfused-optimizer",
    "KER005": "unfused-attention",
    "KER006": "layout-transposes",
    "KER007": "unfused-pointwise",
    "KER008": "repeated-copies",
    "KER009": "misaligned-matmul",
    "KER011": "half-precision-unused",
    "KER012": "weights-cast-in-inference",
    "KER013": "slow-convolutions",
    "KER014": "per-tensor-loop",
    "KER015": "dense-table-update",
    "KER016": "unused-gradients",
    "KER017": "double-precision",
    "KER018": "pairwise-broadcast",
    "KER019": "one-hot-product",
    "KER020": "recomputed-prefix",
    "KER021": "recurrent-loop",
    "KER022": "copied-weights",
    "KER023": "loop-over-elements",
    "KER024": "grown-by-copies",
    "KER025": "half-products",
    "MEM001": "unfreed-tensors",
    "MEM002": "allocator-churn",
    "MEM003": "retained-graph",
    "MEM004": "growing-container",
    "MEM005": "forgotten-hook",
    "MEM006": "uncollected-cycle",
    "MEM007": "kept-traceback",
    "MEM008": "unbounded-cache",
    "MEM009": "host-growth",
    "MEM010": "cache-growth",
    "MEM011": "fragmentation",
    "MEM012": "empty-cache-in-loop",
    "MEM013": "graph-in-inference",
    "MEM014": "zeroed-gradients",
    "MEM015": "peak-dominated-by-one-line",
    "MEM016": "pinned-growth",
    "MEM017": "out-of-memory",
    "MEM018": "allocator-off",
    "COM001": "exposed-communication",
    "COM002": "data-parallel",
    "COM003": "desynchronized-collectives",
    "COM004": "straggling-rank",
    "COM005": "uneven-ranks",
    "COM006": "pipeline-bubble",
    "COM007": "slow-link",
    "COM008": "unused-parameter-search",
    "COM009": "sync-in-accumulation",
    "COM010": "small-buckets",
    "COM012": "failed-rank",
    "CMP001": "recompiles",
    "CMP002": "graph-breaks",
    "CMP003": "dynamic-shapes",
    "CMP004": "compile-in-window",
    "CFG001": "algorithm-search",
    "CFG002": "oversubscribed-cpu",
    "CFG003": "debug-left-on",
    "CFG004": "device-mismatch",
    "CPU001": "output-in-step",
    "CPU002": "host-function",
    "CPU003": "slowing-steps",
    "CPU004": "rebuilt-model",
    "PRF001": "no-warm-up",
    "PRF002": "carried-in-device-work",
    "PRF003": "no-stacks",
    "PRF004": "lost-device-events",
    "PRF006": "odd-trace",
    "PRF007": "odd-snapshot",
    "PRF008": "nothing-recorded",
    "PRF009": "unrecorded-device-work",
    "PRF010": "cold-start",
    "PRF014": "busy-machine",
    "PRF015": "untypical-steps",
}
"""Ids and names that reports and configurations refer to; they never change."""

IN_FLOAT32 = "ampere_sgemm_128x64_tn"
TO_FLOAT32 = "gpu_kernel_impl<direct_copy_kernel_cuda(Iter&)::{lambda(float)#1}>(int)"
TO_BFLOAT16 = "bfloat16_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda(float)#1}"

each_rule = pytest.mark.parametrize("rule", OWN, ids=lambda rule: rule.INFO.name)


def page(rule: Rule) -> dict[str, str]:
    text = inspect.cleandoc(rule.__doc__ or "")
    parts = re.split(rf"^({'|'.join(SECTIONS)}):\n", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def module_name(rule: Rule) -> str:
    return rule.__name__.rsplit(".", 1)[-1]


def test_published_ids_and_names_do_not_change() -> None:
    assert {rule.INFO.id: rule.INFO.name for rule in OWN}.items() >= PUBLISHED.items()


def test_ids_and_names_are_unique() -> None:
    ids, names = zip(*((rule.INFO.id, rule.INFO.name) for rule in rules()), strict=True)
    assert len(set(ids)) == len(ids)
    assert len(set(names)) == len(names)


@each_rule
def test_name_equals_module_and_id_starts_with_a_family(rule: Rule) -> None:
    assert rule.INFO.name.replace("-", "_") == module_name(rule)
    assert re.fullmatch(r"[A-Z]{3}\d{3}", rule.INFO.id)
    assert rule.INFO.id[:3] in FAMILIES


@each_rule
def test_info_is_complete(rule: Rule) -> None:
    info = rule.INFO
    assert info.severity in SEVERITIES
    assert info.title
    assert not info.title.endswith(".")
    assert info.needs
    assert re.fullmatch(r"\d+\.\d+\.\d+", info.since)


@each_rule
def test_page_begins_with_id_name_and_a_sentence(rule: Rule) -> None:
    first = (rule.__doc__ or "").splitlines()[0]
    assert first.startswith(f"{rule.INFO.id} {rule.INFO.name}: ")
    assert first.endswith(".")


@each_rule
def test_page_has_every_section_in_order_and_none_is_empty(rule: Rule) -> None:
    sections = page(rule)
    assert tuple(sections) == SECTIONS
    assert all(len(text.split()) >= 2 for text in sections.values())


@each_rule
def test_example_and_replacement_are_code_and_differ(rule: Rule) -> None:
    sections = page(rule)
    assert "::" in sections["Example"]
    assert "::" in sections["Use instead"]
    assert sections["Example"] != sections["Use instead"]


@each_rule
def test_page_states_the_units_of_the_columns_it_reads(rule: Rule) -> None:
    reads = page(rule)["Reads"]
    if "_ns" in reads:
        assert "nanoseconds" in reads
    if "bytes`" in reads:
        assert "in bytes" in reads


@each_rule
def test_thresholds_are_frozen_numbers_with_defaults_units_and_reasons(rule: Rule) -> None:
    thresholds = rule.Thresholds()
    described = "".join(base.__doc__ or "" for base in rule.Thresholds.__mro__)
    assert thresholds.__dataclass_params__.frozen
    for field in dataclasses.fields(rule.Thresholds):
        assert isinstance(getattr(thresholds, field.name), (int, float))
        assert field.name.endswith(UNITS), field.name
        _, named, description = described.partition(f" {field.name}: ")
        reason = re.split(r"\n +\w+: |\n *\n", description)[0]
        assert named, field.name
        assert len(reason.split()) > len(field.name.split("_")), field.name


@each_rule
def test_rule_has_its_own_test_file_that_covers_skipping(rule: Rule) -> None:
    text = (TESTS / f"test_{module_name(rule)}.py").read_text(encoding="utf-8")
    assert f'RULE = "{rule.INFO.name}"' in text
    assert rule.INFO.is_health or "unchecked" in text, "no test in which its data is missing"


def rules_of_programs() -> set[str]:
    """Ids and names of the rules that find the planted problem of a program of ``examples``."""
    reported: set[str] = set()
    for table in TABLES:
        entries = json.loads((ROOT / table).read_text())
        for facts in entries.get("leaks", entries).values():
            named = {facts.get("rule"), facts.get("watched_rule"), *facts.get("rules", ())}
            named |= {*facts.get("also", ())}
            reported |= named - {None}
    return reported


@each_rule
def test_rule_has_a_program_with_its_problem_or_says_why_not(rule: Rule) -> None:
    has_program = bool({rule.INFO.id, rule.INFO.name} & rules_of_programs())
    assert has_program != bool(rule.INFO.no_example), (
        "add a program with the problem to expected.json, or say in INFO.no_example why not"
    )
    assert not rule.INFO.no_example or rule.INFO.no_example.endswith(".")


@functools.cache
def parsed_tests() -> list[tuple[str, ast.Module]]:
    """Return the texts of the rules' tests, and what they parse to."""
    texts = [path.read_text(encoding="utf-8") for path in TESTS.glob("test_*.py")]
    return [(text, ast.parse(text)) for text in texts]


def is_nothing(test: ast.expr) -> bool:
    """Return whether an assertion is that nothing was found: ``… == ()``."""
    if not isinstance(test, ast.Compare) or not isinstance(test.ops[0], ast.Eq):
        return False
    last = test.comparators[-1]
    return isinstance(last, (ast.Tuple, ast.List)) and not last.elts


def n_cases(test: ast.FunctionDef) -> int:
    """How often a test runs, by the lists that it is parametrized with."""
    calls = [decorator for decorator in test.decorator_list if isinstance(decorator, ast.Call)]
    lists = [call.args[1] for call in calls if len(call.args) > 1]
    return math.prod(
        len(case_list.elts) for case_list in lists if isinstance(case_list, (ast.List, ast.Tuple))
    )


def count_silent_cases(rule: Rule) -> int:
    """How many cases of a rule's tests are programs in which it finds nothing."""
    own_tests = [tree for text, tree in parsed_tests() if f'RULE = "{rule.INFO.name}"' in text]
    tests = [
        function
        for tree in own_tests
        for function in tree.body
        if isinstance(function, ast.FunctionDef)
    ]

    return sum(
        n_cases(test)
        for test in tests
        if any(
            isinstance(statement, ast.Assert) and is_nothing(statement.test)
            for statement in ast.walk(test)
        )
    )


@each_rule
def test_rule_is_silent_on_the_fixed_program_and_on_what_looks_alike(rule: Rule) -> None:
    is_of_leaks = any(need in {MONITORING, MONITORED_STEPS} for need in rule.INFO.needs)
    # Programs that look like leaks are in examples/leaks; a recording has a fault or none.
    n_needed = 1 if is_of_leaks or rule.INFO.is_health else 2
    assert count_silent_cases(rule) >= n_needed, "too few tests with assert found(…) == ()"


def test_catalogue_holds_only_rules() -> None:
    folder = Path(inspect.getsourcefile(cast("ModuleType", OWN[0])) or "").parent
    files = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    assert files == {module_name(rule) for rule in OWN}


def build_slow_program() -> TraceBuilder:
    """Build a program with most problems at once."""
    device = {"id": 0, "name": "NVIDIA H200", "computeMajor": 9, "computeMinor": 0}
    head = {"ERROR": ["a message"], "deviceProperties": [device]}
    cpu = CpuTime(window_ns=1, thread_ns=1, process_ns=1, delayed_ns=0)
    capture = CaptureInfo("0", "train", "user", cpu=cpu, threads=HostThreads(1, 1))
    b = TraceBuilder(stacks=True, memory=True, head=head, capture=capture)
    b.kernel("earlier", 50_000, **{"blocks per SM": 4.0})

    for _ in range(4):
        with b.step(), b.frame("train.py", 10, "train_step"):
            b.load(300_000)
            b.to_device(1 << 22, 100_000)
            with b.annotation("Optimizer.step#SGD.step"):
                for _ in range(30):
                    b.launch("aten::add_", kernel="add", host_ns=20_000, device_ns=1_000)
            b.compute("aten::zeros", 1_000)
            b.to_device(32, 1_000)
            square = [[512, 512], [512, 512]]
            b.launch("aten::mm", kernel=IN_FLOAT32, host_ns=10_000, device_ns=400_000, dims=square)
            for _ in range(4):
                for kernel in (TO_FLOAT32, TO_BFLOAT16):
                    b.launch("aten::to", kernel=kernel, host_ns=6_000, device_ns=15_000)
            b.item()
            b.to_host(4096, 50_000)
            b.launch("aten::mm", kernel="gemm", host_ns=10_000, device_ns=400_000)
            b.synchronize()
            b.call("Free", 90_000)
            b.call("Malloc", 90_000)
            with b.op("aten::empty"):
                b.alloc(1 << 20)
            b.advance(100_000)

    return b


def test_two_reports_of_one_file_are_equal(tmp_path: Path) -> None:
    path = build_slow_program().write(tmp_path / "t.json")
    assert analyze(path, strict=True) == analyze(path, strict=True)


def test_all_problems_of_one_program_are_found(tmp_path: Path) -> None:
    report = analyze(build_slow_program().write(tmp_path / "t.json"), strict=True)

    reported = {finding.rule for finding in (*report.findings, *report.health)}
    assert reported >= {
        "SYN001",
        "SYN002",
        "SYN003",
        "DAT001",
        "DAT002",
        "DAT003",
        "KER002",
        "KER003",
        "KER004",
        "MEM001",
        "MEM002",
        "PRF002",
        "PRF004",
    }

    other_rules = {rule.INFO.id for rule in rules() if any(map(is_of_other_data, rule.INFO.needs))}
    assert {check.rule for check in report.unchecked} <= other_rules


def is_of_other_data(need: Need) -> bool:
    """Return whether a need is of data that a trace of one rank, without stacks, does not have."""
    is_of_profkit = need in {unused_gradients.GRADIENTS, half_products.TYPES}
    return (
        is_of_profkit
        or need in {SNAPSHOT, MONITORING, RANKS}
        or any(map(is_of_other_data, need.requires))
    )


def test_findings_have_places_and_spans_and_costs_within_the_window(tmp_path: Path) -> None:
    report = analyze(build_slow_program().write(tmp_path / "t.json"), strict=True)
    window_ns = report.summary.window_ns
    for finding in report.findings:
        assert finding.message.endswith("."), finding.rule
        assert finding.fix
        assert finding.locations, finding.rule
        assert finding.cost.ns is not None or finding.cost.bytes is not None
        assert all(0 <= start < end <= window_ns for start, end in finding.spans)
        ends = [end for _, end in finding.spans]
        starts = [start for start, _ in finding.spans]
        assert all(end <= start for end, start in zip(ends[:-1], starts[1:], strict=True))
        assert (finding.cost.ns or 0) <= window_ns


def fixed_program() -> TraceBuilder:
    """Build the slow program with loader workers, pinned copies, no syncs, and CUDA graphs."""
    b = TraceBuilder(stacks=True, memory=True)
    for _ in range(5):
        with b.step(), b.frame("train.py", 10, "train_step"):
            b.load(2_000, workers=True)
            b.to_device(1 << 22, 100_000, pinned=True)
            with b.op("aten::mm"):
                b.graph_launch([("gemm", 400_000), ("add", 1_000)] * 3)
                block = b.alloc(1 << 20)
            b.to_host(4096, 5_000, pinned=True)
            b.free(block)
            b.advance(1_000_000)
    return b


def test_a_fixed_program_has_no_finding(tmp_path: Path) -> None:
    report = analyze(fixed_program().write(tmp_path / "t.json"), strict=True)
    assert report.findings == ()
    assert report.health == ()


@pytest.mark.parametrize(
    "built",
    [
        TraceBuilder(),
        TraceBuilder(stacks=True, memory=True),
    ],
    ids=["no flags", "flags"],
)
def test_no_rule_crashes_on_an_almost_empty_recording(tmp_path: Path, built: TraceBuilder) -> None:
    with built.step():
        pass
    built.alloc(100)
    report = analyze(built.write(tmp_path / "t.json"), strict=True)
    assert report.findings == ()
