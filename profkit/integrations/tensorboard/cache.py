"""A bounded cache of results on disk, with the analyzed files as the key.

An entry is a folder of files that is written elsewhere and renamed into place, so that it is either
complete or absent. Nothing is cached in memory.
"""

import contextlib
import hashlib
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Final

from profkit._version import __version__
from profkit.folders import cache_folder, make_own_folder

_FORMAT: Final = "4"
"""Changes with the format of what the worker writes."""
LIMIT_BYTES: Final = 1 << 30
_DRAFT: Final = "draft-"
_STALE_S: Final = 86_400
"""A draft of a day ago was left by a server that was killed."""


def key_of(*parts: str) -> str:
    """Return the key of an entry from some parts, different for each version of profkit."""
    text = "\0".join((_FORMAT, __version__, *parts))
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


class ResultCache:
    """A folder of entries.

    Args:
        folder: The folder; if it is not writable, a temporary one is used.
        limit_bytes: Beyond this size the least recently read entries are removed.
    """

    def __init__(self, folder: Path | None = None, limit_bytes: int = LIMIT_BYTES) -> None:
        self._preferred = folder
        self._limit_bytes = limit_bytes
        self._folder: Path | None = None

    @property
    def folder(self) -> Path:
        """Return the folder, created on first use."""
        if self._folder is None:
            preferred = self._preferred or cache_folder("tensorboard")
            try:
                make_own_folder(preferred)
                with tempfile.TemporaryFile(dir=preferred):
                    pass
                self._folder = preferred
            except OSError:
                self._folder = Path(tempfile.mkdtemp(prefix="profkit-tensorboard-"))
        return self._folder

    def read(self, key: str, name: str, *, touch: bool = True) -> bytes | None:
        """Return a file of an entry, or None if it does not exist.

        Args:
            key: The entry's key, from :func:`key_of`.
            name: The file's name.
            touch: Whether this counts as a use of the entry, which delays its removal.
        """
        entry = self.folder / key
        with contextlib.suppress(OSError):
            content = (entry / name).read_bytes()
            if touch:
                os.utime(entry)
            return content
        return None

    def path(self, key: str, name: str) -> str:
        """Return the path of a file of an entry, whether it exists or not."""
        return str(self.folder / key / name)

    def has(self, key: str) -> bool:
        """Return whether there is an entry."""
        return (self.folder / key).is_dir()

    def draft(self) -> Path:
        """Create an empty folder for a new entry."""
        return Path(tempfile.mkdtemp(prefix=_DRAFT, dir=self.folder))

    def commit(self, draft: Path, key: str) -> None:
        """Make a draft an entry, and remove old entries beyond the limit."""
        target = self.folder / key
        with contextlib.suppress(OSError):
            draft.replace(target)
        shutil.rmtree(draft, ignore_errors=True)  # another server has written the entry
        self._prune(key)

    def _prune(self, newest: str) -> None:
        entries = []
        for entry in list(self.folder.iterdir()):
            with contextlib.suppress(OSError):
                is_stale = time.time() - entry.stat().st_mtime > _STALE_S
                if is_stale and entry.name.startswith(_DRAFT):
                    shutil.rmtree(entry, ignore_errors=True)
                n_bytes = sum(file.stat().st_size for file in entry.iterdir())
                entries.append((entry.stat().st_mtime_ns, n_bytes, entry))

        # Reading an entry touches it: the first ones are those not read for longest.
        total = sum(n_bytes for _, n_bytes, _ in entries)
        for _, n_bytes, entry in sorted(entries, key=lambda entry: entry[0]):
            if total <= self._limit_bytes:
                return
            if entry.name != newest and not entry.name.startswith(_DRAFT):
                shutil.rmtree(entry, ignore_errors=True)
                total -= n_bytes
