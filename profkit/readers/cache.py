"""The cache of large recordings: what reading and analyzing them gave, in the user's cache folder.

An entry is one file that is written beside its place and renamed into it, so that it is complete or
absent, and a process that reads it is not disturbed by others that write or remove it. It begins
with a description (what its arrays are, and plain data as MessagePack); its arrays are mapped into
memory. Nothing of it is code, everything of it is checked, and a damaged entry is removed.

The key of an entry is made from the state of the recording's files, a hash of parts of them, and
the state of profkit's own sources, so that no entry outlives what it was made from.
"""

import contextlib
import mmap
import os
import shutil
import stat
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from isal.isal_zlib import crc32

from profkit._version import __version__
from profkit.dataclass import dataclass
from profkit.folders import cache_folder, cache_limit
from profkit.readers.progress import Stages
from profkit.readers.stream import Place, is_file, split_member, text_bytes

STAGE: Final = "cache"
"""The name of the stage of reading and writing entries."""
MIN_TEXT_BYTES: Final = 16 << 20
"""Less text than this is read in a few tenths of a second."""
MAX_BYTES: Final = 2 << 30
MAX_FREE_SHARE: Final = 0.1
"""The cache takes at most this share of the disk that it could take."""
SETTLED_NS: Final = 2_000_000_000
"""A file that was written to less than this before it was read is not cached: the next write may
leave it the same times.

Source: FAT keeps times to 2 s, and so do some network file systems.
"""
_IN_USE_S: Final = 600
"""An entry that was used since then may still be mapped, which on a network file system fails once
another machine has removed it; a draft that was begun before then has been left by a dead process.
"""
_PART_BYTES: Final = 1 << 16
_N_PARTS: Final = 16
_MAGIC: Final = b"profkit\n"
_HEAD_BYTES: Final = 16
"""The magic, the checksum of the description and its length."""
_ALIGNMENT: Final = 64
_BOOL: Final = "|b1"
_DTYPES: Final = ("|u1", _BOOL, "<i4", "<i8", "<f8")
_ENTRY: Final = ".entry"
_DRAFT: Final = ".draft"


class _Damaged(Exception):  # noqa: N818  (of this module)
    """An entry is not what was written."""


@dataclass(frozen=True)
class Key:
    """The key of an entry.

    Attributes:
        text: Its name.
        places: The files that it is made from.
        parts: What else it depends on.
        is_settled: Whether a later write to the files changes it.
        name: The name of one of several entries that depend on the same.
    """

    text: str
    places: tuple[Place, ...]
    parts: tuple[bytes, ...]
    is_settled: bool
    name: str = ""

    def named(self, name: str) -> "Key":
        """The key of one of several entries that depend on the same."""
        return replace(self, name=f"-{name}")


@dataclass(frozen=True)
class Entry:
    """What an entry contains.

    Attributes:
        data: Plain data as MessagePack.
        arrays: Read-only arrays by name, each of one dimension, as long as the entry is mapped.
    """

    data: bytes
    arrays: Mapping[str, Any]


class _Array(msgspec.Struct, array_like=True):
    """Where an array is: its offset in bytes, and its number of entries."""

    name: str
    dtype: str
    n: int
    offset: int
    checksum: int


class _Description(msgspec.Struct, array_like=True):
    """What an entry of ``n_bytes`` contains."""

    n_bytes: int
    arrays: list[_Array]
    data: bytes


class Cache:
    """The user's cache of recordings.

    Args:
        max_bytes: Its maximum size, by default the smaller of 2 GiB and a tenth of the disk; with 0
            nothing is read or written.
    """

    def __init__(self, max_bytes: int | None = None) -> None:
        try:
            self._folder = cache_folder("recordings")
        except RuntimeError:  # the user has no home
            self._folder, max_bytes = Path(), 0
        self._max_bytes = max_bytes

    def key(self, places: Sequence[Place], *parts: bytes) -> Key | None:
        """The key of what is made from some files.

        Args:
            places: The files.
            parts: What else it depends on.

        Returns:
            None if it is not worth an entry, or a file is not a local one.
        """
        n_bytes = sum(text_bytes(split_member(each)[0]) for each in places)
        if self._max_bytes == 0 or n_bytes < MIN_TEXT_BYTES:
            return None
        now_ns = time.time_ns()
        code, states = _state_of_code(), [_state_of(place) for place in places]
        known = [each for each in states if each is not None]
        if code is None or len(known) < len(states):
            return None
        found = _new_hash()
        for part in (*parts, code, *(each.digest for each in known)):
            found.update(len(part).to_bytes(8, "little") + part)
        written_ns = max(each.written_ns for each in known)
        is_settled = now_ns - written_ns > SETTLED_NS
        return Key(found.hexdigest(), tuple(places), parts, is_settled)

    def is_current(self, key: Key) -> bool:
        """Whether the files are as they were when a key was made."""
        current = self.key(key.places, *key.parts)
        return current is not None and key == replace(current, name=key.name)

    def find(self, key: Key) -> Entry | None:
        """The entry of a key, or None. A damaged one is removed."""
        path = self._path(key)
        try:
            with path.open("rb") as file:
                if not _is_own(os.fstat(file.fileno())):
                    return None
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            os.utime(path)
        except (OSError, ValueError):  # absent; empty
            return None
        try:
            return _read(mapped)
        except _Damaged:
            self.remove(key)
            return None

    def remove(self, key: Key) -> None:
        """Remove an entry, which does not disturb who has it mapped."""
        with contextlib.suppress(OSError):
            self._path(key).unlink()

    def store(self, key: Key, make: Callable[[], Entry], stages: Stages) -> None:
        """Write an entry, unless the files have changed since the key was made.

        What cannot be written, or cannot be encoded, is not cached.

        Args:
            make: Makes the entry; it may raise ValueError or OverflowError.
            stages: Records how long it takes, and that it failed.
        """
        failed = ""
        with stages.stage(STAGE):
            if key.is_settled and self.is_current(key):
                try:
                    self._write(self._path(key), make())
                except OSError as error:
                    failed = f"{STAGE}: not written, {error.strerror or error}"
                except (ValueError, OverflowError):
                    failed = f"{STAGE}: not written, the recording has unusual values"
        if failed:
            stages.ns[failed] = stages.ns.pop(STAGE)

    def _write(self, path: Path, entry: Entry) -> None:
        """Write an entry, unless another process is writing it or there is no room.

        Raises:
            OSError: It could not be written.
        """
        head, parts = _layout(entry)
        n_bytes = len(head) + sum(each.nbytes + gap for each, gap in parts)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not self._make_room(path.parent, n_bytes):
            return
        draft = path.with_suffix(_DRAFT)
        try:
            descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            return
        try:
            with open(descriptor, "wb", buffering=0) as file:  # noqa: PTH123  (is open already)
                _write(file, head)
                for array, gap in parts:
                    _write(file, array.view(np.uint8))
                    _write(file, bytes(gap))
            draft.replace(path)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise

    def _path(self, key: Key) -> Path:
        return self._folder / (key.text + key.name + _ENTRY)

    def _make_room(self, folder: Path, n_bytes: int) -> bool:
        """Remove the least recently used entries for a new one; False if that is not enough."""
        files = []
        with os.scandir(folder) as found:
            for each in found:
                with contextlib.suppress(OSError):
                    status = each.stat(follow_symlinks=False)
                    files.append((status.st_mtime, status.st_size, each.path))
        total = sum(size for _, size, _ in files)
        limit = MAX_BYTES if self._max_bytes is None else self._max_bytes
        limit = min(limit, int(MAX_FREE_SHARE * (shutil.disk_usage(folder).free + total)))
        oldest = time.time() - _IN_USE_S
        removable = sorted(each for each in files if each[0] < oldest)
        if n_bytes + total - sum(size for _, size, _ in removable) > limit:
            return False
        for _, size, path in removable:
            if n_bytes + total > limit or path.endswith(_DRAFT):
                with contextlib.suppress(OSError):
                    os.unlink(path)  # noqa: PTH108  (of a scan)
                    total -= size
        return True


def users_cache() -> Cache:
    """The cache, with the maximum size for this process."""
    return Cache(cache_limit())


@dataclass(frozen=True)
class _FileState:
    digest: bytes
    written_ns: int


def _state_of(place: Place) -> _FileState | None:
    """The state of a file, with a hash of its start, its end and parts between them.

    The file's path is no part of it: neither is a renamed file another one, nor do two mounts of
    a file system give a file one path.
    """
    file, member = split_member(place)
    if not isinstance(file, Path) or not is_file(file):
        return None
    found = _new_hash()
    try:
        with file.open("rb", buffering=0) as raw:
            status = os.fstat(raw.fileno())
            last = max(0, status.st_size - _PART_BYTES)
            for part in range(_N_PARTS):
                raw.seek(last * part // (_N_PARTS - 1))
                found.update(raw.read(_PART_BYTES))
    except OSError:
        return None
    state = (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns, member)
    found.update(repr(state).encode("utf-8", "surrogateescape"))
    return _FileState(found.digest(), max(status.st_mtime_ns, status.st_ctime_ns))


@lru_cache(maxsize=1)
def _state_of_code() -> bytes | None:
    """The state of profkit's sources; None if it was not installed as files."""
    folder = Path(__file__).parents[1]
    about = f"{__version__} {sys.version_info[:2]} {sys.byteorder} {folder}"
    found = _new_hash(about.encode("utf-8", "surrogateescape"))
    n_files = 0
    for state in sorted(_states_below(str(folder))):
        found.update(repr(state).encode("utf-8", "surrogateescape"))
        n_files += 1
    return found.digest() if n_files else None


def _states_below(folder: str) -> Iterable[tuple[str, int, int]]:
    with contextlib.suppress(OSError), os.scandir(folder) as found:
        for each in found:
            if each.is_dir() and each.name != "__pycache__":
                yield from _states_below(each.path)
            elif each.is_file():
                status = each.stat()
                yield each.path, status.st_size, status.st_mtime_ns


def _new_hash(text: bytes = b"") -> Any:  # noqa: ANN401  (hashlib's)
    import hashlib  # noqa: PLC0415  (slow, and no small file needs it)

    return hashlib.blake2b(text, digest_size=20)


def _is_own(status: os.stat_result) -> bool:
    """Whether a file is a regular one that this user wrote."""
    is_users = not hasattr(os, "geteuid") or status.st_uid == os.geteuid()
    return stat.S_ISREG(status.st_mode) and is_users


def _checksum(content: Any) -> int:  # noqa: ANN401  (anything with a buffer)
    return int(crc32(content))


def _gap(n_bytes: int) -> int:
    """The bytes from an offset to the next one at which an array may begin."""
    return -n_bytes % _ALIGNMENT


def _layout(entry: Entry) -> tuple[bytes, list[tuple[Any, int]]]:
    """The beginning of an entry, and each array with the gap after it."""
    plain = {name: np.ascontiguousarray(array) for name, array in entry.arrays.items()}
    plain = {
        name: array.astype(array.dtype.newbyteorder("<"), copy=False)
        for name, array in plain.items()
    }
    offset, listed = 0, []
    for name, array in plain.items():
        checksum = _checksum(array.view(np.uint8)) if len(array) else 0
        listed.append(_Array(name, array.dtype.str, len(array), offset, checksum))
        offset += array.nbytes + _gap(array.nbytes)
    # Offsets count from the end of the description, whose length would else depend on them.
    description = msgspec.msgpack.encode(_Description(offset, listed, entry.data))
    head = b"".join(
        (
            _MAGIC,
            _checksum(description).to_bytes(4, "little"),
            len(description).to_bytes(4, "little"),
            description,
        )
    )
    head += bytes(_gap(len(head)))
    return head, [(array, _gap(array.nbytes)) for array in plain.values()]


def _write(file: Any, content: Any) -> None:  # noqa: ANN401  (a raw file, a buffer)
    rest = memoryview(content)
    while rest:
        rest = rest[file.write(rest) :]


def _read(mapped: mmap.mmap) -> Entry:
    """What an entry contains.

    Raises:
        _Damaged: Not what was written.
    """
    head = mapped[:_HEAD_BYTES]
    n_description = int.from_bytes(head[12:], "little")
    end = _HEAD_BYTES + n_description
    if len(head) < _HEAD_BYTES or not head.startswith(_MAGIC) or end > len(mapped):
        raise _Damaged
    content = mapped[_HEAD_BYTES:end]
    if _checksum(content) != int.from_bytes(head[8:12], "little"):
        raise _Damaged
    try:
        description = msgspec.msgpack.decode(content, type=_Description)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise _Damaged from error
    start = end + _gap(end)
    if start + description.n_bytes != len(mapped):
        raise _Damaged
    arrays = {each.name: _array(mapped, start, each) for each in description.arrays}
    return Entry(description.data, arrays)


def _array(mapped: mmap.mmap, start: int, about: _Array) -> Any:  # noqa: ANN401  (numpy's)
    """An array of an entry.

    Raises:
        _Damaged: It is not within the entry, or not what was written.
    """
    n_bytes = len(mapped) - start
    if about.dtype not in _DTYPES or not 0 <= about.offset <= n_bytes or about.offset % _ALIGNMENT:
        raise _Damaged
    dtype = np.dtype(about.dtype)
    if not 0 <= about.n <= (n_bytes - about.offset) // dtype.itemsize:
        raise _Damaged
    if not about.n:
        return np.zeros(0, dtype)
    found = np.frombuffer(mapped, dtype, about.n, start + about.offset)
    content = found.view(np.uint8)
    if _checksum(content) != about.checksum:
        raise _Damaged
    # NumPy counts on it when it indexes.
    if about.dtype == _BOOL and content.max() > 1:
        raise _Damaged
    return found
