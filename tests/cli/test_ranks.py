"""One report over the ranks of a job."""

import gzip
import json
import random
import statistics
import tarfile
from pathlib import Path

import pytest

from profkit.api import analyze
from profkit.cli.main import main
from profkit.errors import SeveralTracesError, UsageError
from profkit.present.tables import table
from profkit.testing import TraceBuilder
from tests.job_traces import write_rank, write_ranks

LATE_NS = 900_000
KERNEL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"


@pytest.fixture
def job(tmp_path: Path) -> Path:
    return write_ranks(tmp_path / "job", 2)


def test_the_traces_of_a_job_are_one_report(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", str(job)]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "Rank 1 makes rank 0 wait for 900 µs of each 2.10 ms step of the job (43%)" in text
    assert "1 of 3 ranks was not recorded (2)." in text
    assert text.count("SYN001") == 1, "what both ranks have is said once"


def test_the_json_report_has_ranks_and_collectives(
    job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["analyze", str(job), "--format", "json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["source"]["kind"] == "ranks"
    assert report["source"]["path"] == str(job)
    assert report["missing_ranks"] == [2]
    assert [rank["rank"] for rank in report["ranks"]] == [0, 1]

    (group,) = report["collectives"]["groups"]
    assert group["n"] == 3
    assert group["wait_ns"] == 3 * LATE_NS
    assert group["transfer_ns"] == 3 * (2_000_000 - LATE_NS)
    # An all-reduce of two ranks moves each byte once.
    assert group["bus_bytes_per_s"] == round((4 << 20) / ((2_000_000 - LATE_NS) / 1e9))
    assert group["last"] == [{"rank": 1, "n": 3, "late_ns": 3 * LATE_NS, "why": "host"}]
    assert [finding["ranks"] for finding in report["findings"] if finding["rule"] == "SYN001"] == [
        [0, 1]
    ]


@pytest.mark.parametrize("format_", ["html", "md"])
def test_pages_show_the_ranks_of_a_job(job: Path, tmp_path: Path, format_: str) -> None:
    out = tmp_path / f"out.{format_}"
    assert main(["analyze", str(job), "--format", format_, "-o", str(out)]) == 0
    text = out.read_text()
    assert "rank 1 in 3" in text
    assert "host is late" in text
    assert "Ranks" in text


def test_a_job_has_tables(job: Path) -> None:
    report = analyze(job)
    ranks, collectives = table(report, "ranks"), table(report, "collectives")
    rows = [dict(zip([c.name for c in ranks.columns], row, strict=True)) for row in ranks.rows]
    assert [row["rank"] for row in rows] == [0, 1]
    assert [row["collective_wait_ns"] for row in rows] == [LATE_NS, 0]
    (row,) = collectives.rows
    named = dict(zip([column.name for column in collectives.columns], row, strict=True))
    assert (named["kind"], named["ranks"], named["last_rank"]) == ("all-reduce", "0 1", 1)


def write_sizes(folder: Path, skews_ns: list[int]) -> Path:
    """Write ranks with all-gathers of two sizes in turn, which rank 1 joins late by so much."""
    folder.mkdir()
    for rank in range(2):
        builder = TraceBuilder(
            head={
                "distributedInfo": {"rank": rank, "world_size": 2},
                "host_name": f"node{rank}",
            }
        )

        for number, skew_ns in enumerate(skews_ns):
            late_ns = rank * skew_ns
            builder.compute("aten::add", 10_000 + late_ns)
            ident = builder.call("LaunchKernel", 4_000)
            builder.kernel(
                "ncclDevKernel_AllGather_RING_LL",
                2_000_000 - late_ns,
                correlation=ident,
                Seq=number,
                dtype="BFloat16",
                **{
                    "Collective name": "_allgather_base",
                    "In msg nelems": 1000 * (1 + number % 2),
                    "Out msg nelems": 2000 * (1 + number % 2),
                    "Group size": 2,
                    "Process Group Name": "0",
                    "Process Group Ranks": "[0, 1]",
                },
            )
            builder.item()

        builder.write(folder / f"rank{rank}.pt.trace.json")
    return folder


def test_collectives_are_told_by_type_and_size(tmp_path: Path) -> None:
    draw = random.Random(3)  # noqa: S311
    skews_ns = [draw.randrange(1_000, 1_000_000) for _ in range(60)]
    report = analyze(write_sizes(tmp_path / "job", skews_ns))
    exported = table(report, "collective_sizes")
    names = [column.name for column in exported.columns]
    rows = {
        row["message_bytes"]: row
        for row in (dict(zip(names, row, strict=True)) for row in exported.rows)
    }

    assert {row["element_type"] for row in rows.values()} == {"BFloat16"}
    assert {row["n_hosts"] for row in rows.values()} == {2}

    for parity in range(2):
        # The size of an all-gather is that of its output, in two bytes for each element.
        n_bytes = 2 * 2000 * (1 + parity)
        own_ns = sorted(skews_ns[parity::2])
        transfers_ns = sum(2_000_000 - skew_ns for skew_ns in own_ns)
        row = rows[n_bytes]
        assert row["n"] == 30
        assert row["mean_skew_ns"] == pytest.approx(statistics.mean(own_ns), abs=1)
        assert row["median_skew_ns"] == statistics.median_low(own_ns)
        # Of 30 the 29th: one may be longer.
        assert row["p95_skew_ns"] == own_ns[28]
        assert row["transfer_ns"] == transfers_ns
        rate = 30 * n_bytes / (transfers_ns / 1e9)
        assert row["n_algorithm_bytes_per_s"] == pytest.approx(rate, abs=1)
        assert row["n_bus_bytes_per_s"] == pytest.approx(rate / 2, abs=1)


def test_sizes_are_in_the_long_report(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", str(job)]) == 0
    assert "Collectives by size" not in capsys.readouterr().out
    assert main(["analyze", str(job), "-v"]) == 0
    text = capsys.readouterr().out
    (row,) = [line for line in text.splitlines() if "4.00 MiB" in line and "all-reduce" in line]
    assert row.split()[-1] == "Float"


def test_other_traces_and_later_windows_are_reports_of_their_own(
    job: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    later = job / "later"
    later.mkdir()
    for rank in (0, 1):
        write_rank(rank, later, begins_s=90)
    lone = tmp_path / "other"
    lone.mkdir()
    b = TraceBuilder()
    b.launch("aten::mm", kernel="gemm", host_ns=10_000, device_ns=50_000)
    lone_path = str(b.write(lone / "t.json"))
    other_size = str(write_rank(0, lone, world_size=7))
    assert main(["analyze", str(job), lone_path, other_size, "--format", "json"]) == 0
    reports = json.loads(capsys.readouterr().out)
    kinds = [(report["source"]["kind"], report["source"]["world_size"]) for report in reports]
    assert kinds == [("ranks", 3), ("ranks", 3), ("trace", None), ("trace", 7)]


def test_other_files_of_a_folder_are_skipped(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number, path in enumerate(sorted(job.iterdir())):
        path.rename(job / f"{number}.json.gz")
    (job / "settings.json").write_text('{"size": 3}')
    assert main(["analyze", str(job), "--format", "json"]) == 0
    written = capsys.readouterr()
    assert len(json.loads(written.out)["ranks"]) == 2
    assert written.err.startswith("profkit: skipped: ")
    assert "settings.json" in written.err
    assert "more" not in written.err
    for name in ("tuning", "values"):
        (job / f"{name}.json").write_text("{}")
    assert main(["export", str(job), "--to", "json", "-o", "-"]) == 0
    assert "profkit: skipped 2 more files (not recordings)." in capsys.readouterr().err
    assert analyze(job).collectives is not None


def test_in_python_a_folder_or_its_files_are_one_report(job: Path) -> None:
    of_folder, of_files = analyze(job), analyze(sorted(job.iterdir()))
    assert of_folder == of_files
    assert of_folder.collectives is not None
    assert of_folder.collectives.matched_share == 1


def test_files_without_a_common_folder_and_with_too_many_ranks_are_a_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    paths = [write_rank(rank, tmp_path, world_size=1 << 60) for rank in (0, 1)]
    for given in ([paths[0].name, str(paths[1])], [recording.name for recording in paths]):
        assert main(["analyze", *given, "--format", "json"]) == 0
        report = json.loads(capsys.readouterr().out)
        assert report["source"]["path"] == paths[0].name
        assert report["missing_ranks"] == []
        assert analyze(given).source.path == paths[0].name


def test_in_python_files_of_several_programs_are_an_error(job: Path, tmp_path: Path) -> None:
    b = TraceBuilder()
    b.launch("aten::mm", kernel="gemm", host_ns=10_000, device_ns=50_000)
    lone = b.write(tmp_path / "t.json")
    with pytest.raises(UsageError, match="from different programs"):
        analyze([lone, *job.iterdir()])
    write_rank(0, tmp_path, world_size=7)
    with pytest.raises(SeveralTracesError):
        analyze(tmp_path)


def test_export_writes_one_trace_of_all_ranks_and_stacks_of_each(job: Path, tmp_path: Path) -> None:
    alone = write_rank(0, tmp_path, world_size=9)

    out = tmp_path / "out"
    for format_ in ("chrome", "folded", "html", "json"):
        assert main(["export", str(job), str(alone), "--to", format_, "-o", f"{out}/"]) == 0
    assert sorted(path.name for path in out.iterdir()) == [
        "job.html",
        "job.json",
        "job.trace.json.gz",
        "rank0-2.folded",
        "rank0.folded",
        "rank0.html",
        "rank0.json",
        "rank0.trace.json.gz",
        "rank1.folded",
    ]

    events = json.loads(gzip.decompress((out / "job.trace.json.gz").read_bytes()))["traceEvents"]
    names = {event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert {"rank 0 · node", "rank 1 · node"} <= names
    assert json.loads((out / "job.json").read_text())["source"]["kind"] == "ranks"
    assert 'id="data-timeline"' in (out / "job.html").read_text(), "of the first rank"
    assert main(["export", str(job), "--to", "chrome", "-o", str(tmp_path / "one.json")]) == 0
    assert json.loads((tmp_path / "one.json").read_text())["traceEvents"] == events


def test_view_shows_one_page_of_the_job(job: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert main(["view", str(job), "--no-open", "-o", str(page)]) == 0
    text = page.read_text()
    assert 'id="ranks-heat"' in text
    assert 'id="ranks-view"' in text


def test_several_saved_reports_and_archives_of_ranks_are_viewed(job: Path, tmp_path: Path) -> None:
    saved = tmp_path / "saved.json"
    assert main(["analyze", str(job), "--format", "json", "-o", str(saved)]) == 0
    page = tmp_path / "page.html"
    assert main(["view", str(saved), str(saved), "--no-open", "-o", str(page)]) == 0
    assert page.read_text().count("<option") == 2
    archive = tmp_path / "ranks.tar"
    with tarfile.open(archive, "w") as packed:
        for path in job.iterdir():
            packed.add(path, f"./{path.name}")
    assert main(["view", str(archive), "--no-open", "-o", str(page), "--force"]) == 0
    assert 'id="ranks-heat"' in page.read_text()
    assert main(["export", str(archive), "--to", "md", "-o", f"{tmp_path / 'out'}/"]) == 0
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["ranks.md"]


def test_jobs_are_compared(job: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    even = tmp_path / "even"
    even.mkdir()
    for rank in (0, 1):
        write_rank(0, even).rename(even / "first.json.gz")
        trace = json.loads(gzip.decompress((even / "first.json.gz").read_bytes()))
        trace["distributedInfo"]["rank"] = rank
        (even / f"rank{rank}.json").write_text(json.dumps(trace))
    (even / "first.json.gz").unlink()

    assert main(["diff", str(job), str(even), "--format", "json"]) == 0

    difference = json.loads(capsys.readouterr().out)
    figures = {
        figure["name"]: (figure["before"], figure["after"]) for figure in difference["figures"]
    }
    assert figures["n_ranks"] == (2, 2)
    assert figures["collective_wait_ns_per_step"] == (LATE_NS // 2, 0)
    assert difference["before"]["kind"] == difference["after"]["kind"] == "ranks"


def test_view_and_export_analyze_ranks_where_analyze_does(job: Path, tmp_path: Path) -> None:
    here_path, there = tmp_path / "here.json", tmp_path / "there.json"
    assert main(["export", str(job), "--to", "json", "-o", str(here_path)]) == 0
    assert main(["export", str(job), "--to", "json", "-o", str(there), "--workers", "2"]) == 0
    assert here_path.read_bytes() == there.read_bytes()
    for command in (["view"], ["export", "--to", "json"]):
        both = ["--cluster", "tcp://127.0.0.1:1", "--scheduler-file", "none.json"]
        assert main([*command, str(job), *both]) == 2
