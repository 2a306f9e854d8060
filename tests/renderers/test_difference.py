"""A comparison in each format: the same figures, and nothing that a terminal or browser runs."""

import json
import re
import unicodedata
from dataclasses import replace

import pytest

import profkit
from profkit.errors import UsageError
from profkit.model.difference import SCHEMA, Change, ChangeKind, Difference, Figure, NotCompared
from profkit.model.location import Frame, Location
from tests.renderers import reports
from tests.renderers.products import Page

GIB = 1 << 30
FORMATS = ("text", "md", "json", "html", "fragment")


def change(
    kind: ChangeKind, before: int, after: int, line: int = 12, device: str = "cuda:0"
) -> Change:
    memory = kind == "memory"

    return Change(
        status="worse" if after > before else "better",
        kind=kind,
        name="" if memory else "gemm",
        location=Location(file="/home/me/train.py", line=line, function="step"),
        before_line=None,
        device=device if memory else None,
        unit="bytes" if memory else "ns",
        before=before,
        after=after,
        per_step=not memory,
        n_before=2,
        n_after=3,
        stack=(Frame("/home/me/train.py", line, "step"),) if memory else (),
    )


def difference(**changed: object) -> Difference:
    whole = Difference(
        profkit="0.1.0",
        before=reports.source(path="/home/me/a.snapshot.pickle.gz", kind="snapshot"),
        after=reports.source(path="/home/me/b.snapshot.pickle.gz", kind="snapshot"),
        figures=(Figure("active_bytes", "cuda:0", "bytes", GIB, 3 * GIB),),
        changes=(change("memory", GIB, 3 * GIB), change("kernel", 5_000_000, 2_000_000, line=40)),
        not_compared=(NotCompared("MEM001", "before", "The recording has no steps."),),
        notes=("Times are hard to compare.",),
    )
    return replace(whole, **changed)  # type: ignore[arg-type]


def shown(what: Difference, name: str = "text", **options: object) -> str:
    return profkit.render(what, name, **options).decode()


def test_the_text_begins_with_the_headline() -> None:
    lines = shown(difference(), base="/home/me").splitlines()
    assert lines[0] == "profkit 0.1.0 · a.snapshot.pickle.gz → b.snapshot.pickle.gz"
    assert " ".join(lines[2:4]) == (
        "Active memory on cuda:0 is 3.00 GiB instead of 1.00 GiB: 2.00 GiB (200%) more. "
        "Largest change: train.py:12, +2.00 GiB."
    )


def test_the_largest_change_is_of_a_line_over_all_its_stacks_on_the_device() -> None:
    changes = (
        change("memory", 3 * GIB, 0),
        change("memory", 0, 5 * GIB, line=14, device="cuda:1"),
        change("memory", 0, 4 * GIB),
        change("memory", 0, 2 * GIB, line=13),
    )
    text = " ".join(shown(difference(changes=changes)).split())
    assert "Largest change: train.py:13, +2.00 GiB." in text
    moved = (change("memory", 2 * GIB, 0), change("memory", 0, 2 * GIB))
    assert "Largest" not in shown(difference(changes=moved))


def test_a_change_for_the_worse_is_red_and_one_for_the_better_green() -> None:
    lines = shown(difference(), color=True).splitlines()
    (active,) = (line for line in lines if "active" in line and "cuda:0" in line and "%" in line)
    assert "\x1b[31m+2.00 GiB" in active
    (kernel,) = (line for line in lines if "better" in line)
    assert "\x1b[32m-3.00 ms" in kernel
    neutral = Figure("n_segments", "cuda:0", "count", 1, 9)
    lines = shown(difference(figures=(neutral,), changes=()), color=True).splitlines()
    assert not [line for line in lines if "\x1b[3" in line]


def test_a_kernel_that_is_new_or_gone_is_neither_better_nor_worse() -> None:
    fused = replace(change("kernel", 0, 3_000_000), status="new")
    gone = replace(change("kernel", 5_000_000, 0), status="fixed")
    finding = replace(change("finding", 0, 3_000_000), status="new")
    lines = shown(difference(changes=(fused, gone, finding), figures=()), color=True).splitlines()
    coloured = [line for line in lines if "\x1b[3" in line]
    assert len(coloured) == 1
    assert "\x1b[31m+3.00 ms" in coloured[0]


@pytest.mark.parametrize("name", ["text", "md"])
def test_each_change_has_its_amount_and_its_source_line(name: str) -> None:
    text = shown(difference(), name, base="/home/me")
    (memory,) = [line for line in text.splitlines() if "2 to 3 blocks" in line]
    assert "+2.00 GiB" in memory
    assert "train.py:12 in step" in memory
    (kernel,) = [line for line in text.splitlines() if "gemm" in line]
    assert "-3.00 ms per step" in kernel
    assert "train.py:40 in step" in kernel


def test_a_line_that_moved_is_shown_with_its_line_number_before() -> None:
    moved = replace(change("memory", 0, GIB), before_line=9)
    assert "train.py:12 in step, was line 9" in shown(difference(changes=(moved,)))


def test_skipped_checks_and_notes_are_shown() -> None:
    text = shown(difference())
    assert "before: The recording has no steps. (MEM001)" in text
    assert "Times are hard to compare." in text


def test_verbose_shows_stacks() -> None:
    stack = "    train.py:12 in step\n"
    assert stack in shown(difference(), verbose=True, base="/home/me")
    assert stack not in shown(difference(), base="/home/me").replace(f"  {stack}", "")
    in_cell = "`train.py:12 in step`<br>`train.py:12 in step`"
    assert in_cell in shown(difference(), "md", verbose=True, base="/home/me")


def test_top_changes_are_shown_and_the_rest_are_counted() -> None:
    many = tuple(change("memory", 0, GIB - n, line=n + 1) for n in range(30))
    text = shown(difference(changes=many), top=4)
    assert text.count("train.py:") == 1 + 4  # one in the first sentence
    assert "… and 26 more (--top 30 shows all)" in text
    assert "… and" not in shown(difference(changes=many), verbose=True)
    figures = tuple(Figure(f"n_{n}", None, "count", n, n + 1) for n in range(11))
    assert "… and 2 more (--verbose shows all)" in shown(difference(figures=figures))


def test_without_unicode_the_text_is_ascii() -> None:
    assert shown(difference(), unicode=False).isascii()


def test_figures_of_one_side_only_are_not_zero() -> None:
    only = Figure("peak_bytes", "cpu", "bytes", None, GIB)
    text = shown(difference(figures=(only,), changes=()))
    (row,) = [line for line in text.splitlines() if "cpu peak" in line]
    assert row.split() == ["cpu", "peak", "?", "1.00", "GiB"]


def test_recordings_with_nothing_in_common_have_a_headline() -> None:
    assert "The recordings have no figures in common." in shown(difference(figures=(), changes=()))


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("text", reports.HOSTILE, ids=range(len(reports.HOSTILE)))
def test_hostile_names_reach_no_terminal(name: str, text: str) -> None:
    place = Location(file=text or "x", line=3, function=text, op=text)
    hostile = difference(
        before=reports.source(path=text),
        changes=(
            replace(change("memory", 0, 1), location=place, stack=(Frame(text, 1, text),)),
            replace(change("kernel", 0, 1), name=text, location=place),
            replace(change("finding", 0, 1), name=text, location=place),
        ),
        notes=(text,),
        not_compared=(NotCompared(text, "after", text),),
    )

    for verbose in (False, True):
        written = shown(hostile, name, verbose=verbose)
        dangerous = [
            char
            for char in written
            if char not in "\n\u200d" and unicodedata.category(char) in {"Cc", "Cf", "Zl", "Zp"}
        ]
        if name == "json":
            assert len(json.loads(written)["changes"]) == 3
            dangerous = [char for char in dangerous if ord(char) < 32]
        assert dangerous == []


def test_every_amount_in_the_text_is_in_the_json() -> None:
    tree = json.loads(shown(difference(), "json"))
    amounts = [figure[side] for figure in tree["figures"] for side in ("before", "after")]
    amounts += [change["after"] - change["before"] for change in tree["changes"]]
    text = shown(difference())
    for written in re.findall(r"([\d.]+) GiB", text):
        assert any(abs(abs(n) / GIB - float(written)) < 0.01 for n in amounts if n)
    assert tree["schema"] == SCHEMA


def test_a_markdown_table_survives_bars_in_names() -> None:
    barred = replace(change("kernel", 0, 10), name="a|b`c")
    (row,) = [
        line for line in shown(difference(changes=(barred,)), "md").splitlines() if "b`c" in line
    ]
    assert len(re.findall(r"(?<!\\)\|", row)) == 5


def test_it_has_a_representation_in_text_and_markdown() -> None:
    assert str(difference()) == shown(difference()).rstrip("\n")
    assert difference()._repr_markdown_() == shown(difference(), "md").rstrip("\n")


def test_other_formats_are_usage_errors() -> None:
    with pytest.raises(UsageError, match="A comparison has no format 'sarif'"):
        profkit.render(difference(), "sarif")


@pytest.mark.parametrize("width", [40, 60, 80, 120, 200])
def test_no_line_is_wider_than_the_terminal_and_no_figure_or_line_number_is_cut(width: int) -> None:
    file, function = f"/opt/{'folder/' * 12}a_long_name_of_a_file.py", "function" * 9
    deep = Location(file=file, line=1234, function=function)
    changes = tuple(replace(change, location=deep) for change in difference().changes)
    text = shown(difference(changes=changes), width=width)
    assert [line for line in text.splitlines() if len(line) > width] == []
    assert text.count(":1234") == len(changes) + 1  # the headline names the largest
    assert re.search(r"1\.00 GiB +3\.00 GiB +\+2\.00 GiB", text)
    assert not re.search(r"\d\n\s*(GiB|ms)", text)


@pytest.mark.parametrize("name", ["html", "fragment"])
@pytest.mark.parametrize("text", reports.HOSTILE, ids=range(len(reports.HOSTILE)))
def test_hostile_names_add_no_element(name: str, text: str) -> None:
    pages = []
    for word in ("harmless words", f'{text}"><script>alert(1)</script><img src=x>'):
        place = Location(file=word, line=3, function=word, op=word)
        hostile = difference(
            before=reports.source(path=word),
            changes=(replace(change("kernel", 0, 1), name=word, location=place),),
            notes=(word,),
            not_compared=(NotCompared(word, "after", word),),
        )
        page = Page()
        page.feed(shown(hostile, name, verbose=True))
        assert page.open == []
        pages.append(page)
    assert pages[1].elements <= pages[0].elements


def test_the_page_runs_and_fetches_nothing() -> None:
    page = shown(difference(), "html")
    assert page.startswith("<!doctype html>")
    assert "default-src 'none'" in page
    assert "<script" not in page
    assert not re.search(r"(src|href)=", page)


@pytest.mark.parametrize("name", ["html", "fragment"])
def test_markup_has_the_figures_of_the_text(name: str) -> None:
    page = Page()
    page.feed(shown(difference(), name))
    words = " ".join(" ".join(page.words).split())
    assert "2.00 GiB (200%) more" in words
    assert "1.00 GiB 3.00 GiB +2.00 GiB +200%" in words
    assert "train.py:12 in step" in words
    assert "Times are hard to compare." in words
    assert "before: The recording has no steps. (MEM001)" in words


def test_the_count_and_the_time_of_copies_have_different_labels() -> None:
    figures = (
        Figure("memcpy_ns", "cuda:0", "ns", 1000, 2000),
        Figure("n_memcpy", "cuda:0", "count", 1, 2),
    )
    text = shown(difference(figures=figures))
    assert "cuda:0 copies  " in text
    assert "cuda:0 number of copies" in text


def test_rules_that_were_skipped_for_one_reason_are_on_one_line() -> None:
    reason = "No kernels or copies of a GPU were recorded."
    skipped = [NotCompared(rule, "before", reason) for rule in ("KER001", "KER002", "KER003")]
    not_compared = NotCompared("SYN001", "after", reason)
    shown = profkit.render(
        replace(
            profkit.compare(reports.build_gpu_report(), reports.build_gpu_report()),
            not_compared=(*skipped, not_compared),
        ),
        "text",
    ).decode()
    assert f"- before: {reason} (KER001 to KER003)" in shown
    assert f"- after: {reason} (SYN001)" in shown
