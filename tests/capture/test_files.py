"""Names of trace files, and writing them."""

import gzip
import json
import re
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from isal import igzip_threaded

from profkit.capture.process import files
from profkit.errors import CaptureError
from profkit.model.capture_info import CaptureInfo

TENSORBOARD = re.compile(r"^(.*?)(\.\d+)?\.pt\.trace\.json(?:\.gz)?$")
INFO = CaptureInfo(version="1", name="step")


@given(st.text())
def test_any_name_is_one_part_of_a_path(name: str) -> None:
    safe = files.safe_name(name)
    assert safe
    assert Path(safe).name == safe
    assert safe not in {".", ".."}
    assert len(safe) <= 100


@pytest.mark.parametrize(
    ("name", "safe"), [("a/b", "a_b"), ("../up", "up"), ("épo que", "épo_que"), ("", "trace")]
)
def test_slashes_and_odd_characters_become_underscores(name: str, safe: str) -> None:
    assert files.safe_name(name) == safe


def test_tensorboard_reads_worker_and_time_from_the_file_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "4")
    first, second = (files.trace_file(tmp_path) for _ in range(2))
    match = TENSORBOARD.match(first.name)
    assert match is not None
    assert match.group(1).endswith("_rank3")
    assert match.group(2)
    assert first != second


def test_the_folder_is_the_argument_else_the_environment_else_traces(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PROFKIT_DIR", "from-environment")
    assert files.trace_folder("given", "x") == Path("given/x")
    assert files.trace_folder(None, "x") == Path("from-environment/x")
    monkeypatch.delenv("PROFKIT_DIR")
    assert files.trace_folder(None, "x") == Path("traces/x")


def exported(folder: Path, text: bytes) -> Path:
    path = folder / "exported.json"
    path.write_bytes(text)
    return path


def test_profkits_data_is_the_first_key_and_the_rest_is_unchanged(tmp_path: Path) -> None:
    target = tmp_path / "new" / "t.pt.trace.json.gz"
    events = [{"ph": "X", "name": "a" * 100, "ts": i} for i in range(30_000)]
    source = exported(tmp_path, b" \n" + json.dumps({"traceEvents": events}).encode())
    files.write_trace(source, target, INFO)
    trace = json.loads(gzip.decompress(target.read_bytes()))
    assert list(trace) == ["profkit", "traceEvents"]
    assert trace["profkit"]["name"] == "step"
    assert trace["traceEvents"] == events
    assert files.count_events(source) == len(events)


def test_invalid_utf8_is_replaced_so_that_the_json_is_valid(tmp_path: Path) -> None:
    target = tmp_path / "t.pt.trace.json.gz"
    good = "é".encode()
    # The two-byte letter spans two chunks.
    padding = b"x" * ((1 << 20) - len(b'{"a": "') - 1)
    source = exported(tmp_path, b'{"a": "' + padding + good + b'", "b": "\xf0\xff"}')
    files.write_trace(source, target, INFO)
    trace = json.loads(gzip.decompress(target.read_bytes()))
    assert trace["a"] == padding.decode() + "é"
    assert set(trace["b"]) == {"\ufffd"}


def test_a_full_disk_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("this system has no device that is always full")
    to_full_disk = igzip_threaded.open(full, "wb", threads=1)
    monkeypatch.setattr(igzip_threaded, "open", lambda *_, **__: to_full_disk)
    target = tmp_path / "out" / "t.pt.trace.json.gz"
    with pytest.raises(OSError, match="No space left"):
        files.write_trace(exported(tmp_path, b'{"a": 1}'), target, INFO)
    assert list(target.parent.iterdir()) == []


def test_threads_of_the_program_have_the_names_that_they_have_without_profkit(
    tmp_path: Path,
) -> None:
    first = int(re.findall(r"\d+", threading.Thread().name)[0])
    files.write_trace(exported(tmp_path, b'{"a": 1}'), tmp_path / "t.pt.trace.json.gz", INFO)
    assert threading.Thread().name == f"Thread-{first + 1}"


def test_truncated_text_is_an_error(tmp_path: Path) -> None:
    source = exported(tmp_path, b'{"traceEvents": [{"ph": "X"')
    with pytest.raises(CaptureError, match="incomplete"):
        files.count_events(source)


def test_anything_but_a_json_object_is_rejected(tmp_path: Path) -> None:
    target = tmp_path / "t.pt.trace.json.gz"
    with pytest.raises(CaptureError, match="did not export a trace"):
        files.write_trace(exported(tmp_path, b"[1, 2]"), target, INFO)
    assert not target.exists()
