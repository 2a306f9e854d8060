"""Pickles are read as plain data in a worker process; no code that they name is run."""

import contextlib
import io
import os
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from profkit.api import analyze
from profkit.errors import DamagedFileError, LoadError, NotATraceError, RefusedPickleError
from profkit.model.snapshot import MemorySnapshot
from profkit.readers.open import load
from profkit.readers.snapshot.restricted_unpickler import ProcessLimits, load_plain
from profkit.readers.snapshot.worker import unpickle

SNAPSHOT: dict[str, Any] = {
    "segments": [
        {
            "device": 0, "address": 4096, "total_size": 2048, "allocated_size": 512,
            "active_size": 512, "requested_size": 500, "stream": 0, "segment_type": "small",
            "segment_pool_id": (0, 0), "is_expandable": False, "frames": [],
            "blocks": [
                {"address": 4096, "size": 512, "requested_size": 500, "state": "active_allocated",
                 "frames": [{"filename": "train.py", "line": 3, "name": "step"}]},
                {"address": 4608, "size": 1536, "requested_size": 0, "state": "inactive",
                 "frames": []},
            ],
        }
    ],
    "device_traces": [
        [
            {"action": "alloc", "addr": 4096, "size": 512, "stream": 0, "time_us": 5,
             "frames": [{"filename": "train.py", "line": 3, "name": "step"}]},
            {"action": "oom", "size": 1 << 40, "device_free": 7, "stream": 0, "time_us": 6,
             "frames": []},
        ]
    ],
    "external_annotations": [{"name": "step", "stage": "START", "device": 0, "time_us": 4}],
    "allocator_settings": {"expandable_segments": False},
}  # fmt: skip


def _load(folder: Path, data: bytes) -> object:
    path = folder / "x.pickle"
    path.write_bytes(data)
    return load(path)


def _plain(data: bytes) -> object:
    return load_plain(io.BytesIO(data), lambda _n_bytes: None)[0]


@contextlib.contextmanager
def _limit_restored() -> Iterator[None]:
    """Restore this process's limits, which normally only the worker process sets."""
    if sys.platform == "win32":
        yield
        return
    import resource

    kinds = (resource.RLIMIT_AS, resource.RLIMIT_CPU)
    before = [resource.getrlimit(kind) for kind in kinds]
    try:
        yield
    finally:
        for kind, limits in zip(kinds, before, strict=True):
            resource.setrlimit(kind, limits)


@pytest.mark.parametrize("protocol", range(2, 6))
def test_plain_data_is_unpickled_unchanged(protocol: int) -> None:
    data = {"segments": [{"address": 1 << 60, "pool": (0, 0), "name": "é" * 3_000_000}], "x": None}
    assert _plain(pickle.dumps(data, protocol)) == data


class _Touch:
    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {self.canary}",)


@pytest.mark.parametrize("protocol", range(2, 6))
def test_a_function_is_refused_and_not_run(tmp_path: Path, protocol: int) -> None:
    canary = tmp_path / "canary"
    with pytest.raises(RefusedPickleError, match=r"names (posix|nt|os)\.system") as refused:
        _load(tmp_path, pickle.dumps([_Touch(canary)], protocol))
    assert refused.value.exit_code == 3
    assert not canary.exists()


@pytest.mark.parametrize(
    ("program", "named"),
    [
        (b"\x80\x02(S'touch {}'\nios\nsystem\n.", r"os\.system"),
        (b"\x80\x02(cos\nsystem\nS'touch {}'\no.", r"os\.system"),
        (b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x01x\x85R.", r"os\.system"),
        (b"\x80\x02Pposix\n.", r"external object \(posix\)"),
        (b"\x80\x02K\x01Q.", r"external object \(1\)"),
        (b"\x80\x02\x82\x01.", "extension code 1"),
        (b"\x80\x02\x83\x01\x01.", "extension code 257"),
        (b"\x80\x02\x84\x01\x00\x00\x01.", "extension code 16777217"),
        (b"\x80\x04\x8c\x08builtins\x8c\x04eval\x93)\x81.", r"builtins\.eval"),
    ],
)
def test_every_opcode_that_names_code_is_refused(
    tmp_path: Path, program: bytes, named: str
) -> None:
    canary = tmp_path / "canary"
    with pytest.raises(RefusedPickleError, match=named):
        _load(tmp_path, program.replace(b"{}", str(canary).encode()))
    assert not canary.exists()


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(b"\x80\x04", id="nothing"),
        pytest.param(b"\x80\x04]a.", id="append-nothing"),
        pytest.param(b"\x80\x04K\x01K\x02R.", id="call-a-number"),
        pytest.param(b"\x80\x04]}b.", id="build-a-list"),
        pytest.param(b"\x80\x04\x8e\xff\xff\xff\xff\xff\x00\x00\x00abc.", id="a-terabyte"),
        pytest.param(b"\x80\x04\x8e" + b"\xff" * 8 + b".", id="more-than-2-to-the-63"),
        pytest.param(b"\x80\x02\x8b\xff\xff\xff\x7f.", id="a-long-number"),
        pytest.param(b"\x80\x02\x8b\xff\xff\xff\xff.", id="a-negative-length"),
        pytest.param(b"\x80\x04h\x07.", id="missing-memo"),
        pytest.param(b"\x80\xff.", id="future-protocol"),
        pytest.param(b"\x80\x05\x97.", id="out-of-band-buffer"),
        pytest.param(b"\x80\x04}]K\x01s.", id="a-list-as-key"),
    ],
)
def test_a_broken_pickle_is_a_load_error(tmp_path: Path, program: bytes) -> None:
    with pytest.raises(DamagedFileError, match=r"x\.pickle "):
        _load(tmp_path, program)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux enforces RLIMIT_AS")
@pytest.mark.parametrize(
    "program",
    [
        pytest.param(b"\x80\x02Nr\xff\xff\xff\xff.", id="memo-of-64-GiB"),
        pytest.param(b"\x80\x02Nr\xff\xff\xff\x1f.", id="memo-of-8-GiB"),
        pytest.param(b"\x80\x02Np999999999\n.", id="memo-of-16-GB"),
        pytest.param(
            b"\x80\x04\x95\x07\x00\x00\x00\x00\x00\x00\x00Nr\xff\xff\xff\x2f.", id="in-a-frame"
        ),
    ],
)
def test_a_declared_size_beyond_the_memory_limit_is_refused(tmp_path: Path, program: bytes) -> None:
    with pytest.raises(DamagedFileError, match="needs more memory than its size allows"):
        _load(tmp_path, program)


def test_a_truncated_snapshot_is_refused(tmp_path: Path) -> None:
    whole = pickle.dumps(SNAPSHOT, 4)
    with pytest.raises(DamagedFileError, match="is truncated"):
        _load(tmp_path, whole[: len(whole) // 2])


@pytest.mark.parametrize("data", [{"weights": [1, 2]}, 7, "text", None, [1], {"segments": 3}])
def test_other_plain_data_is_not_a_snapshot(tmp_path: Path, data: object) -> None:
    with pytest.raises(NotATraceError, match="not a memory snapshot"):
        _load(tmp_path, pickle.dumps(data, 4))


def test_a_list_referred_to_a_million_times_is_refused(tmp_path: Path) -> None:
    blocks = [{"size": 1}] * 30_000
    with pytest.raises(DamagedFileError, match="same entries repeatedly"):
        _load(tmp_path, pickle.dumps({"segments": [{"blocks": blocks}] * 30_000}, 4))


def test_lists_nested_100_000_deep_give_a_load_error(tmp_path: Path) -> None:
    deep = b"\x80\x04" + b"]" * 100_000 + b"a" * 99_999 + b"."
    with pytest.raises(LoadError):
        _load(tmp_path, deep)
    frames = b"\x80\x04}\x8c\x08segments]}\x8c\x06frames" + deep[2:-1] + b"sas."
    assert load_ok(tmp_path, frames)


def load_ok(folder: Path, data: bytes) -> bool:
    """Return whether data is read, or refused with a message."""
    try:
        _load(folder, data)
    except LoadError as error:
        return bool(str(error))
    return True


mutations = st.tuples(
    st.integers(0, 1 << 30),
    st.sampled_from(["cut", "flip", "splice", "repeat"]),
    st.integers(0, 255),
)


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(protocol=st.integers(2, 5), changes=st.lists(mutations, min_size=1, max_size=6))
def test_any_mutation_of_a_snapshot_gives_a_result(
    protocol: int, changes: list[tuple[int, str, int]]
) -> None:
    data = bytearray(pickle.dumps(SNAPSHOT, protocol))
    for at, how, byte in changes:
        place = at % len(data)
        if how == "cut":
            del data[place + 1 :]
        elif how == "flip":
            data[place] = byte
        else:
            other_place = at // 7 % len(data)
            piece = data[other_place : other_place + byte]
            data[place : place if how == "splice" else place + len(piece)] = piece
        data = data or bytearray(b"\x80")
    with _limit_restored():
        value = unpickle(io.BytesIO(bytes(data)), ProcessLimits().allow)

    assert (value.recording is None) == bool(value.fault)


@settings(max_examples=300, deadline=None)
@given(data=st.binary(max_size=200))
def test_any_bytes_give_a_result(data: bytes) -> None:
    with _limit_restored():
        value = unpickle(io.BytesIO(b"\x80\x04" + data), ProcessLimits().allow)
    assert (value.recording is None) == bool(value.fault)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs RLIMIT_CPU")
def test_a_key_whose_hash_takes_years_ends_soon(tmp_path: Path) -> None:
    pairs = b"".join(b"h" + bytes([n]) + b"h" + bytes([n]) + b"\x86\x94" for n in range(60))
    with pytest.raises(DamagedFileError, match="needs more processor time than its size allows"):
        _load(tmp_path, b"\x80\x04)\x94" + pairs + b"}h\x3cK\x01s.")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs RLIMIT_CPU")
@pytest.mark.parametrize("begin", [b"\x8f(", b"("])
def test_a_set_whose_members_all_have_one_hash_ends_soon(tmp_path: Path, begin: bytes) -> None:
    prime = sys.hash_info.modulus
    members = (number.to_bytes(10, "little") for number in range(prime, 80_000 * prime, prime))
    end = b"\x90." if begin != b"(" else b"\x91."
    with pytest.raises(DamagedFileError, match="needs more processor time than its size allows"):
        _load(tmp_path, b"\x80\x04" + begin + b"".join(b"\x8a\x0a" + m for m in members) + end)


def test_more_devices_than_any_machine_has_are_refused(tmp_path: Path) -> None:
    traces = SNAPSHOT["device_traces"] * 4000
    with pytest.raises(DamagedFileError, match="has 4000 devices"):
        _load(tmp_path, pickle.dumps({**SNAPSHOT, "device_traces": [*map(list, traces)]}))


def test_settings_are_finite_numbers_and_short_texts(tmp_path: Path) -> None:
    written = {
        "huge": -(10**5_000),
        "max_split_size": 1 << 64,
        "nan": float("nan"),
        "few": 3,
        "garbage_collection_threshold": float("inf"),
        "long": "a" * 1_000_000,
        "PYTORCH_CUDA_ALLOC_CONF": "a" * 1_000_000 + "max_split_size_mb:" + "7" * 5_000,
        "nested": {"1": 10**400, "2": 4, "long": "b" * 1_000_000},
    }
    path = tmp_path / "x.pickle"
    path.write_bytes(pickle.dumps({**SNAPSHOT, "allocator_settings": written}))

    read = load(path)
    assert isinstance(read, MemorySnapshot)
    assert read.settings["few"] == 3
    assert read.settings["nested"].startswith("2:4 long:bbb")  # type: ignore[union-attr]
    assert set(read.settings) == {"few", "long", "PYTORCH_CUDA_ALLOC_CONF", "nested"}
    assert all(len(text) <= 10_000 for text in read.settings.values() if isinstance(text, str))
    assert analyze(path, strict=True).source.kind == "snapshot"
