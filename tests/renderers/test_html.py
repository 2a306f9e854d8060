"""The HTML page as text: its sections, its policy, and hostile names."""

import base64
import hashlib
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from profkit.api import render, study
from profkit.model.growth import Growth
from profkit.model.location import Location
from profkit.model.report import Report
from profkit.present.markup import marked
from profkit.renderers import html
from profkit.renderers.html._page import encode_script_json
from profkit.renderers.html._section import term
from profkit.testing import TraceBuilder
from tests.renderers import reports

ROOT = Path(__file__).parents[2]
ADDRESSES = {"href", "src", "srcset", "action", "data", "poster", "background", "formaction"}


class Parts(HTMLParser):
    """The scripts, headings and addresses of a page."""

    def __init__(self, page: bytes) -> None:
        super().__init__()
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.headings: list[str] = []
        self.addresses: list[str] = []
        self.handlers: list[str] = []
        self.policy = ""
        self.open = ""
        self.feed(page.decode())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open = tag
        attributes = dict(attrs)
        if tag == "script":
            self.scripts.append((attributes, ""))
        if tag == "h2":
            self.headings.append("")
        if attributes.get("http-equiv") == "Content-Security-Policy":
            self.policy = attributes["content"] or ""
        self.addresses += [value or "" for name, value in attrs if name in ADDRESSES]
        self.handlers += [name for name, _ in attrs if name.startswith("on")]

    def handle_endtag(self, tag: str) -> None:  # noqa: ARG002  (HTMLParser's)
        self.open = ""

    def handle_data(self, data: str) -> None:
        if self.open == "script":
            attributes, before = self.scripts[-1]
            self.scripts[-1] = attributes, before + data
        if self.open == "h2":
            self.headings[-1] += data


def page_of(report: Report, **options: object) -> bytes:
    return render(report, "html", **options)


def recorded() -> bytes:
    (trace,) = (ROOT / "traces" / "starved_loader").glob("*.pt.trace.json.gz")
    studied = study(trace)
    return page_of(studied.report, recording=studied.recording)


def test_a_policy_allows_the_scripts_of_the_page_and_no_request() -> None:
    parts = Parts(recorded())
    directives = dict(directive.strip().split(" ", 1) for directive in parts.policy.split(";"))
    assert directives["default-src"] == "'none'"
    assert directives["base-uri"] == directives["form-action"] == "'none'"
    assert "connect-src" not in directives
    inline_scripts = [text for attributes, text in parts.scripts if "type" not in attributes]
    assert len(inline_scripts) > 3
    for text in inline_scripts:
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in directives["script-src"]
    assert "unsafe" not in directives["script-src"]


def test_every_address_is_within_the_page() -> None:
    parts = Parts(recorded())
    assert parts.addresses
    assert [address for address in parts.addresses if not address.startswith(("#", "data:,"))] == []
    assert parts.handlers == []


@pytest.mark.parametrize("text", reports.HOSTILE, ids=range(len(reports.HOSTILE)))
def test_a_hostile_name_adds_no_script_and_no_handler(text: str) -> None:
    bare = Parts(page_of(reports.build_hostile_report("plain")))
    hostile = Parts(page_of(reports.build_hostile_report(text)))
    assert len(hostile.scripts) == len(bare.scripts)
    assert hostile.handlers == []
    assert hostile.headings == bare.headings
    for attributes, content in hostile.scripts:
        if attributes.get("type") == "application/json":
            json.loads(content)


def test_data_cannot_end_its_script() -> None:
    text = "</script><script>alert(1)</script><!-- \u2028\u2029 & ]]>"
    data = encode_script_json({"name": text})
    assert not re.search(r"[<>&\u2028\u2029]", data)
    assert json.loads(data) == {"name": text}


def test_the_page_of_a_small_recording_is_small() -> None:
    assert len(recorded()) <= 300_000
    assert len(page_of(reports.empty_report())) < 80_000


@pytest.mark.parametrize(
    ("report", "sections"),
    [
        *(
            (made, ["Overview", "Findings", "Critical path", "Steps", "Memory", "Tables"])
            for made in (reports.build_gpu_report(), reports.build_cpu_report())
        ),
        (reports.build_snapshot_report(), ["Overview", "Findings", "Memory"]),
        (reports.watched_report(), ["Overview", "Findings", "Memory"]),
        (reports.empty_report(), ["Overview", "Findings"]),
    ],
)
def test_a_page_has_the_sections_that_have_content(report: Report, sections: list[str]) -> None:
    assert Parts(page_of(report)).headings == [*sections, "Recording", "Glossary"]


def test_a_page_with_skipped_checks_does_not_claim_to_be_clean() -> None:
    partly = page_of(reports.unchecked_report()).decode()
    assert '<p class="none partly">' in partly
    assert "13 checks skipped: there are no operators." in partly
    clean = page_of(reports.empty_report()).decode()
    assert '<p class="none">No problems found.</p>' in clean
    assert "checks skipped:" not in clean


def test_a_recording_adds_timeline_and_flame_graphs() -> None:
    headings = Parts(recorded()).headings
    assert headings[2:6] == ["Timeline", "What if", "Critical path", "Steps"]
    assert headings[6:8] == ["Flame graphs", "Memory"]


def test_what_a_replay_changes_is_called_the_critical_path_and_not_the_step_time() -> None:
    # It ends with the device's last work, and the report's step time with the host's last step.
    page = recorded().decode()
    assert re.search(r"<b>Critical path per step</b>: <output data-predicted>[\d.]+ \w+ as", page)
    assert "<b>Step time</b>" not in page


def test_source_lines_are_shown_where_the_file_exists(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("for batch in loader:\n    loss = step(batch)  # <here> & there\n")
    finding = replace(reports.build_starved(), locations=(Location(str(path), 2, "main"),))
    report = replace(reports.build_gpu_report(), findings=(finding,))
    page = page_of(report, base=str(tmp_path)).decode()
    assert "&lt;here&gt; &amp; there" in page
    assert '<code class="place" title="train.py:2">train.py:2</code>' in page
    assert "&lt;here&gt;" not in page_of(report, source=False).decode()


def test_the_line_to_edit_is_marked_beside_the_line_that_allocates(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    far = "\n" * 20
    path.write_text(f"loss = step()\nnear[0] = loss\n{far}self.log.far.append(loss)\n")

    def lines(holder: str) -> list[tuple[str, ...]]:
        finding = replace(
            reports.build_grown(),
            locations=(Location(str(path), 1, "main"),),
            evidence={"holder_name": holder},
        )
        page = page_of(replace(reports.watched_report(), findings=(finding,)), base=str(tmp_path))
        line_pattern = r'<span class="line (\w+)"><i>(\d+)</i>[^<]*<b>([^<]*)</b>'
        return re.findall(line_pattern, page.decode())

    assert lines("near") == [("marked", "1", "allocates"), ("edited", "2", "edit")]
    far_away = [("edited", "23", "edit"), ("marked", "1", "allocates")]
    assert lines("self.log.far") == far_away
    assert lines("missing") == []


def test_a_line_to_edit_a_few_lines_below_is_in_the_same_excerpt(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("loss = step()\na = 1\nb = 2\nc = 3\nd = 4\nnear.append(loss)\n")
    finding = replace(
        reports.build_grown(),
        locations=(Location(str(path), 1, "main"),),
        evidence={"holder_name": "near"},
    )
    report = replace(reports.watched_report(), findings=(finding,))
    page = page_of(report, base=str(tmp_path)).decode()
    assert page.count('<figure class="snippet">') == 1
    assert re.findall(r'<span class="line (\w+)"><i>(\d+)', page) == [
        ("marked", "1"),
        ("edited", "6"),
    ]


def test_objects_of_one_size_have_one_chart_with_their_number() -> None:
    page = page_of(replace(reports.watched_report(), findings=(reports.build_grown(),))).decode()
    assert "Bytes: 0 B to 600 MiB, steps 1 to 300, 300 objects" in page
    assert "Objects: " not in page
    larger = Growth((1, 150, 300), (0, 50 << 20, 600 << 20), (0, 150, 300))
    uneven = replace(reports.build_grown(), growth=larger)
    page = page_of(replace(reports.watched_report(), findings=(uneven,))).decode()
    assert "Bytes: 0 B to 600 MiB, steps 1 to 300<" in page
    assert "Objects: 0 to 300, steps 1 to 300" in page


def test_findings_link_to_the_timeline_if_there_is_one() -> None:
    assert b"Show on the timeline" in recorded()
    assert b"Show on the timeline" not in page_of(reports.build_gpu_report())


def test_a_finding_without_spans_links_to_its_longest_event(
    tmp_path: Path,
) -> None:
    builder = TraceBuilder()
    for dur_ns in (2_000, 9_000, 5_000):
        builder.compute("aten::mm", dur_ns)
    studied = study(builder.write(tmp_path / "t.json"))
    events = studied.recording.context.events
    shorter, longest = (int(events.position[events.dur_ns == ns][0]) for ns in (5_000, 9_000))
    finding = replace(reports.build_starved(), spans=(), evidence={"events": [shorter, longest]})
    report = replace(studied.report, findings=(finding,))
    page = page_of(report, recording=studied.recording).decode()
    (start, end) = re.findall(r'data-(?:start|end)-ns="(\d+)"', page)
    assert int(end) - int(start) == 9_000
    assert int(start) == int(events.ts_ns[events.dur_ns == 9_000][0])


def test_backticks_become_code() -> None:
    pieces = [(piece.text, piece.is_code) for piece in marked("Empty `history` or ``x = 1``.")]
    assert pieces == [
        ("Empty ", False),
        ("history", True),
        (" or ", False),
        ("x = 1", True),
        (".", False),
    ]


def test_a_term_has_its_definition_as_plain_text() -> None:
    assert 'data-tip="a function that runs on a device."' in term("kernel", "Kernels")
    assert "`" not in term("operator")
    assert "&#34;" in term("region")


def test_reports_are_named_by_rank_or_by_path() -> None:
    def named(*changes: dict[str, object]) -> list[str]:
        pages = [
            page_of(replace(reports.build_gpu_report(), source=reports.source(**change)))
            for change in changes
        ]
        return re.findall(r"<option [^>]*>([^<]+)</option>", html.together(pages).decode())

    assert named({"rank": 0}, {"rank": 1}) == ["rank 0", "rank 1"]
    assert named({"path": "/runs/a/t.json"}, {"path": "/runs/b/t.json"}) == ["a/t.json", "b/t.json"]
    traces: list[dict[str, object]]
    traces = [{"path": f"/a/{name}.1795206889653.pt.trace.json.gz"} for name in ("b", "c")]
    assert named(*traces) == ["b", "c"]
    assert named(traces[0], traces[0])[0].endswith(".gz")
    assert named({"path": ""}, {"path": ""}) == ["report 1", "report 2"]


def test_a_combined_page_allows_every_inner_script() -> None:
    pages = [page_of(reports.build_snapshot_report(n)) for n in (1, 2, 1)]
    joined = html.together(pages)
    assert len(joined) < sum(map(len, pages))
    outer = Parts(joined)
    for page in pages:
        for name in re.findall(r"'sha256-[^']+'", Parts(page).policy):
            assert name in outer.policy


@pytest.mark.parametrize("text", reports.HOSTILE, ids=range(len(reports.HOSTILE)))
def test_hostile_names_add_nothing_to_a_combined_page(text: str) -> None:
    plain = page_of(reports.build_hostile_report("plain"))
    joined = Parts(html.together([page_of(reports.build_hostile_report(text)), plain]))
    expected = Parts(html.together([plain, plain]))
    assert len(joined.scripts) == len(expected.scripts)
    assert joined.policy == expected.policy
    assert joined.handlers == []


def test_a_combined_page_is_deterministic() -> None:
    pages = [page_of(reports.build_gpu_report()), page_of(reports.build_cpu_report())]
    assert html.together(pages) == html.together(pages)
