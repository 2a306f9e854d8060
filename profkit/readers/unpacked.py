"""Unpacks an archive of several recordings once, for all that read its members.

A member of a tar is found only by reading all that is before it, and whoever opens a zip reads its
directory anew. So reading each of n members takes n passes over the archive, but copying them all
takes one.
"""

import errno
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import BinaryIO, Final

from isal import isal_zlib

from profkit.errors import LoadError
from profkit.readers.archives import (
    BROKEN_ARCHIVE,
    MAX_COMPRESSION_RATIO,
    MEMBER,
    MIN_LIMIT_BYTES,
    Readable,
    iterate_members,
)
from profkit.readers.progress import n_bytes_of
from profkit.readers.stream import current_copies, open_stored, place_of, use_copies

_BLOCK_BYTES: Final = 1 << 20
_FASTEST: Final = 1
"""The level of compression: a trace becomes 10 times smaller, at about the speed of a disk."""
_GZIP_WBITS: Final = 31
_SHARE_OF_FREE: Final = 0.5
"""Of the disk's free space, that the copies may take."""


@contextmanager
def unpacked(archive: str) -> Iterator[None]:
    """Let this process read the members of an archive from copies, which are deleted at the end.

    Members that cannot be copied, as the archive is damaged or the disk is full, are still read
    from the archive, and reading them says what is wrong.

    Args:
        archive: Its path or URL.
    """
    before = current_copies()
    copies = dict(before)
    with ExitStack() as stack:
        with suppress(LoadError, *BROKEN_ARCHIVE):
            folder = TemporaryDirectory(prefix="profkit-", ignore_cleanup_errors=True)
            stack.enter_context(folder)
            with open_stored(place_of(archive)) as raw:
                for name, copy in _copy_members(raw, archive, Path(folder.name)):
                    copies[f"{place_of(archive)}{MEMBER}{name}"] = copy

        use_copies(copies)
        try:
            yield
        finally:
            use_copies(before)


def _copy_members(raw: BinaryIO, archive: str, folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield the name of each member that is intact, and its compressed copy.

    Raises:
        OSError: The disk is full, or has not enough free space left for others.
    """
    free_bytes = int(_SHARE_OF_FREE * shutil.disk_usage(folder).free)
    # Copying a decompression bomb would not fill the disk, but take very long.
    text_bytes = max(MIN_LIMIT_BYTES, MAX_COMPRESSION_RATIO * n_bytes_of(raw))

    for number, (name, member) in enumerate(iterate_members(raw, archive)):
        copy = folder / f"{number}.gz"
        text_bytes -= _compress(member, copy)
        free_bytes -= copy.stat().st_size
        if member.broken:
            return
        if min(text_bytes, free_bytes) < 0:
            raise OSError(errno.ENOSPC, "The copies of an archive's members are too large.")
        yield name, copy


def _compress(member: Readable, copy: Path) -> int:
    """Write a compressed copy, and return the number of bytes before compression."""
    n_bytes = 0
    deflate = isal_zlib.compressobj(_FASTEST, wbits=_GZIP_WBITS)
    with copy.open("wb") as file:
        while block := member.read(_BLOCK_BYTES):
            n_bytes += len(block)
            file.write(deflate.compress(block))
        file.write(deflate.flush())
    return n_bytes
