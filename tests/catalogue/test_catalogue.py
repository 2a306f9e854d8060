"""The catalogue as a whole keeps the rules for rules."""

import dataclasses
import inspect
import re
from pathlib import Path
from types import ModuleType
from typing import cast

import pytest

from profkit.api import analyze
from profkit.engine.detector import Needs, Rule
from profkit.engine.needs import looks_at_a_trace
from profkit.engine.registry import rules
from profkit.model.finding import SEVERITIES
from profkit.testing import TraceBuilder

SECTIONS = (
    "What it finds",
    "Why it matters",
    "How to fix it",
    "Example",
    "Use instead",
    "Reads",
    "When it is wrong",
    "Source",
)
FAMILIES = {"SYN", "DAT", "KER", "MEM", "COM", "CMP", "CFG", "PRF"}
UNITS = ("_ns", "_bytes", "_share", "_count")
OWN = tuple(rule for rule in rules() if rule.__name__.startswith("profkit."))
EXPECTED = {
    "SYN001": "item-sync",
    "SYN002": "explicit-synchronize",
    "SYN003": "pageable-copy-to-host",
    "DAT001": "starved-by-loader",
    "DAT002": "pageable-copy-to-device",
    "DAT003": "host-made-tensor",
    "KER001": "launch-bound",
    "KER002": "float32-matmul",
    "KER003": "repeated-casts",
    "COM001": "exposed-communication",
    "COM002": "data-parallel",
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
    "PRF001": "no-warm-up",
    "PRF002": "carried-in-device-work",
    "PRF003": "no-stacks",
    "PRF004": "lost-device-events",
    "PRF007": "odd-snapshot",
}
"""Ids and names are a promise: none is ever given to another rule."""

IN_FLOAT32 = "ampere_sgemm_128x64_tn"
TO_FLOAT32 = "gpu_kernel_impl<direct_copy_kernel_cuda(Iter&)::{lambda(float)#1}>(int)"
TO_BFLOAT16 = "bfloat16_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda(float)#1}"

each_rule = pytest.mark.parametrize("rule", OWN, ids=lambda rule: rule.INFO.name)


def page(rule: Rule) -> dict[str, str]:
    text = inspect.cleandoc(rule.__doc__ or "")
    parts = re.split(rf"^({'|'.join(SECTIONS)}):\n", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def file_of(rule: Rule) -> Path:
    return Path(inspect.getsourcefile(cast("ModuleType", rule)) or "")


def test_every_promised_rule_is_there_under_its_id_and_name() -> None:
    there = {rule.INFO.id: rule.INFO.name for rule in OWN}
    assert there.items() >= EXPECTED.items()


def test_ids_and_names_are_unique() -> None:
    ids, names = zip(*((rule.INFO.id, rule.INFO.name) for rule in rules()), strict=True)
    assert len(set(ids)) == len(ids)
    assert len(set(names)) == len(names)


@each_rule
def test_a_rule_is_called_as_its_module(rule: Rule) -> None:
    assert rule.INFO.name.replace("-", "_") == rule.__name__.rsplit(".", 1)[-1]
    assert re.fullmatch(r"[A-Z]{3}\d{3}", rule.INFO.id)
    assert rule.INFO.id[:3] in FAMILIES


@each_rule
def test_a_card_is_filled_in(rule: Rule) -> None:
    info = rule.INFO
    assert info.severity in SEVERITIES
    assert info.title
    assert not info.title.endswith(".")
    # A rule on the recording itself may look at any: it asks what is there.
    assert info.needs or info.is_health
    assert all(isinstance(need, Needs) for need in info.needs)
    assert re.fullmatch(r"\d+\.\d+\.\d+", info.since)


@each_rule
def test_a_page_begins_with_id_name_and_a_sentence(rule: Rule) -> None:
    first = (rule.__doc__ or "").splitlines()[0]
    assert first.startswith(f"{rule.INFO.id} {rule.INFO.name}: ")
    assert first.endswith(".")


@each_rule
def test_a_page_has_every_section_in_order_with_something_in_it(rule: Rule) -> None:
    sections = page(rule)
    assert tuple(sections) == SECTIONS
    assert all(len(text.split()) >= 2 for text in sections.values())


@each_rule
def test_example_and_cure_are_code_and_differ(rule: Rule) -> None:
    sections = page(rule)
    assert "::" in sections["Example"]
    assert "::" in sections["Use instead"]
    assert sections["Example"] != sections["Use instead"]


@each_rule
def test_a_page_says_in_which_unit_it_reads_times(rule: Rule) -> None:
    reads = page(rule)["Reads"]
    if "_ns" in reads:
        assert "nanoseconds" in reads
    if "bytes`" in reads:
        assert "in bytes" in reads


@each_rule
def test_thresholds_are_frozen_numbers_with_defaults_units_and_reasons(rule: Rule) -> None:
    thresholds = rule.Thresholds()
    assert thresholds.__dataclass_params__.frozen
    for field in dataclasses.fields(rule.Thresholds):
        assert isinstance(getattr(thresholds, field.name), (int, float))
        assert field.name.endswith(UNITS), field.name
        assert f"{field.name}: " in (rule.Thresholds.__doc__ or ""), field.name


@each_rule
def test_a_file_is_no_longer_than_200_lines(rule: Rule) -> None:
    assert len(file_of(rule).read_text(encoding="utf-8").splitlines()) <= 200


@each_rule
def test_a_rule_has_a_test_of_its_own(rule: Rule) -> None:
    tests = Path(__file__).parents[1] / "detectors"
    text = (tests / f"test_{rule.__name__.rsplit('.', 1)[-1]}.py").read_text(encoding="utf-8")
    assert f'RULE = "{rule.INFO.name}"' in text
    assert not rule.INFO.needs or "could_not_look" in text or "unchecked" in text


def test_the_catalogue_holds_rules_and_nothing_else() -> None:
    files = {path.stem for path in file_of(OWN[0]).parent.glob("*.py")} - {"__init__"}
    assert files == {rule.__name__.rsplit(".", 1)[-1] for rule in OWN}


def troubled() -> TraceBuilder:
    """A program with most faults at once."""
    device = {"id": 0, "name": "NVIDIA H200", "computeMajor": 9, "computeMinor": 0}
    head = {"ERROR": ["a message"], "deviceProperties": [device]}
    b = TraceBuilder(stacks=True, memory=True, head=head)
    b.kernel("earlier", 50_000)
    for _ in range(4):
        with b.step(), b.frame("train.py", 10, "train_step"):
            b.load(300_000)
            b.to_device(1 << 22, 100_000)
            for _ in range(30):
                b.launch("aten::add", kernel="add", host_ns=20_000, device_ns=1_000)
            b.compute("aten::zeros", 1_000)
            b.to_device(32, 1_000)
            b.launch("aten::mm", kernel=IN_FLOAT32, host_ns=10_000, device_ns=400_000)
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


def test_two_reports_of_one_file_are_alike(tmp_path: Path) -> None:
    path = troubled().write(tmp_path / "t.json")
    assert analyze(path, strict=True) == analyze(path, strict=True)


def test_faults_that_come_together_are_all_found(tmp_path: Path) -> None:
    report = analyze(troubled().write(tmp_path / "t.json"), strict=True)
    found = {finding.rule for finding in (*report.findings, *report.health)}
    assert found >= {
        "SYN001", "SYN002", "SYN003", "DAT001", "DAT002", "DAT003", "KER002", "KER003", "MEM001",
        "MEM002", "PRF002", "PRF004",
    }  # fmt: skip
    of_a_trace = {rule.INFO.id for rule in rules() if looks_at_a_trace(rule.INFO.needs)}
    assert not of_a_trace & {each.rule for each in report.unchecked}


def test_findings_speak_of_this_program_and_add_up(tmp_path: Path) -> None:
    report = analyze(troubled().write(tmp_path / "t.json"), strict=True)
    window_ns = report.summary.window_ns
    for finding in report.findings:
        assert finding.message.endswith("."), finding.rule
        assert finding.fix
        assert finding.locations, finding.rule
        assert finding.cost.ns is not None or finding.cost.bytes is not None
        assert all(0 <= start < end <= window_ns for start, end in finding.claims)
        ends = [end for _, end in finding.claims]
        starts = [start for start, _ in finding.claims]
        assert all(end <= start for end, start in zip(ends[:-1], starts[1:], strict=True))
        if finding.cost.ns is not None:
            assert sum(ends) - sum(starts) == finding.cost.ns


def cured() -> TraceBuilder:
    """The same program without a fault: fed, pinned, asynchronous, in graphs."""
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


def test_a_cured_program_gets_no_finding(tmp_path: Path) -> None:
    report = analyze(cured().write(tmp_path / "t.json"), strict=True)
    assert report.findings == ()
    assert report.health == ()


@pytest.mark.parametrize(
    "built",
    [
        TraceBuilder(),
        TraceBuilder(stacks=True, memory=True),
    ],
    ids=["nothing at all", "nothing but flags"],
)
def test_no_rule_crashes_on_a_recording_of_almost_nothing(
    tmp_path: Path, built: TraceBuilder
) -> None:
    with built.step():
        pass
    built.alloc(100)
    report = analyze(built.write(tmp_path / "t.json"), strict=True)
    assert report.findings == ()
