"""Slices and flame graphs of a recording, decoded from the page and compared to the source."""

import base64
import gzip
import json
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from profkit.api import AnalysisResult, render, study
from profkit.index.level_of_detail import build_levels, coarser
from profkit.model.events import MISSING, NO_ROW
from profkit.model.timeline import Level, Slices, Timeline, TimelineLane
from profkit.present.flames import flames
from profkit.present.timeline import build_timeline
from profkit.renderers.html import _packed_columns
from profkit.renderers.html.flames import sum_by_site
from profkit.renderers.html.timeline import fit_levels, pack_arguments
from profkit.testing import TraceBuilder

HOSTILE = "</script><img src=x onerror=alert(1)>\x1b[31m\u202egnp"


@pytest.fixture(scope="module")
def studied(tmp_path_factory: pytest.TempPathFactory) -> AnalysisResult:
    b = TraceBuilder(stacks=True, memory=True)
    for turn in range(150):
        with b.step(), b.frame("train.py", 3, HOSTILE):
            for _ in range(24):
                b.launch(
                    HOSTILE,
                    kernel=f"void gemm<{turn % 3}>(int)",
                    host_ns=9_000,
                    device_ns=3_000 + 17 * turn,
                )
            b.item()
            b.advance(3_000_000)
            b.free(b.alloc(1 << 20))
    return study(b.write(tmp_path_factory.mktemp("traces") / "t.json"))


@pytest.fixture(scope="module")
def page(studied: AnalysisResult) -> str:
    return render(studied.report, "html", recording=studied.recording).decode()


def data(page: str, section: str) -> dict[str, Any]:
    match = re.search(rf'id="data-{section}">(.*?)</script>', page, re.DOTALL)
    assert match is not None
    read: dict[str, Any] = json.loads(match[1])
    if "gzip" in read:
        read = json.loads(gzip.decompress(base64.b64decode(read["gzip"])))
    return read


def numbers(packed: dict[str, Any]) -> list[list[int]]:
    """Columns, decoded one number at a time."""
    raw = base64.b64decode(packed["text"])
    if not packed["plain"]:
        raw = gzip.decompress(raw)
    at, columns = 0, []
    for n, width in zip(packed["n"], packed["widths"], strict=True):
        columns.append(
            [int.from_bytes(raw[at + i : at + n * width : n], "little") for i in range(n)]
        )
        at += n * width
    assert at == len(raw)
    return columns


@given(st.lists(st.lists(st.integers(0, 2**63 - 1) | st.integers(0, 300), max_size=30), max_size=4))
def test_packed_integers_round_trip(columns: list[list[int]]) -> None:
    for plain in (True, False):
        packed = _packed_columns.pack_columns(
            [np.array(column, np.int64) for column in columns], plain=plain
        )
        assert numbers(packed) == columns


def slices_of(level: dict[str, Any], start_ns: int) -> list[tuple[int, ...]]:
    gaps, spans, sites, other_counts, rests, longests = map(iter, numbers(level["packed"]))
    slices: list[tuple[int, ...]] = []
    for row, count in enumerate(level["rows"]):
        at = start_ns
        for _ in range(count):
            start = at + next(gaps)
            at = start + next(spans)
            n = next(other_counts) + 1
            busy = at - start - (next(rests) if n > 1 else 0)
            longest = next(longests) if n > 1 else at - start
            slices.append((row, start, at, busy, n, longest, next(sites)))
    return slices


def tuples(slices: Slices) -> list[tuple[int, ...]]:
    columns = (
        slices.row,
        slices.start_ns,
        slices.end_ns,
        slices.busy_ns,
        slices.n,
        slices.longest_ns,
        slices.site,
    )
    return list(zip(*(column.tolist() for column in columns), strict=True))


def timeline_of(studied: AnalysisResult) -> Timeline:
    shown = build_timeline(studied.recording.context, studied.report)
    assert shown is not None
    return shown


def test_the_page_has_every_slice_of_every_level(studied: AnalysisResult, page: str) -> None:
    written, shown = data(page, "timeline")["timeline"], timeline_of(studied)
    assert len(shown.levels) > 1
    assert [level["resolutionNs"] for level in written["levels"]] == [
        level.resolution_ns for level in shown.levels
    ]
    for written_level, level in zip(written["levels"], shown.levels, strict=True):
        assert slices_of(written_level, written["startNs"]) == tuples(level.slices)
    assert written["levels"][-1]["packed"]["plain"]
    assert [lane["busyNs"] for lane in written["lanes"]] == [lane.busy_ns for lane in shown.lanes]


def summed(differences: list[int]) -> Iterator[int | None]:
    """Yield the numbers of differences, positive and negative in turn; None for none."""
    value = 0
    for difference in differences:
        if difference:
            value += -(difference // 2) if difference % 2 == 0 else (difference - 1) // 2
        yield value if difference else None


def test_every_event_on_the_page_has_its_ids_and_its_launch(
    studied: AnalysisResult, page: str
) -> None:
    written, (finest, *_) = data(page, "timeline")["timeline"], timeline_of(studied).levels
    packed, event = written["arguments"], finest.slices.event.tolist()
    assert packed["isWhole"]

    columns = {name: numbers(column)[0] for name, column in packed["columns"].items()}
    launch, correlation, external_id = (
        list(summed(columns[name])) for name in ("launch", "correlation", "externalId")
    )
    events, launches = studied.recording.context.events, studied.recording.context.launches
    launch_of = dict(zip(launches.work.tolist(), launches.launch.tolist(), strict=True))
    n_launched = 0
    for place, row in enumerate(event):
        if row == NO_ROW:
            assert (columns["set"][place], correlation[place], launch[place]) == (0, None, None)
            continue
        ids = [
            int(column.at(np.array([row]))[0])
            for column in (events.correlation, events.external_id)
        ]
        correlation_id = correlation[place]
        if (called := launch[place]) is not None:
            n_launched += 1
            assert event[called] == launch_of[row]
            assert correlation_id is None
            correlation_id = correlation[called]
        assert [
            MISSING if value is None else value for value in (correlation_id, external_id[place])
        ] == ids
        parts = [packed["texts"][number] for number in packed["sets"][columns["set"][place] - 1]]
        stream = int(events.stream.at(np.array([row]))[0])
        assert dict(zip(parts[::2], parts[1::2], strict=True)).get("Stream") == (
            None if stream == MISSING else str(stream)
        )
    assert n_launched == len(launch_of)


def test_arguments_beyond_the_limit_of_the_page_are_left_out(
    studied: AnalysisResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    slices = timeline_of(studied).levels[0].slices
    whole = pack_arguments(studied.recording.context, slices)
    size = sum(len(column["text"]) for column in whole["columns"].values())
    monkeypatch.setattr("profkit.renderers.html.timeline.MAX_ARGUMENT_CHARACTERS", size - 1)
    less = pack_arguments(studied.recording.context, slices)
    assert not less["isWhole"]
    assert list(less["columns"]) == list(whole["columns"])[:-1]


def test_a_page_that_is_too_large_merges_more_slices(studied: AnalysisResult) -> None:
    shown = timeline_of(studied)
    whole = fit_levels(shown, 10_000_000)
    assert [candidate.level.resolution_ns for candidate in whole] == [
        level.resolution_ns for level in shown.levels
    ]
    limit = whole[0].n_characters
    less = fit_levels(shown, limit)
    assert sum(candidate.n_characters for candidate in less) <= limit
    assert less[0].level.resolution_ns > 0
    for fitted in less:
        assert fitted.level.slices.n.sum() == shown.levels[0].slices.n.sum()
        assert fitted.level.slices.busy_ns.sum() == shown.levels[0].slices.busy_ns.sum()


def adjacent_slices(row: int, n: int, rng: np.random.Generator) -> Slices:
    """Slices of one row without gaps, of random lengths and sites."""
    ends = np.cumsum(rng.integers(1, 2_000_000 // n, n))
    starts = np.concatenate(([0], ends[:-1]))
    ones, site = np.ones(n, dtype=np.int64), rng.integers(0, 200, n).astype(np.int32)
    row_of = np.full(n, row, dtype=np.int32)
    return Slices(row_of, starts, ends, ends - starts, ones, ends - starts, site, site)


def test_the_critical_path_is_merged_before_the_events_that_it_consists_of() -> None:
    rng = np.random.default_rng(0)
    path, events = adjacent_slices(0, 20_000, rng), adjacent_slices(1, 10_000, rng)
    both = Slices(
        *(
            np.concatenate((getattr(path, field.name), getattr(events, field.name)))
            for field in fields(Slices)
        )
    )
    lanes = (
        TimelineLane("path", "critical path", 0, 1, 20_000, 0),
        TimelineLane("thread", "thread 1", 1, 1, 10_000, 0),
    )
    shown = Timeline(0, int(both.end_ns.max()), lanes, (), build_levels(both, 2_000_000), ())

    whole = fit_levels(shown, 1_000_000)
    assert [candidate.level for candidate in whole] == list(shown.levels)

    limit = whole[0].n_characters * 3 // 4
    fitted = fit_levels(shown, limit)
    assert sum(candidate.n_characters for candidate in fitted) <= limit

    finest, path_ns = fitted[0].level, fitted[0].path_ns
    assert (finest.resolution_ns, len(fitted)) == (0, 2)
    is_path = finest.slices.row == 0
    assert tuples(finest.slices.of(np.flatnonzero(~is_path))) == tuples(events)

    merged = finest.slices.of(np.flatnonzero(is_path))
    assert tuples(merged) == tuples(coarser(path, path_ns))
    assert 1_000 < len(merged) < 20_000


def test_a_single_level_is_merged_until_it_fits(studied: AnalysisResult) -> None:
    shown = timeline_of(studied)
    only = Timeline(
        shown.start_ns,
        shown.end_ns,
        shown.lanes,
        shown.sites,
        (Level(0, shown.levels[0].slices),),
        shown.steps,
    )
    (fitted,) = fit_levels(only, 2_000)
    assert fitted.n_characters <= 2_000
    assert fitted.level.slices.n.sum() == shown.levels[0].slices.n.sum()


def test_hostile_names_are_escaped(page: str) -> None:
    assert HOSTILE not in page
    assert "<img src=x" not in page
    texts = data(page, "timeline")["timeline"]["sites"]["texts"]
    assert any("<img src=x onerror=alert(1)>\\x1b[31m\\u202egnp" in text for text in texts)


def test_very_long_names_are_cut(tmp_path: Path) -> None:
    b = TraceBuilder()
    b.compute("x" * 100_000, 1_000)
    result = study(b.write(tmp_path / "t.json"))
    page = render(result.report, "html", recording=result.recording).decode()
    assert max(map(len, data(page, "timeline")["timeline"]["sites"]["texts"])) <= 240
    names = data(page, "flames")["flames"][0]["sites"]["name"]
    assert max(map(len, names)) <= 240


def test_the_page_has_every_node_of_every_flame_graph(studied: AnalysisResult, page: str) -> None:
    made = {flame.name: flame for flame in flames(studied.recording.context)}
    written = data(page, "flames")["flames"]
    assert written[0]["name"] == "host-line"
    assert sorted(flame_data["name"] for flame_data in written) == sorted(made)

    for written_flame in written:
        flame = made[written_flame["name"]]
        up, site, own_numbers, total, n, order = numbers(written_flame["packed"])
        parent = [NO_ROW if not by else node - by for node, by in enumerate(up)]
        assert (parent, own_numbers, total, n) == (
            flame.parent.tolist(),
            flame.own.tolist(),
            flame.total.tolist(),
            flame.n.tolist(),
        )
        shown = [written_flame["sites"]["name"][number] for number in site]
        named = [flame.sites[number].name for number in flame.site.tolist()]
        assert [
            name.replace("\\x1b", "\x1b").replace("\\u202e", "\u202e") for name in shown
        ] == named
        assert written_flame["nLeftOut"] == 0
        if flame.first_ns is None:
            assert set(order) == {0}
        else:
            by_time = [flame.first_ns[order.index(place)] for place in range(1, len(flame) + 1)]
            assert by_time == sorted(flame.first_ns.tolist())


def test_the_smallest_nodes_are_left_out_and_counted(
    studied: AnalysisResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("profkit.renderers.html.flames.MAX_NODES", 5)
    page = render(studied.report, "html", recording=studied.recording).decode()
    made = {flame.name: flame for flame in flames(studied.recording.context)}
    for flame_data in data(page, "flames")["flames"]:
        flame = made[flame_data["name"]]
        up, _, _, total, _, _ = numbers(flame_data["packed"])
        assert flame_data["nLeftOut"] == max(0, len(flame) - 5)
        assert sorted(total, reverse=True) == sorted(flame.total.tolist(), reverse=True)[:5]
        assert all(by <= node for node, by in enumerate(up))


def test_a_recursive_call_counts_once_in_its_total(tmp_path: Path) -> None:
    b = TraceBuilder(stacks=True)
    with b.frame("a.py", 1, "f"):
        b.advance(1_000)
        with b.frame("b.py", 1, "g"):
            b.advance(10_000)
            with b.frame("a.py", 1, "f"):
                b.advance(100_000)
    (flame, *_) = flames(study(b.write(tmp_path / "t.json")).recording.context)
    own_ns, total, n = sum_by_site(flame)
    place = {site.name: i for i, site in enumerate(flame.sites)}
    assert (own_ns[place["f"]], total[place["f"]], n[place["f"]]) == (101_000, 111_000, 2)
    assert (own_ns[place["g"]], total[place["g"]], n[place["g"]]) == (10_000, 110_000, 1)


def test_a_report_alone_has_neither_timeline_nor_flame_graphs(studied: AnalysisResult) -> None:
    page = render(studied.report, "html").decode()
    assert 'id="timeline"' not in page
    assert 'id="flames"' not in page


def test_the_page_is_deterministic(studied: AnalysisResult, page: str) -> None:
    assert render(studied.report, "html", recording=studied.recording).decode() == page
