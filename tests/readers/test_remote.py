"""Traces are read from URLs: in memory, on a web server and in an S3-compatible store."""

import contextlib
import gzip
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import fsspec
import pytest

from profkit.api import analyze
from profkit.errors import MissingFileError, TooLargeError, UnreadableFileError
from profkit.readers import remote
from profkit.testing import TraceBuilder
from tests.traces import load_trace as load


def data() -> bytes:
    builder = TraceBuilder()
    for _ in range(3):
        with builder.step():
            builder.launch("aten::mm", kernel="gemm", host_ns=9_000, device_ns=5_000)
    return builder.to_bytes()


DATA = data()


@pytest.fixture
def plain(tmp_path: Path) -> list[int]:
    path = tmp_path / "plain.json"
    path.write_bytes(DATA)
    return load(path).events.ts_ns.tolist()


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Log nothing."""


@pytest.fixture
def web(tmp_path: Path) -> Iterator[str]:
    folder = tmp_path / "www"
    folder.mkdir()
    (folder / "t.json").write_bytes(DATA)
    (folder / "t.json.gz").write_bytes(gzip.compress(DATA))
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    """Yield the endpoint of a local server with the S3 protocol."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    keys = {
        "AWS_ACCESS_KEY_ID": "k",
        "AWS_SECRET_ACCESS_KEY": "s",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    endpoint = f"http://127.0.0.1:{port}"
    process = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **keys},
    )
    before = {key: os.environ.get(key) for key in (*keys, "AWS_ENDPOINT_URL")}
    os.environ.update(keys, AWS_ENDPOINT_URL=endpoint)
    try:
        _wait_for(port, process)
        yield endpoint
    finally:
        process.terminate()
        process.wait(10)
        for key, value in before.items():
            if value is None:
                os.environ.pop(key, None)
            else:
                os.environ[key] = value


def _wait_for(port: int, process: "subprocess.Popen[bytes]") -> None:
    until = time.monotonic() + 60
    while time.monotonic() < until and process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    pytest.fail("the S3 server did not start")


def test_a_trace_in_memory_is_read(plain: list[int]) -> None:
    with fsspec.open("memory://bucket/t.json.gz", "wb") as file:
        file.write(gzip.compress(DATA))
    trace = load("memory://bucket/t.json.gz")
    assert trace.events.ts_ns.tolist() == plain
    assert trace.path == "memory://bucket/t.json.gz"


def test_a_member_of_an_archive_is_read_by_its_url(tmp_path: Path, plain: list[int]) -> None:
    import zipfile

    archive = tmp_path / "ranks.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        packed.writestr("rank0.json", DATA)
        packed.writestr("rank1.json", DATA)
    assert load(f"zip://rank1.json::{archive}").events.ts_ns.tolist() == plain


@pytest.mark.parametrize("name", ["t.json", "t.json.gz"])
def test_a_trace_on_a_web_server_is_read(name: str, web: str, plain: list[int]) -> None:
    report = analyze(f"{web}/{name}")
    assert report.source.path == f"{web}/{name}"
    assert load(f"{web}/{name}").events.ts_ns.tolist() == plain


def test_a_trace_in_an_s3_bucket_is_read(s3: str, plain: list[int]) -> None:
    import s3fs

    s3fs.S3FileSystem.clear_instance_cache()
    store = s3fs.S3FileSystem(endpoint_url=s3)
    store.mkdir("bucket")
    with store.open("bucket/run/t.json.gz", "wb") as file:
        file.write(gzip.compress(DATA))
    assert load("s3://bucket/run/t.json.gz").events.ts_ns.tolist() == plain
    for rank in range(2):
        b = TraceBuilder(head={"distributedInfo": {"rank": rank, "world_size": 2}})
        b.launch("aten::mm", kernel="gemm", host_ns=9_000, device_ns=5_000)
        with store.open(f"bucket/job/rank{rank}.json", "wb") as file:
            file.write(b.to_bytes())
    for url, workers in (("s3://bucket/job", 1), ("s3://bucket/j*/*.json", None)):
        report = analyze(url, workers=workers)
        assert report.source.path == "s3://bucket/job"
        assert [rank.file for rank in report.ranks] == [
            f"s3://bucket/job/rank{rank}.json" for rank in range(2)
        ]
    with pytest.raises(MissingFileError, match=r"s3://bucket/run/no\.json"):
        load("s3://bucket/run/no.json")


def test_missing_files_unreachable_servers_and_unknown_protocols_are_reported(web: str) -> None:
    with pytest.raises(MissingFileError, match=r"no\.json"):
        load(f"{web}/no.json")
    with pytest.raises(UnreadableFileError, match="cannot be read"):
        load("http://127.0.0.1:1/t.json")
    with pytest.raises(UnreadableFileError, match="nosuch"):
        load("nosuch://t.json")


class _Endless(_Quiet):
    """Sends events without an end, or nothing after the first ones."""

    stalls = False

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        event = b'{"ph":"X","cat":"cpu_op","name":"a","pid":1,"tid":1,"ts":1,"dur":1},'
        self.wfile.write(b'{"traceEvents":[' + event * 10)
        with contextlib.suppress(OSError):
            while True:
                self.wfile.write(b"" if self.stalls else event * 10_000)
                time.sleep(0.1 if self.stalls else 0)

    def do_HEAD(self) -> None:
        self.send_response(200)
        self.end_headers()


@pytest.mark.parametrize("how", ["stalls", "sends on"])
def test_a_server_that_never_ends_is_given_up(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Endless, "stalls", how == "stalls")
    monkeypatch.setattr(remote, "STALLED_S", 2)
    monkeypatch.setattr(remote, "_MAX_UNANNOUNCED_BYTES", 8 << 20)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Endless)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}/t.json"

    try:
        if how == "stalls":
            with pytest.raises(UnreadableFileError, match=r"t\.json cannot be read: .*[Tt]ime"):
                load(url)
        else:
            with pytest.raises(TooLargeError, match="without announcing a size"):
                load(url)
    finally:
        server.shutdown()
        server.server_close()
