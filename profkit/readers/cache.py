"""Caches large recordings, and the results of their analysis, in the user's cache folder.

An entry is one file. It is written as a draft and then renamed, so that it is complete or absent,
and a process that reads it is not disturbed by others that write or remove it. It begins with a
description (what its arrays are, and plain data as MessagePack); its arrays are mapped into memory.
It has no code, all of it is checked, and a damaged entry is removed.

The key of an entry is made from the state of the recording's files, a hash of parts of them, and
the state of profkit's own sources, so that an entry never outlives its sources.
"""

import contextlib
import functools
import mmap
import os
import shutil
import stat
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from isal.isal_zlib import crc32

from profkit._version import __version__
from profkit.dataclass import dataclass
from profkit.folders import cache_folder, cache_limit, is_users, make_own_folder
from profkit.readers.progress import Stages
from profkit.readers.stream import Place, is_file, split_member, text_bytes

STAGE: Final = "cache"
"""The name of the stage of reading and writing entries."""
MIN_TEXT_BYTES: Final = 16 << 20
"""Less text than this is read in a few tenths of a second, so it is not cached."""
MAX_BYTES: Final = 2 << 30
MAX_FREE_SHARE: Final = 0.1
"""The cache takes at most this share of the disk space that is free or its own."""
SETTLED_NS: Final = 2_000_000_000
"""A file that was written less than this before it was read is not cached, because the next write
may leave it the same times.

Source: FAT keeps times to 2 s, and so do some network file systems.
"""
_IN_USE_S: Final = 600
"""An entry that was used more recently than this may still be mapped, which on a network file
system fails once another machine has removed it. An older draft was left by a dead process.
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
        text: The hash that names the entry's file.
        places: The files that the entry is made from.
        parts: Other inputs, such as settings.
        is_settled: Whether a later write to the files certainly changes the key.
        name: The name of one of several entries with the same inputs.
    """

    text: str
    places: tuple[Place, ...]
    parts: tuple[bytes, ...]
    is_settled: bool
    name: str = ""

    def named(self, name: str) -> "Key":
        """Return the key of one of several entries with the same inputs."""
        return replace(self, name=f"-{name}")


@dataclass(frozen=True)
class Entry:
    """The contents of an entry.

    Attributes:
        data: Plain data as MessagePack.
        arrays: Read-only arrays by name, of one dimension. They keep the entry mapped.
    """

    data: bytes
    arrays: Mapping[str, Any]


class _Array(msgspec.Struct, array_like=True):
    """The place of an array in an entry: its length in values, and its offset in bytes."""

    name: str
    dtype: str
    n_values: int
    offset: int
    checksum: int


class _Description(msgspec.Struct, array_like=True):
    """The contents of an entry, whose arrays with their gaps take ``n_bytes``."""

    n_bytes: int
    arrays: list[_Array]
    data: bytes


class Cache:
    """The user's cache of recordings.

    Args:
        max_bytes: The maximum size, by default the smaller of 2 GiB and a tenth of the disk. With 0
            nothing is read or written.
    """

    def __init__(self, max_bytes: int | None = None) -> None:
        try:
            self._folder = cache_folder("recordings")
        except RuntimeError:  # the user has no home
            self._folder, max_bytes = Path(), 0
        self._max_bytes = max_bytes

    def key(self, places: Sequence[Place], *parts: bytes) -> Key | None:
        """Return the key of an entry that is made from some files.

        Args:
            places: The files.
            parts: Other inputs, such as settings.

        Returns:
            None if the files are too small for an entry, or one is not a local file.
        """
        n_bytes = sum(text_bytes(split_member(place)[0]) for place in places)
        if self._max_bytes == 0 or n_bytes < MIN_TEXT_BYTES:
            return None

        # The clock is read first: a write that follows then counts as recent.
        now_ns = time.time_ns()
        code_state = hash_code()
        file_states = [state for place in places if (state := _read_state(place)) is not None]
        if code_state is None or len(file_states) < len(places):
            return None

        # Each part is hashed with its length, so that no two lists of parts run together.
        key_hash = _new_hash()
        for part in (*parts, code_state, *(state.digest for state in file_states)):
            key_hash.update(len(part).to_bytes(8, "little") + part)
        written_ns = max(state.written_ns for state in file_states)
        is_settled = now_ns - written_ns > SETTLED_NS
        return Key(key_hash.hexdigest(), tuple(places), parts, is_settled)

    def is_current(self, key: Key) -> bool:
        """Return whether the files are as they were when a key was made."""
        current = self.key(key.places, *key.parts)
        return current is not None and key == replace(current, name=key.name)

    def find(self, key: Key) -> Entry | None:
        """Return the entry of a key, or None. A damaged entry is removed."""
        path = self._path(key)
        try:
            with path.open("rb") as file:
                status = os.fstat(file.fileno())
                if not (stat.S_ISREG(status.st_mode) and is_users(status)):
                    return None
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            # The time of the file is that of its last use, which decides what is removed.
            os.utime(path)
        except (OSError, ValueError):  # absent; empty
            return None

        try:
            return _decode(mapped)
        except _Damaged:
            self.remove(key)
            return None

    def remove(self, key: Key) -> None:
        """Remove an entry. Processes that have it mapped keep its contents."""
        with contextlib.suppress(OSError):
            self._path(key).unlink()

    def store(self, key: Key, make: Callable[[], Entry], stages: Stages) -> None:
        """Write an entry, unless the files have changed since the key was made.

        An entry that cannot be written, or cannot be encoded, is not cached.

        Args:
            key: The key, made before the files were read.
            make: Makes the entry; it may raise ValueError or OverflowError.
            stages: Records how long it takes, and that it failed.
        """
        failure = ""
        with stages.stage(STAGE):
            if key.is_settled and self.is_current(key):
                try:
                    self._write(self._path(key), make())
                except OSError as error:
                    failure = f"{STAGE}: not written, {error.strerror or error}"
                except (ValueError, OverflowError):
                    failure = f"{STAGE}: not written, the recording has unusual values"

        # Stages are printed by name with --verbose, so the name of this one gives the reason.
        if failure:
            stages.ns[failure] = stages.ns.pop(STAGE)

    def _write(self, path: Path, entry: Entry) -> None:
        """Write an entry, unless another process is writing it or there is no room.

        Raises:
            OSError: It could not be written.
        """
        head, arrays = _encode(entry)
        n_bytes = len(head) + sum(array.nbytes + gap for array, gap in arrays)
        make_own_folder(path.parent)
        if not self._make_room(path.parent, n_bytes):
            return

        # The draft is also the lock: only one process can create it.
        draft = path.with_suffix(_DRAFT)
        try:
            descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            return

        try:
            with open(descriptor, "wb", buffering=0) as file:  # noqa: PTH123  (is open already)
                _write_all(file, head)
                for array, gap in arrays:
                    _write_all(file, array.view(np.uint8))
                    _write_all(file, bytes(gap))
            draft.replace(path)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise

    def _path(self, key: Key) -> Path:
        return self._folder / (key.text + key.name + _ENTRY)

    def _make_room(self, folder: Path, n_bytes: int) -> bool:
        """Remove the least recently used entries for a new one; False if that is not enough."""
        files = []
        with os.scandir(folder) as items:
            for item in items:
                with contextlib.suppress(OSError):
                    status = item.stat(follow_symlinks=False)
                    files.append((status.st_mtime, status.st_size, item.path))

        total_bytes = sum(size for _, size, _ in files)
        limit = MAX_BYTES if self._max_bytes is None else self._max_bytes
        limit = min(limit, int(MAX_FREE_SHARE * (shutil.disk_usage(folder).free + total_bytes)))

        in_use_since = time.time() - _IN_USE_S
        removable = sorted(file for file in files if file[0] < in_use_since)
        if n_bytes + total_bytes - sum(size for _, size, _ in removable) > limit:
            return False

        for _, size, path in removable:
            if n_bytes + total_bytes > limit or path.endswith(_DRAFT):
                with contextlib.suppress(OSError):
                    os.unlink(path)  # noqa: PTH108  (of a scan)
                    total_bytes -= size
        return True


def users_cache() -> Cache:
    """Return the cache, with the maximum size for this process."""
    return Cache(cache_limit())


@dataclass(frozen=True)
class _FileState:
    digest: bytes
    written_ns: int


def _read_state(place: Place) -> _FileState | None:
    """Hash a file's status, its start, its end and parts between them; None if it is not local.

    The path is left out: renaming a file does not change it, and two mounts of a file system may
    give it different paths.
    """
    file, member = split_member(place)
    if not isinstance(file, Path) or not is_file(file):
        return None

    state_hash = _new_hash()
    try:
        with file.open("rb", buffering=0) as raw:
            status = os.fstat(raw.fileno())
            last_part_at = max(0, status.st_size - _PART_BYTES)
            for part in range(_N_PARTS):
                raw.seek(last_part_at * part // (_N_PARTS - 1))
                state_hash.update(raw.read(_PART_BYTES))
    except OSError:
        return None

    state = (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns, member)
    state_hash.update(repr(state).encode("utf-8", "surrogateescape"))
    return _FileState(state_hash.digest(), max(status.st_mtime_ns, status.st_ctime_ns))


@functools.cache
def hash_code() -> bytes | None:
    """Hash the state of profkit's sources; None if it was not installed as files.

    Once per process: it runs what it has imported, whatever becomes of the files.
    """
    folder = Path(__file__).parents[1]
    states = sorted(_scan_states(str(folder)))
    if not states:
        return None

    about = f"{__version__} {sys.version_info[:2]} {sys.byteorder} {folder}"
    code_hash = _new_hash(about.encode("utf-8", "surrogateescape"))
    for state in states:
        code_hash.update(repr(state).encode("utf-8", "surrogateescape"))
    return bytes(code_hash.digest())


def _scan_states(folder: str) -> Iterable[tuple[str, int, int]]:
    """Yield path, size and time of each file in a folder and below it."""
    with contextlib.suppress(OSError), os.scandir(folder) as items:
        for item in items:
            if item.is_dir() and item.name != "__pycache__":
                yield from _scan_states(item.path)
            elif item.is_file():
                status = item.stat()
                yield item.path, status.st_size, status.st_mtime_ns


def _new_hash(text: bytes = b"") -> Any:  # noqa: ANN401  (hashlib's)
    import hashlib  # noqa: PLC0415  (slow, and no small file needs it)

    return hashlib.blake2b(text, digest_size=20)


def _checksum(content: Any) -> int:  # noqa: ANN401  (anything with a buffer)
    return int(crc32(content))


def _gap(n_bytes: int) -> int:
    """Return the number of bytes from an offset to the next one at which an array may begin."""
    return -n_bytes % _ALIGNMENT


def _encode(entry: Entry) -> tuple[bytes, list[tuple[Any, int]]]:
    """Return the beginning of an entry, and each array with the gap after it."""
    arrays = {}
    for name, array in entry.arrays.items():
        dtype = array.dtype.newbyteorder("<")
        arrays[name] = np.ascontiguousarray(array).astype(dtype, copy=False)

    offset, places = 0, []
    for name, array in arrays.items():
        checksum = _checksum(array.view(np.uint8)) if len(array) else 0
        places.append(_Array(name, array.dtype.str, len(array), offset, checksum))
        offset += array.nbytes + _gap(array.nbytes)

    # Offsets count from the end of the description, whose length would else depend on them.
    description = msgspec.msgpack.encode(_Description(offset, places, entry.data))
    checksum, n_bytes = _checksum(description), len(description)
    head = _MAGIC + checksum.to_bytes(4, "little") + n_bytes.to_bytes(4, "little") + description
    head += bytes(_gap(len(head)))
    return head, [(array, _gap(array.nbytes)) for array in arrays.values()]


def _write_all(file: Any, content: Any) -> None:  # noqa: ANN401  (a raw file, a buffer)
    # A raw file may write less than it is given.
    unwritten = memoryview(content)
    while unwritten:
        unwritten = unwritten[file.write(unwritten) :]


def _decode(mapped: mmap.mmap) -> Entry:
    """Return the contents of an entry.

    Raises:
        _Damaged: They are not what was written.
    """
    head = mapped[:_HEAD_BYTES]
    end = _HEAD_BYTES + int.from_bytes(head[12:], "little")
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
    arrays = {place.name: _map_array(mapped, start, place) for place in description.arrays}
    return Entry(description.data, arrays)


def _map_array(mapped: mmap.mmap, start: int, place: _Array) -> Any:  # noqa: ANN401  (numpy's)
    """Return an array of an entry.

    Raises:
        _Damaged: It is not within the entry, or not what was written.
    """
    n_bytes = len(mapped) - start
    if place.dtype not in _DTYPES or not 0 <= place.offset <= n_bytes or place.offset % _ALIGNMENT:
        raise _Damaged
    dtype = np.dtype(place.dtype)
    if not 0 <= place.n_values <= (n_bytes - place.offset) // dtype.itemsize:
        raise _Damaged
    if not place.n_values:
        return np.zeros(0, dtype)

    array = np.frombuffer(mapped, dtype, place.n_values, start + place.offset)
    content = array.view(np.uint8)
    if _checksum(content) != place.checksum:
        raise _Damaged
    # NumPy counts on bytes of 0 and 1 when it indexes by a mask.
    if place.dtype == _BOOL and content.max() > 1:
        raise _Damaged
    return array
