"""The HTML report in a browser, from a file, without network access."""

import re
from html import escape
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from profkit.api import render, study, what_if
from profkit.cli.main import main
from profkit.renderers import html
from profkit.units import format_bytes, format_count, format_ns, format_number, format_share
from tests.browser.pages import Opener, violations
from tests.engine.test_what_if import reading
from tests.renderers import reports

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pages")


@pytest.fixture(scope="module")
def recorded(folder: Path) -> Path:
    """Return the page of a recorded trace, with timeline and flame graphs."""
    (trace,) = (ROOT / "traces" / "starved_loader").glob("*.pt.trace.json.gz")
    studied = study(trace)
    path = folder / "recorded.html"
    path.write_bytes(render(studied.report, "html", recording=studied.recording))
    return path


@pytest.fixture(scope="module")
def crowded(folder: Path) -> Path:
    """Return the page of a report with ten thousand findings."""
    path = folder / "crowded.html"
    path.write_bytes(render(reports.many_findings(), "html"))
    return path


def test_it_opens_from_a_file_without_requests_or_errors(opened: Opener, recorded: Path) -> None:
    page = opened(recorded)
    expect(page.locator("h1")).to_contain_text(" step")
    for chart in page.locator(".chart").all():
        chart.scroll_into_view_if_needed()
        expect(chart).to_have_attribute("data-drawn", "true")


def test_an_address_with_a_broken_fragment_opens_the_page(opened: Opener, recorded: Path) -> None:
    address = recorded.as_uri()
    page = opened(f"{address}#%", allowed=(address,))
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    expect(page.locator("main details:not([open])")).to_have_count(0)


def test_only_what_a_reader_needs_first_is_open(opened: Opener, recorded: Path) -> None:
    page = opened(recorded, unfolded=False)
    folded = page.locator("main > section:has(> details.fold:not([open]))")
    ids = folded.evaluate_all("(all) => all.map((section) => section.id)")
    open_ids = page.locator("main > section:not(:has(> details.fold))").evaluate_all(
        "(all) => all.map((section) => section.id)"
    )
    assert open_ids == ["overview", "findings", "timeline"]
    assert {"critical-path", "steps", "flames", "memory", "tables", "recording"} <= set(ids)
    for section in folded.all():
        expect(section.locator("summary span").first).not_to_be_empty()
    assert page.evaluate("document.documentElement.scrollHeight") < 4 * 900


def test_links_open_folded_sections_and_draw_them(opened: Opener, recorded: Path) -> None:
    page = opened(recorded, unfolded=False, reduced_motion="reduce")
    chart = page.locator("#steps-chart svg")
    expect(chart).to_be_hidden()
    link = page.get_by_role("navigation", name="Sections").get_by_role("link", name="Steps")
    link.click()
    expect(chart).to_be_visible()
    width = page.locator("#steps-chart").bounding_box()

    drawn = chart.bounding_box()
    assert width is not None
    assert drawn is not None
    assert drawn["width"] == pytest.approx(width["width"], abs=2)

    page.locator("#steps summary").click()
    expect(chart).to_be_hidden()
    link.click()
    expect(chart).to_be_visible()
    page.goto(f"{recorded.as_uri()}#flames")
    expect(page.locator("#flame-view canvas")).to_be_visible()


def test_a_flame_graph_unfolds_as_a_tree_of_shares(
    opened: Opener, recorded: Path, axe: str
) -> None:
    page = opened(recorded)
    fold, rows = page.locator("#flame-rows"), page.locator("#flame-rows tbody tr")
    expect(page.locator("#flame-view")).to_have_attribute("data-drawn", re.compile(r"\d"))
    assert rows.count() == 0  # nothing is drawn until the reader asks for it

    fold.locator("> summary").click()
    expect(rows).not_to_have_count(0)
    first = rows.first.locator("button")
    if first.get_attribute("aria-expanded") == "true":
        first.click()
    n_roots = rows.count()
    first.press("Enter")
    expect(first).to_have_attribute("aria-expanded", "true")
    inner = fold.locator("tbody tr[data-level='2']")
    shares = [float(text.strip("<%")) for text in inner.locator(".share").all_inner_texts()]
    assert shares == sorted(shares, reverse=True)
    assert 0 < sum(shares) <= 100.5

    second = inner.first.locator("button")
    second.click()
    expect(fold.locator("tbody tr[data-level='3']")).not_to_have_count(0)
    assert violations(page, axe) == []
    first.click()
    expect(rows).to_have_count(n_roots)

    page.locator("#flame-inverted").check()
    expect(rows.first).not_to_have_text(re.compile("starved_loader.py"))


def test_the_policy_blocks_every_request(opened: Opener, recorded: Path) -> None:
    page = opened(recorded, expected=("Content Security Policy",))
    script = """async () => {
        const refused = new Promise((resolve) => document.addEventListener(
            'securitypolicyviolation', (event) => resolve(event.effectiveDirective)));
        const image = new Image();
        image.src = 'https://example.org/pixel.png';
        return refused;
    }"""
    assert page.evaluate(script) == "img-src"


def test_the_policy_blocks_other_scripts(opened: Opener, recorded: Path) -> None:
    page = opened(recorded, expected=("Content Security Policy",))
    page.evaluate(
        "document.body.append(Object.assign(document.createElement('script'), "
        "{textContent: 'window.ran = true'}))"
    )
    assert page.evaluate("window.ran") is None


@pytest.mark.parametrize(
    "numbers",
    [
        range(-2000, 2001),
        [10**k + d for k in range(16) for d in (-1, 0, 1, 499, 500, 5 * 10 ** max(k - 3, 0))],
    ],
)
def test_figures_are_formatted_as_in_every_other_format(
    opened: Opener, recorded: Path, numbers: list[int]
) -> None:
    values = [*numbers]
    shares = [value / 1999 for value in values[:4000]] + [0.0995, 0.00995, 0.125, 0.0005, 0.001]

    formatted = opened(recorded).evaluate(
        """([values, shares]) => [values.map(profkit.formatNs), values.map(profkit.formatBytes),
        values.map(profkit.formatCount), shares.map(profkit.formatShare),
        shares.map((share) => profkit.formatNumber(Math.abs(share) * 200))]""",
        [values, shares],
    )
    assert formatted == [
        [format_ns(value) for value in values],
        [format_bytes(value) for value in values],
        [format_count(value) for value in values],
        [format_share(share) for share in shares],
        [format_number(abs(share) * 200) for share in shares],
    ]


def test_a_finding_opens_to_its_fix_and_its_evidence(opened: Opener, recorded: Path) -> None:
    finding = opened(recorded).locator("#finding-1")
    finding.locator("> summary").click()
    expect(finding.locator(".opened")).to_be_hidden()
    finding.locator("> summary").press("Enter")
    expect(finding.locator(".fix")).to_contain_text("num_workers=2")
    expect(finding.locator(".evidence").first).to_contain_text("DAT001")
    expect(finding).to_contain_text("Use instead")
    evidence = finding.locator(".more-evidence")
    expect(evidence.locator("dl")).to_be_hidden()
    evidence.locator("summary").click()
    expect(evidence.locator("dl")).to_be_visible()


def test_arrows_move_between_the_dots_of_the_roofline(opened: Opener, recorded: Path) -> None:
    page = opened(recorded)
    dots = page.locator(".roofline .dot")
    dots.first.focus()
    for key, place in (("ArrowRight", 1), ("ArrowDown", 2), ("ArrowLeft", 1), ("End", -1)):
        page.keyboard.press(key)
        expect(dots.nth(place)).to_be_focused()
        expect(page.locator("#tip")).to_have_text(dots.nth(place).get_attribute("aria-label") or "")
    page.keyboard.press("ArrowRight")
    expect(dots.last).to_be_focused()
    assert page.locator('.roofline .dot[tabindex="0"]').count() == 1


def names_in(page: Page, table: str) -> list[str]:
    return page.locator(f"#{table} tbody tr td:first-child").all_inner_texts()


def test_a_table_sorts_by_any_column_in_both_directions(opened: Opener, recorded: Path) -> None:
    page = opened(recorded)
    table = page.locator("#operators")
    heading = table.locator("th", has_text="Operator")
    heading.get_by_role("button").click()
    assert names_in(page, "operators") == sorted(names_in(page, "operators"), key=str.lower)
    expect(heading).to_have_attribute("aria-sort", "ascending")
    heading.get_by_role("button").press("Enter")
    expect(heading).to_have_attribute("aria-sort", "descending")
    table.get_by_role("button", name="Calls").click()
    calls = [int(text.replace(",", "")) for text in table.locator("td.count").all_inner_texts()]
    assert calls == sorted(calls, reverse=True)
    expect(heading).not_to_have_attribute("aria-sort", "descending")


def test_a_table_search_requires_every_word(opened: Opener, recorded: Path) -> None:
    page = opened(recorded)
    page.get_by_label("Search Operators").fill("conv backward")
    shown_names = names_in(page, "operators")
    assert shown_names
    assert all("conv" in name.lower() and "backward" in name.lower() for name in shown_names)
    expect(page.locator("#operators [role=status]")).to_contain_text(f"{len(shown_names)} of ")
    page.get_by_label("Search Operators").fill("no operator is called this")
    assert names_in(page, "operators") == []


def test_ten_thousand_findings_open_page_and_sort_fast(opened: Opener, crowded: Path) -> None:
    assert crowded.stat().st_size < 6 << 20
    page = opened(crowded)
    rows = page.locator("#more-findings")
    expect(rows.locator("[role=status]")).to_have_text("9,940 rows")
    rows.get_by_label("Next rows of").click()
    expect(rows.locator("tbody tr td").first).to_have_text("76")
    elapsed_ms = page.evaluate(
        """() => {
            const began = performance.now();
            document.querySelectorAll('#more-findings th button')[5].click();
            return performance.now() - began;
        }"""
    )
    assert elapsed_ms < 2000


def test_steps_and_findings_link_to_the_timeline(opened: Opener, recorded: Path) -> None:
    page = opened(recorded, reduced_motion="reduce")
    visible = page.locator("#timeline-range")
    steps = page.locator("#steps-table tbody tr")
    length = steps.nth(1).locator("td.ns").first.inner_text()
    steps.nth(1).get_by_role("button", name="on the timeline").press("Enter")
    expect(visible).to_contain_text(f"{length} of ")
    assert page.evaluate("document.activeElement.closest('section').id") == "timeline"

    chart = page.locator("#steps-chart")
    chart.scroll_into_view_if_needed()
    expect(chart).to_have_attribute("data-drawn", "true")
    box = chart.locator("svg").bounding_box()
    assert box is not None
    page.mouse.click(box["x"] + box["width"] / 4, box["y"] + box["height"] / 2)
    lengths = [row.locator("td.ns").first.inner_text() for row in steps.all()]
    expect(visible).to_contain_text(f"{lengths[0]} of ")
    chart.press("End")
    chart.press("Enter")
    expect(visible).to_contain_text(f"{lengths[-1]} of ")

    # A finding is selected among all of its slices, with what is around it; a button leads back.
    show = page.locator("#finding-1").get_by_role("button", name="Show on the timeline")
    show.click()
    expect(visible).not_to_contain_text(f"{lengths[-1]} of ")
    details = page.locator("#timeline-details")
    expect(details.locator("h3")).to_contain_text("DAT001")
    expect(page.locator("#timeline-findings .found")).to_have_text(re.compile(r"^\d+ of \d+$"))
    page.get_by_role("button", name="Back to where you were").click()
    expect(show).to_be_focused()
    expect(details).to_be_empty()
    expect(visible).to_contain_text(f"{lengths[-1]} of ")


def test_layers_of_memory_are_by_line_or_by_operator(opened: Opener, recorded: Path) -> None:
    page = opened(recorded)
    chart = page.locator("#memory-0")
    chart.scroll_into_view_if_needed()
    expect(chart).to_have_attribute("data-drawn", "true")
    layers = chart.get_by_role("list", name="Colours")
    expect(layers).to_contain_text("starved_loader.py")
    page.locator("input[name=memory-0][value=operator]").check(force=True)
    expect(layers).to_contain_text("aten::")
    expect(layers).not_to_contain_text("starved_loader.py")


def test_pointer_and_keys_show_the_values_of_a_chart(opened: Opener, recorded: Path) -> None:
    page = opened(recorded)
    chart = page.locator("#memory-0")
    chart.locator("svg").hover()
    expect(chart.locator(".slice-tip")).to_contain_text("starved_loader.py")
    page.mouse.move(0, 0)
    expect(chart.locator(".slice-tip")).to_be_hidden()
    steps = page.locator("#steps-chart")

    steps.press("ArrowRight")
    parts = page.evaluate("profkit.data('steps').steps")["series"]
    shown_parts = [(part["label"], format_ns(part["ns"][0])) for part in reversed(parts)]
    total = format_ns(sum(part["ns"][0] for part in parts))
    texts = ", ".join(f"{label} {text}" for label, text in [("Total", total), *shown_parts])
    expect(steps.get_by_role("status")).to_have_text(f"ProfilerStep#3: {texts}")
    steps.press("Escape")
    expect(steps.locator(".slice-tip")).to_be_hidden()


def test_growing_memory_has_a_picture_and_its_holder(opened: Opener, folder: Path) -> None:
    path = folder / "growing.html"
    path.write_bytes(render(reports.watched_report(), "html"))
    finding = opened(path).locator("#finding-1")
    title = "Bytes: 0 B to 600 MiB, steps 1 to 300, 300 objects"
    chart = finding.get_by_role("application", name=title, exact=True)
    expect(chart).to_have_attribute("data-drawn", "true")
    chart.press("End")
    expect(chart.get_by_role("status")).to_have_text("step 300: bytes 600 MiB")
    chart.press("Home")
    expect(chart.get_by_role("status")).to_have_text("step 1: bytes 0 B")
    chain = finding.locator(".chain").first.get_by_role("listitem")
    assert chain.all_inner_texts() == ["history", "[17]", " in main at train.py:12"]


def test_tooltips_show_on_hover_and_focus_and_hide_on_escape(
    opened: Opener, recorded: Path
) -> None:
    page = opened(recorded)
    word = page.locator("#operators .term")
    word.hover()
    expect(page.locator("#tip")).to_contain_text("a PyTorch operator")
    page.mouse.move(0, 0)
    expect(page.locator("#tip")).to_be_hidden()
    word.focus()
    expect(page.get_by_role("tooltip")).to_contain_text("a PyTorch operator")
    expect(word).to_have_attribute("aria-describedby", "tip")
    page.keyboard.press("Escape")
    expect(page.locator("#tip")).to_be_hidden()


def test_the_theme_follows_the_system_and_the_button(opened: Opener, recorded: Path) -> None:
    page = opened(recorded, color_scheme="dark")
    background = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(background)
    page.evaluate("addEventListener('profkit:theme', (event) => { window.theme = event.detail; })")
    page.locator("#theme").click()
    assert page.evaluate(background) == "rgb(255, 255, 255)" != dark
    assert page.evaluate("window.theme") == {"dark": False}
    page.locator("#theme").press("Space")
    assert page.evaluate(background) == dark


def test_the_tab_key_reaches_every_section_in_order(opened: Opener, recorded: Path) -> None:
    page = opened(recorded)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the report"

    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    seen: list[str] = []
    tops: list[float] = []
    for _ in range(400):
        page.keyboard.press("Tab")
        what, top, outline = page.evaluate(
            """() => {
                const at = document.activeElement;
                const section = at.closest('main > section');
                return [section?.id ?? '', section?.getBoundingClientRect().top + scrollY,
                    getComputedStyle(at).outlineStyle];
            }"""
        )
        if not what:
            break
        seen.append(what)
        tops.append(top)
        assert outline != "none" or what in {"timeline", "flames"}
    assert tops == sorted(tops)

    focusable = page.evaluate(
        """() => [...document.querySelectorAll('main > section')]
            .filter((section) => section.querySelector('button, input, summary, [tabindex]'))
            .map((section) => section.id)"""
    )
    assert list(dict.fromkeys(seen)) == focusable


@pytest.mark.parametrize(
    ("which", "theme"),
    [
        ("recorded", "light"), ("recorded", "dark"), ("gpu", "light"), ("snapshot", "dark"),
        ("watched", "light"), ("nothing", "dark"),
    ],
)  # fmt: skip
def test_axe_finds_no_serious_violation(
    opened: Opener, axe: str, recorded: Path, folder: Path, which: str, theme: str
) -> None:
    made = {
        "gpu": reports.build_gpu_report,
        "snapshot": reports.build_snapshot_report,
        "watched": reports.watched_report,
        "nothing": reports.empty_report,
    }
    path = recorded
    if which in made:
        path = folder / f"{which}.html"
        path.write_bytes(render(made[which](), "html"))
    page = opened(path, color_scheme=theme, reduced_motion="reduce")
    for details in page.locator("details").all():
        details.evaluate("(element) => { element.open = true; }")
    assert violations(page, axe) == []


def test_hostile_names_are_only_text(opened: Opener, folder: Path) -> None:
    path = folder / "hostile.html"
    path.write_text("")
    page = opened(path)
    page.on("dialog", lambda dialog: pytest.fail(f"a script ran: {dialog.message}"))
    for text in reports.HOSTILE:
        path.write_bytes(render(reports.build_hostile_report(text), "html"))
        page.reload()
        assert page.locator("main script, main b b, main i b").count() == 0, text[:40]
        expect(page.locator("#kernels tbody tr")).to_have_count(1)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), text[:40]


def test_a_printed_page_is_light_and_open_and_has_no_buttons(
    opened: Opener, recorded: Path
) -> None:
    page = opened(recorded, color_scheme="dark")
    page.locator("#finding-1 > summary").click()
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    page.emulate_media(media="print")
    expect(page.locator("#finding-1 .fix")).to_be_visible()
    expect(page.locator("#operators th").first).to_have_text("Operator")
    expect(page.locator("#operators th button").first).to_be_visible()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    buttons = page.locator("main button:visible, .top button:visible")
    assert buttons.count() == page.locator(".table th button:visible, .lane-names button").count()
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")


@pytest.mark.parametrize("which", ["recorded", "joined"])
def test_nothing_is_blank_or_cut_off_on_paper(
    opened: Opener, request: pytest.FixtureRequest, which: str
) -> None:
    path = request.getfixturevalue(which)
    page = opened(path, allowed=(path.as_uri(), "about:"), viewport={"width": 718, "height": 1046})
    if which == "joined":
        expect(page.locator("#report[data-printable]")).to_have_count(1)
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    page.emulate_media(media="print")
    assert page.locator(".chart").count() > 0

    # They are drawn again, in the width of the paper.
    page.wait_for_function("""[...document.querySelectorAll(".chart")].every((chart) => {
        const box = chart.querySelector("svg path.bar, svg path.layer")?.getBoundingClientRect();
        return box && box.width * box.height > 100;
    })""")
    wide = "[...document.querySelectorAll('.scroll, .chart svg')]"
    cut = f"{wide}.filter((each) => each.scrollWidth > each.clientWidth + 1).length"
    assert page.evaluate(cut) == 0
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.locator("iframe:visible").count() == 0

    if which == "joined":
        finding = page.locator(".printed article")
        expect(finding.locator("h1:visible")).to_have_count(2)
        expect(finding.first.locator(".fix:visible").first).to_contain_text("DataLoader workers")
        expect(finding.last).to_contain_text("aten::addmm")
        page.evaluate("dispatchEvent(new Event('afterprint'))")
        expect(finding).to_have_count(0)


def test_a_narrow_window_does_not_scroll_sideways(opened: Opener, recorded: Path) -> None:
    page = opened(recorded, viewport={"width": 360, "height": 740})
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.fixture(scope="module")
def joined(folder: Path) -> Path:
    """Return the page of two reports."""
    products = [
        render(report, "html")
        for report in (reports.build_gpu_report(), reports.build_cpu_report())
    ]
    path = folder / "together.html"
    path.write_bytes(html.together(products))
    return path


def test_a_combined_page_shows_the_selected_report(opened: Opener, joined: Path) -> None:
    page = opened(joined, allowed=(joined.as_uri(), "about:"))
    assert len(names_in(page, "side-by-side")) == 2
    frame = page.frame_locator("#selected-page")
    expect(frame.locator("h1")).to_contain_text("each 174 ms step")
    page.locator("#selected-report").select_option(index=1)
    expect(frame.locator("h1")).to_contain_text("CPU")
    page.locator("#theme").click()
    theme = page.evaluate("document.documentElement.dataset.theme")
    expect(frame.locator("html")).to_have_attribute("data-theme", theme)


def test_axe_finds_no_serious_violation_in_a_combined_page(
    opened: Opener, axe: str, joined: Path
) -> None:
    page = opened(joined, allowed=(joined.as_uri(), "about:"), color_scheme="dark")
    expect(page.locator("#parts-chart, #side-by-side").first).to_be_visible()
    assert violations(page, axe, frames=False) == []


def test_it_works_in_a_sandboxed_frame(opened: Opener, folder: Path) -> None:
    inner = escape(render(reports.build_gpu_report(), "html").decode(), quote=True)
    path = folder / "framed.html"
    # Without a charset the browser guesses one from what it has read first.
    frame_html = f'<iframe sandbox="allow-scripts" srcdoc="{inner}"></iframe>'
    path.write_text(f'<!DOCTYPE html><meta charset="utf-8">{frame_html}', encoding="utf-8")
    page = opened(path, allowed=(path.as_uri(), "about:"))
    frame = page.frame_locator("iframe")
    frame.locator("#tables summary").first.click()
    frame.locator("#kernels th button").first.click()
    expect(frame.locator("#kernels th").first).to_have_attribute("aria-sort", "ascending")
    frame.locator("#theme").click()
    expect(frame.locator("html")).to_have_attribute("data-theme", "dark")


def predicted(folder: Path, name: str, lines: tuple[int, ...]) -> tuple[Path, Path]:
    """Return a trace with a finding at each of some lines, and its page."""
    trace = reading(lines).write(folder / f"{name}.pt.trace.json")
    studied = study(trace)
    assert len(studied.report.findings) == len(lines)
    path = folder / f"{name}.html"
    path.write_bytes(render(studied.report, "html", recording=studied.recording))
    return trace, path


def test_switches_show_the_predicted_time_of_any_combination(opened: Opener, folder: Path) -> None:
    trace, path = predicted(folder, "switches", (41, 43, 45))
    page = opened(path)
    section = page.locator("#what-if")
    output = section.locator("[data-predicted]")
    rows = section.locator("tbody tr")
    places = [f"SYN001@{text}" for text in rows.locator("code").all_inner_texts()]
    recorded = what_if(trace, remove=places).before_ns
    expect(output).to_have_text(f"{format_ns(recorded)}, as recorded")

    for chosen in ([0], [1], [0, 1], [0, 2], [0, 1, 2]):
        for number, box in enumerate(section.get_by_role("checkbox").all()):
            box.set_checked(number in chosen)
        result = what_if(trace, remove=[places[number] for number in chosen])
        assert result.saving_ns > 0
        share = format_share(result.saving_ns / recorded)
        text = f"{format_ns(result.after_ns)}, {format_ns(result.saving_ns)} or {share} less than "
        best = result.min_after_ns
        more = f"; at best {format_ns(best)}" if best < result.after_ns else ""
        expect(output).to_have_text(text + format_ns(recorded) + more)


def test_combinations_that_were_not_replayed_are_between_stated_bounds(
    opened: Opener, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("profkit.engine.what_if._MAX_NODES", 12 * 2 * 3_500)
    trace, path = predicted(folder, "bounds", (41, 43, 45, 47))
    section = opened(path).locator("#what-if")
    places = [f"SYN001@{text}" for text in section.locator("tbody code").all_inner_texts()]
    boxes = section.get_by_role("checkbox").all()
    for box in boxes[:3]:
        box.check()
    pairs = [
        what_if(trace, remove=pair).after_ns
        for pair in ([places[0], places[1]], [places[0], places[2]], [places[1], places[2]])
    ]

    least, most = what_if(trace, remove=places).min_after_ns, min(pairs)
    assert least <= what_if(trace, remove=places[:3]).after_ns <= most

    expect(section.locator("[data-predicted]")).to_have_text(
        f"between {format_ns(least)} and {format_ns(most)} (estimate)"
    )
    boxes[3].check()
    expect(section.locator("[data-predicted]")).to_contain_text("less than")


@pytest.mark.parametrize("width", [400, 2_000])
def test_tables_without_scripts_keep_their_names_readable_and_scroll_alone(
    opened: Opener, folder: Path, width: int
) -> None:
    path = folder / f"fragment-{width}.html"
    path.write_bytes(render(reports.build_gpu_report(), "fragment", is_page=True))
    page = opened(path, viewport={"width": width, "height": 900})
    for details in page.locator("details").all():
        details.evaluate("each => { each.open = true; }")
    assert page.evaluate("document.documentElement.scrollWidth") == width
    tables = page.locator(".pk-scroll")
    assert tables.count() >= 3
    for table in tables.all():
        box = table.locator("td").first.bounding_box()
        assert box is not None
        assert box["width"] >= 100
        assert table.get_attribute("tabindex") == "0"  # it scrolls by keyboard


def test_the_page_of_a_comparison_says_what_it_compares_once(opened: Opener, folder: Path) -> None:
    before, after = (
        next((ROOT / "traces" / name).glob("*.pt.trace.json.gz"))
        for name in ("starved_loader", "starved_loader_cured")
    )
    path = folder / "difference.html"
    arguments = ["diff", str(before), str(after), "--format", "html", "-o", str(path)]
    assert main(arguments) == 0
    page = opened(path, viewport={"width": 400, "height": 900}, color_scheme="dark")
    heading = page.locator("h1").inner_text()
    assert page.locator("main").inner_text().count(heading) == 1
    assert page.locator(".origin").inner_text().count(".pt.trace.json.gz") == 2
    assert page.evaluate("document.documentElement.scrollWidth") == 400
