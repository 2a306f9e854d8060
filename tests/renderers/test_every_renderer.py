"""What every renderer promises, as CONTRIBUTING.md lists it: profkit's own and third parties'."""

import hashlib
import json
import os
import re
import subprocess
import sys
import time
import unicodedata
from dataclasses import is_dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any, cast
from xml.etree import ElementTree as ET

import pytest

from profkit.errors import PluginError, UsageError
from profkit.model.report import Report
from profkit.plugins import Plugin, plugins
from profkit.present.renderer import (
    GROUP,
    PACKAGE,
    Renderer,
    RendererInfo,
    renderer,
    renderers,
    together,
)
from profkit.testing import TraceBuilder
from profkit.units import format_bytes, format_count, format_ns, format_share
from tests.renderers import reports
from tests.renderers.products import Page, for_people, leaves, made, read_as_one, said

EVERY = renderers()
IDS = [renderer.INFO.name for renderer in EVERY]
JSON = next(renderer for renderer in EVERY if renderer.INFO.name == "json")
PEOPLE = tuple(renderer for renderer in EVERY if for_people(renderer))
PEOPLE_IDS = [renderer.INFO.name for renderer in PEOPLE]
REPORTING = tuple(
    renderer for renderer in EVERY if for_people(renderer) or renderer.INFO.shows == "report"
)
"""Those that show a report; the others export the recording for another program."""
REPORTING_IDS = [renderer.INFO.name for renderer in REPORTING]
IN_TEXT = tuple(
    renderer for renderer in EVERY if re.search("text|json|xml", renderer.INFO.media_type)
)
IN_TEXT_IDS = [renderer.INFO.name for renderer in IN_TEXT]
HTML = tuple(renderer for renderer in EVERY if renderer.INFO.media_type == "text/html")
HTML_IDS = [renderer.INFO.name for renderer in HTML]
FIGURE = re.compile(r"(?<![\w.])[\d,]+(?:\.\d+)?(?: (?:ns|µs|ms|s|B|KiB|MiB|GiB|TiB)\b|%)")
REPORTS = {
    "gpu": reports.build_gpu_report(),
    "cpu": reports.build_cpu_report(),
    "watched": reports.watched_report(),
    "snapshot": reports.build_snapshot_report(),
    "snapshot of two": reports.build_snapshot_report(2),
}
ODD = REPORTS | {
    "empty": reports.empty_report(),
    "unchecked": reports.unchecked_report(),
    "bare finding": replace(reports.empty_report(), findings=(reports.bare(),)),
    "hostile": reports.build_hostile_report("<b>\x1b[31m面白い"),
}


def dangerous(text: str, *, in_json: bool = False) -> list[str]:
    """Characters that control a terminal or a browser; readers of JSON unescape the others."""
    unsafe = {"Cc", "Cf", "Zl", "Zp"}
    unsafe_characters = [
        char for char in set(text) - {"\n", "\u200d"} if unicodedata.category(char) in unsafe
    ]
    return [char for char in unsafe_characters if ord(char) < ord(" ") or not in_json]


@pytest.mark.parametrize("module", EVERY, ids=IDS)
def test_it_has_a_description_and_options_with_defaults(module: Renderer) -> None:
    assert isinstance(module.INFO, RendererInfo)
    assert module.INFO.suffix.startswith(".")
    assert "/" in module.INFO.media_type
    assert (module.__doc__ or "").strip()
    # Without options there is nothing to choose, but a class all the same.
    assert is_dataclass(module.Options())


@pytest.mark.parametrize("module", EVERY, ids=IDS)
def test_the_module_of_a_renderer_is_named_after_its_format(module: Renderer) -> None:
    name = module.__name__.rpartition(".")[2]
    assert name.partition("_")[0] == module.INFO.name
    assert renderer(module.INFO.name) is module


@pytest.mark.slow
def test_a_report_in_one_format_imports_no_other(tmp_path: Path) -> None:
    b = TraceBuilder()
    b.launch("aten::mm", kernel="gemm", host_ns=9_000, device_ns=70_000)
    trace = b.write(tmp_path / "t.json")
    code = (
        "import sys\nfrom profkit.cli.main import main\n"
        f"main(['analyze', {str(trace)!r}, '-o', {str(tmp_path / 'report')!r}, *sys.argv[1:]])\n"
        "print(*(each for each in sys.modules if each.startswith('profkit.renderers.')))"
    )
    for module in REPORTING:
        words = [sys.executable, "-c", code, "--force", "--format", module.INFO.name]
        imported = subprocess.check_output(words, text=True).split()
        assert module.__name__ in imported
        other_names = {renderer.__name__ for renderer in EVERY} - {module.__name__}
        assert not other_names & set(imported)


def test_products_that_cannot_follow_each_other_need_a_function() -> None:
    report = reports.build_gpu_report()
    for name in ("csv", "html", "junit", "sarif"):
        module = renderer(name)
        alone = ModuleType("without_together")
        alone.__dict__.update(INFO=module.INFO, Options=module.Options, render=module.render)
        products = [made(module, report), made(module, report)]
        read_as_one(module, together(module, products))
        with pytest.raises((AssertionError, ValueError, ET.ParseError)):
            read_as_one(module, together(cast("Renderer", alone), products))


def test_a_module_that_is_not_named_after_its_format_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain = renderer("json")
    named = ModuleType("of_another_package")
    named.__dict__.update(
        INFO=RendererInfo("yaml", ".yaml", "text/yaml"), Options=plain.Options, render=plain.render
    )
    offered = [*plugins(PACKAGE, GROUP), Plugin("theirs", lambda: named)]
    monkeypatch.setattr("profkit.present.renderer.plugins", lambda *_: iter(offered))
    monkeypatch.setattr("profkit.present.renderer.discover", lambda *_: (o.load() for o in offered))
    renderers.cache_clear()

    try:
        assert renderer("yaml") is cast("Renderer", named)
        named.__dict__["INFO"] = RendererInfo("json", ".json", "text/json")
        renderers.cache_clear()
        offered[-1] = Plugin("json", lambda: named)
        with pytest.raises(PluginError, match="Two renderers are called 'json'"):
            renderer("json")
        offered.pop()
        with pytest.raises(UsageError, match="no report format 'yaml'"):
            renderer("yaml")
    finally:
        renderers.cache_clear()


def test_the_formats_of_the_command_line_exist() -> None:
    assert {"text", "json", "md", "html", "csv", "sarif", "chrome", "parquet"} <= set(IDS)


@pytest.mark.parametrize("text", reports.HOSTILE, ids=range(len(reports.HOSTILE)))
@pytest.mark.parametrize("module", IN_TEXT, ids=IN_TEXT_IDS)
def test_hostile_names_reach_no_terminal(module: Renderer, text: str) -> None:
    in_json = module.INFO.name == "json"
    for options in ({}, {"verbose": True}, {"width": 40}):
        product = made(module, reports.build_hostile_report(text), **options)
        shown = product.decode()
        if "tab-separated" in module.INFO.media_type:
            # The format's own tabs are the same in each row, which a tab in a name would lengthen.
            assert len({row.count("\t") for row in shown.splitlines()}) == 1
            shown = shown.replace("\t", "")
        assert dangerous(shown, in_json=in_json) == []
        if "json" in module.INFO.media_type:
            assert json.loads(product)


@pytest.mark.parametrize("text", reports.HOSTILE, ids=range(len(reports.HOSTILE)))
@pytest.mark.parametrize("module", HTML, ids=HTML_IDS)
def test_hostile_names_add_no_element_and_no_attribute(module: Renderer, text: str) -> None:
    pages = []
    for name in ("harmless words", f'{text}"><img src=x onerror=alert(1)></script><!--'):
        page = Page()
        page.feed(made(module, reports.build_hostile_report(name), verbose=True).decode())
        page.close()
        assert page.open == []
        pages.append(page)
    assert pages[1].elements <= pages[0].elements
    assert "onerror=alert(1)" in " ".join(pages[1].words)


@pytest.mark.parametrize("module", REPORTING, ids=REPORTING_IDS)
def test_ten_thousand_findings_are_rendered(module: Renderer) -> None:
    report = reports.many_findings()
    product = made(module, report)
    shown = said(module, product)
    assert "DAT001" in shown
    if for_people(module):
        assert re.search(r"\b(9,995 more|10,000\s+findings|5,000 errors, 5,000 warnings)\b", shown)
        assert len(product) < 3_000_000
    else:
        assert sum(shown.count(finding.rule) for finding in report.findings[:2]) >= 10_000


@pytest.mark.parametrize("module", EVERY, ids=IDS)
def test_four_times_the_findings_take_about_four_times_as_long(module: Renderer) -> None:
    many = reports.many_findings()
    took = {}
    for n in (1000, 4000):
        report = replace(many, findings=many.findings[:n])
        times = []
        for _ in range(2):
            began = time.process_time()
            made(module, report)
            times.append(time.process_time() - began)
        took[n] = max(min(times), 0.02)
    assert took[4000] < 10 * took[1000], took


@pytest.mark.parametrize("module", REPORTING, ids=REPORTING_IDS)
def test_a_report_without_findings_says_so(module: Renderer) -> None:
    shown = said(module, made(module, reports.empty_report()))
    assert "DAT001" not in shown
    if for_people(module):
        assert "No problems found." in shown


@pytest.mark.parametrize("module", REPORTING, ids=REPORTING_IDS)
def test_skipped_checks_are_not_reported_as_clean(module: Renderer) -> None:
    report = reports.unchecked_report()
    brief, full = (said(module, made(module, report, verbose=verbose)) for verbose in (False, True))
    assert "SYN012" in full
    assert "There are no operators." in full
    # A screen of text says how many there are, and which option lists them.
    is_counted = (
        for_people(module) and "13 checks skipped: `profkit analyze -v` lists them" in brief
    )
    assert is_counted or ("SYN012" in brief and "There are no operators." in brief)
    assert "No rule found anything" not in brief


@pytest.mark.parametrize("module", EVERY, ids=IDS)
def test_several_ranks_are_one_product_that_names_each(module: Renderer) -> None:
    source = reports.build_gpu_report().source
    ranks = [
        replace(
            reports.build_gpu_report(),
            source=replace(source, path=f"/runs/rank{rank}.json", rank=rank, world_size=2),
        )
        for rank in range(2)
    ]
    products = [made(module, rank) for rank in ranks]
    both = together(module, products)

    if module in IN_TEXT:
        read_as_one(module, both)
        shown = said(module, both)
        for rank in range(2):
            if for_people(module):
                assert re.search(rf"rank{rank}\.json|rank {rank}\b", shown)
        message = ranks[0].findings[0].message
        if not for_people(module):
            assert shown.count(message) == 2 * said(module, products[0]).count(message)


@pytest.mark.parametrize("module", EVERY, ids=IDS)
def test_the_same_report_gives_the_same_bytes(module: Renderer) -> None:
    products = {made(module, reports.build_gpu_report()) for _ in range(2)}
    assert len(products) == 1


def hashes() -> dict[str, str]:
    """Return a hash of every product, by the format and the report."""
    return {
        f"{module.INFO.name} of {name}": hashlib.sha256(made(module, report)).hexdigest()
        for module in EVERY
        for name, report in ODD.items()
    }


def test_every_process_makes_the_same_bytes() -> None:
    program = (
        "import json; from tests.renderers.test_every_renderer import hashes; "
        "print(json.dumps(hashes()))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONHASHSEED": "4242", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        check=True,
    )
    assert json.loads(ran.stdout) == hashes()


@pytest.mark.parametrize("report", ODD.values(), ids=ODD)
@pytest.mark.parametrize("module", EVERY, ids=IDS)
def test_every_kind_of_report_has_a_product(module: Renderer, report: Report) -> None:
    product = made(module, report)
    # An export of the recording is empty where nothing was recorded, such as stacks.
    assert product or module.INFO.shows == "recording"
    if module in PEOPLE:
        assert said(module, product).strip()
    if "json" in module.INFO.media_type:
        assert isinstance(json.loads(product), dict | list)


def list_known_figures(tree: dict[str, Any]) -> set[str]:
    """Every figure of a JSON report as text, and the shares that two of them imply."""
    identifiers: set[str] = set()
    shares: list[float] = []

    for leaf in leaves(tree):
        if isinstance(leaf, str):
            identifiers.update(FIGURE.findall(leaf))
        elif isinstance(leaf, int | float) and not isinstance(leaf, bool):
            identifiers |= {format_ns(leaf), format_bytes(abs(leaf)), format_count(round(leaf))}
            shares.append(leaf)
    breakdown = tree["summary"]["breakdown"]
    if breakdown:
        parts = breakdown["parts"]
        work = ("compute", "communication", "copy", "operators", "backward", "optimizer")
        shares.append(sum(part["share"] for part in parts if part["kind"] in work))
        shares.append(breakdown["total_ns"] / tree["summary"]["window_ns"])
        shares += [
            finding["cost"]["per_step_ns"] / breakdown["per_step_ns"]
            for finding in tree["findings"]
            if finding["cost"]["per_step_ns"]
        ]
    for device in tree["summary"]["devices"]:
        shares += [device[key] / device["span_ns"] for key in device if key.endswith("_ns")]
        shares += [cause["ns"] / device["span_ns"] for cause in device["idle_causes"]]
    memory = tree["summary"]["memory"] or {"devices": []}
    for device in memory["devices"]:
        totals = [device[key] for key in device if key.endswith("_bytes")]
        every = [*device["top_sites"], *device["peak_sites"]]
        every += [site for oom in device["oom"] for site in oom["sites"]]
        shares += [site["bytes"] / total for site in every for total in totals if total]

    return identifiers | {format_share(share) for share in shares}


@pytest.mark.parametrize("report", REPORTS.values(), ids=REPORTS)
@pytest.mark.parametrize("module", REPORTING, ids=REPORTING_IDS)
def test_every_figure_shown_is_in_the_json(module: Renderer, report: Report) -> None:
    tree = json.loads(made(JSON, report))
    shown = set(FIGURE.findall(said(module, made(module, report, width=120, verbose=True))))
    assert shown <= list_known_figures(tree)
    if for_people(module):
        assert len(shown) > 5
