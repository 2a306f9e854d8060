"""``profkit mcp`` with the client of the package mcp: its tools answer, within one folder."""

import json
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp.client import Client
from mcp.client.session import ClientSession
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.types import CallToolResult, TextContent

from profkit.integrations.mcp.server import build_server
from profkit.testing import TraceBuilder

US = 1_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two traces in a folder, the second without the read, and a file outside of it."""
    outer = tmp_path_factory.mktemp("outer")
    root = outer / "root"

    for name, reads in (("slow", True), ("cured", False)):
        b = TraceBuilder(stacks=True)
        for _ in range(3):
            with b.step(), b.frame(str(outer / "train.py"), 2, "step"):
                b.launch("aten::mm", kernel="gemm", host_ns=10 * US, device_ns=900 * US)
                if reads:
                    with b.op("aten::item"):
                        b.synchronize("cudaStreamSynchronize")
                b.advance(200 * US)
        (root / name).mkdir(parents=True)
        b.write(root / name / f"{name}.pt.trace.json")

    (outer / "train.py").write_text("secret = 1\nsecret.item()\n")
    (outer / "outside.pt.trace.json").write_bytes((root / "slow/slow.pt.trace.json").read_bytes())
    (root / "link.pt.trace.json").symlink_to(outer / "outside.pt.trace.json")
    return root


Call = Callable[..., Awaitable[tuple[bool, str]]]


def text_of(answer: CallToolResult) -> str:
    (content,) = answer.content
    assert isinstance(content, TextContent)
    return content.text


def with_client(root: Path, talk: Callable[[Call], Awaitable[None]]) -> None:
    """Connect a client to a server in this process, and talk to it."""

    async def main() -> None:
        async with Client(build_server(root)) as client:

            async def call(tool: str, **arguments: object) -> tuple[bool, str]:
                answer = await client.call_tool(tool, arguments)
                return bool(answer.is_error), text_of(answer)

            await talk(call)

    anyio.run(main)


def asked(root: Path, tool: str, **arguments: object) -> Any:  # noqa: ANN401  (JSON)
    """Return the answer of a tool that did not fail."""
    lines: list[str] = []

    async def talk(call: Call) -> None:
        is_error, text = await call(tool, **arguments)
        assert not is_error, text
        lines.append(text)

    with_client(root, talk)
    assert len(lines[0].encode()) <= int(arguments.get("budget_bytes", 8_000))  # type: ignore[call-overload]
    return json.loads(lines[0])


SLOW = "slow/slow.pt.trace.json"


def test_a_model_finds_its_way_from_the_folder_to_the_events_of_a_finding(folder: Path) -> None:
    slow = asked(folder, "recordings", folder="slow")["rows"]
    assert [row["path"] for row in slow] == [SLOW]
    findings = asked(folder, "findings", path=SLOW)
    ids = [row["id"] for row in findings["rows"]]
    assert ids[0] == "SYN001@train.py:2"
    explained = asked(folder, "finding", path=SLOW, finding=ids[0])
    events = json.loads((folder / SLOW).read_text())["traceEvents"]
    named = {events[row["id"]]["name"] for row in explained["events"]}
    assert named == {"aten::item"}
    without = asked(folder, "what_if", path=SLOW, remove=[ids[0]])
    assert without["after_ns"] < without["before_ns"]


def test_the_report_is_bounded_and_its_tables_have_pages(folder: Path) -> None:
    tree = asked(folder, "open", path="slow", budget_bytes=4_000)
    cursor, rules = tree["cut"]["unchecked"]["next"], []
    while cursor is not None:
        part = asked(folder, "table", path=SLOW, cursor=cursor, budget_bytes=3_000)
        rules += [row["rule"] for row in part["rows"]]
        cursor = part["next"]
    assert len(rules) + len(tree["unchecked"]) == tree["cut"]["unchecked"]["n"]


def test_events_are_chosen_by_name_kind_and_time_the_longest_first(folder: Path) -> None:
    every = asked(folder, "events", path=SLOW, name="gem?", category="kernel")
    assert (every["n"], every["total_ns"]) == (3, 3 * 900 * US)
    durations = [row["dur_ns"] for row in asked(folder, "events", path=SLOW)["rows"]]
    assert durations == sorted(durations, reverse=True)

    second = asked(folder, "events", path=SLOW, name="gemm", start=1)
    assert [row["id"] for row in second["rows"]] == [row["id"] for row in every["rows"][1:]]
    middle = every["rows"][1]
    during = asked(
        folder,
        "events",
        path=SLOW,
        name="gemm",
        from_ns=middle["start_ns"] + 1,
        to_ns=middle["start_ns"] + middle["dur_ns"],
    )
    assert [row["id"] for row in during["rows"]] == [middle["id"]]


def test_two_recordings_are_compared(folder: Path) -> None:
    tree = asked(folder, "compare", before="slow", after="cured")
    (finding,) = [change for change in tree["changes"] if change["kind"] == "finding"]
    assert finding["status"] == "fixed"
    assert "SYN001" in json.dumps(finding)


@pytest.mark.parametrize(
    ("tool", "arguments", "reason"),
    [
        ("open", {"path": "../outside.pt.trace.json"}, "is outside of"),
        ("open", {"path": "link.pt.trace.json"}, "is outside of"),
        ("open", {"path": "/etc/passwd"}, "is outside of"),
        ("recordings", {"folder": ".."}, "is outside of"),
        ("compare", {"before": SLOW, "after": "link.pt.trace.json"}, "is outside of"),
        ("open", {"path": "nothing.json"}, "There is no file nothing.json"),
        ("finding", {"path": SLOW, "finding": "MEM001"}, "SYN001@train.py:2"),
        ("table", {"path": SLOW, "cursor": "nothing:0"}, "has no table nothing"),
        ("events", {"path": SLOW, "category": "kernels"}, "There is no category kernels"),
        ("what_if", {"path": SLOW}, "No change is given"),
    ],
)
def test_what_cannot_be_answered_is_an_error_with_a_sentence(
    folder: Path, tool: str, arguments: dict[str, object], reason: str
) -> None:
    async def talk(call: Call) -> None:
        is_error, text = await call(tool, **arguments)
        assert is_error
        assert reason in text

    with_client(folder, talk)


def test_without_a_path_the_newest_recording_is_taken(folder: Path) -> None:
    os.utime(folder / SLOW, (1_000_000_000, 1_000_000_000))
    rows = asked(folder, "recordings")["rows"]
    assert [row["path"] for row in rows] == ["cured/cured.pt.trace.json", SLOW]
    assert asked(folder, "findings")["path"] == rows[0]["path"]
    assert asked(folder, "open")["source"]["path"] == str(folder / rows[0]["path"])
    assert asked(folder, "events", name="gemm")["n"] == 3


def test_without_paths_the_two_newest_recordings_of_a_program_are_compared(
    folder: Path, tmp_path: Path
) -> None:
    program = tmp_path / "traces" / "train"
    program.mkdir(parents=True)
    for time_s, name in ((1_700_000_001, "cured"), (1_700_000_000, "slow")):
        text = (folder / name / f"{name}.pt.trace.json").read_bytes()
        (program / f"host_1.{time_s}000000000.pt.trace.json").write_bytes(text)
    tree = asked(tmp_path, "compare")
    assert "1700000000000000000" in tree["before"]["path"]
    assert [row["status"] for row in tree["changes"] if row["kind"] == "finding"] == ["fixed"]
    assert asked(tmp_path, "findings", path="traces")["path"].startswith(
        "traces/train/host_1.17000"
    )


def test_source_lines_outside_of_the_folder_are_not_shown(folder: Path) -> None:
    explained = asked(folder, "finding", path=SLOW, finding="SYN001")
    assert "secret" not in json.dumps(explained)
    explained = asked(folder.parent, "finding", path=f"root/{SLOW}", finding="SYN001")
    assert explained["source"]["lines"][1] == "secret.item()"


def test_the_command_serves_a_client_over_stdin_and_stdout(folder: Path) -> None:
    command = StdioServerParameters(
        command=sys.executable,
        args=["-m", "profkit", "mcp", "--root", str(folder)],
        env=dict(os.environ),
    )

    async def main() -> None:
        async with stdio_client(command) as streams, ClientSession(*streams) as session:
            await session.initialize()
            tools = (await session.list_tools()).tools
            assert all(tool.annotations and tool.annotations.read_only_hint for tool in tools)
            assert all(tool.description for tool in tools)
            answer = await session.call_tool("findings", {"path": SLOW})
            assert "SYN001@train.py:2" in text_of(answer)

    anyio.run(main)
