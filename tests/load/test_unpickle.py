"""A pickle is read as plain data, and nothing that it names is run."""

import copyreg
import gc
import io
import os
import pickle
from collections import OrderedDict
from pathlib import Path
from typing import BinaryIO, cast

import pytest

from profkit.errors import DamagedFileError, LoadError, RefusedPickleError, TooLargeError
from profkit.load.unpack import Readable
from profkit.load.unpickle import plain_data


def _read(data: bytes, limit_bytes: int = 1 << 30) -> object:
    return plain_data(cast("Readable", cast("BinaryIO", io.BytesIO(data))), "x.pickle", limit_bytes)


@pytest.mark.parametrize("protocol", range(2, 6))
def test_plain_data_comes_back_as_it_was(protocol: int) -> None:
    data = {"segments": [{"address": 1 << 60, "pool": (0, 0), "name": "é" * 3_000_000}], "x": None}
    assert _read(pickle.dumps(data, protocol)) == data


@pytest.mark.parametrize("protocol", range(6))
def test_texts_of_every_length_come_back(protocol: int) -> None:
    texts = ["r" * n for n in range(300)]
    numbers = [114, 149, 112, 114 << 8, 149 << 24]
    assert _read(pickle.dumps([texts, numbers], protocol)) == [texts, numbers]


class _Touch:
    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {self.canary}",)


@pytest.mark.parametrize("protocol", range(6))
def test_a_function_is_refused_by_name_and_not_run(tmp_path: Path, protocol: int) -> None:
    canary = tmp_path / "canary"
    with pytest.raises(RefusedPickleError, match=r"names (posix|nt|os)\.system"):
        _read(pickle.dumps([_Touch(canary)], protocol))
    assert not canary.exists()


@pytest.mark.parametrize(
    "program",
    [
        b"(S'touch {}'\nios\nsystem\n.",
        b"(cos\nsystem\nS'touch {}'\no.",
        b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x01x\x85R.",
        b"Pposix\n.",
        b"\x80\x02K\x01Q.",
    ],
)
def test_every_way_to_name_something_is_refused(tmp_path: Path, program: bytes) -> None:
    canary = tmp_path / "canary"
    with pytest.raises(RefusedPickleError):
        _read(program.replace(b"{}", str(canary).encode()))
    assert not canary.exists()


def test_a_class_that_was_given_a_code_and_read_before_is_refused() -> None:
    copyreg.add_extension("collections", "OrderedDict", 240)
    try:
        packed = pickle.dumps(OrderedDict, 2)
        assert pickle.loads(packed) is OrderedDict  # noqa: S301  (our own; it fills the cache)
        with pytest.raises(RefusedPickleError, match=r"collections\.OrderedDict"):
            _read(packed)
    finally:
        copyreg.remove_extension("collections", "OrderedDict", 240)
        copyreg.clear_extension_cache()


@pytest.mark.parametrize(
    "program",
    [
        b"\x80\x04",
        b"\x80\x04]a.",
        b"\x80\x04K\x01K\x02R.",
        b"\x80\x04]}b.",
        b"\x80\x04\x8e\xff\xff\xff\xff\xff\x00\x00\x00abc.",
        b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\xff.",
        b"\x80\x02\x8b\xff\xff\xff\x7f.",
        b"\x80\x02\x8b\xff\xff\xff\xff.",
        b"\x80\x04h\x07.",
        b"\x80\x02Nr\xff\xff\xff\xff.",
        b"\x80\x02Np99999999\n.",
        b"\x80\x04\x95\x07\x00\x00\x00\x00\x00\x00\x00Nr\xff\xff\xff\x00.",
        b"\x80\xff.",
        b"\x80\x05\x97.",
        b"\x80\x04}]K\x01s.",
    ],
)
def test_a_broken_pickle_is_a_load_error(program: bytes) -> None:
    with pytest.raises(DamagedFileError, match=r"x\.pickle "):
        _read(program)


def test_a_pickle_beyond_the_limit_is_too_large() -> None:
    with pytest.raises(TooLargeError):
        _read(pickle.dumps(["a" * 3000]), limit_bytes=1000)


def test_the_garbage_collector_is_on_again_after_a_refusal() -> None:
    assert gc.isenabled()
    with pytest.raises(LoadError):
        _read(b"cos\nsystem\n.")
    assert gc.isenabled()
