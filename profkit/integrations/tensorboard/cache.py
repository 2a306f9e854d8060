"""What came of analyses, on disk: found again by what was analyzed, and bounded in size.

An entry is a folder of files that is made elsewhere and renamed into place, so that it is there
as a whole or not at all. Nothing of it is kept in memory.
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

_LAYOUT: Final = "2"
"""Changes when what the worker writes does."""
LIMIT_BYTES: Final = 1 << 30
_DRAFT: Final = "draft-"
_FORGOTTEN_S: Final = 86_400
"""After a day a draft is what a killed server left."""


def key_of(*parts: str) -> str:
    """The key of an entry: another one for each version of profkit and of each file.

    Args:
        *parts: What it was made from.
    """
    text = "\0".join((_LAYOUT, __version__, *parts))
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def default_folder() -> Path:
    """``$XDG_CACHE_HOME/profkit/tensorboard``, or below ``~/.cache``.

    Source: "XDG Base Directory Specification": a path that is not absolute is passed over.
    """
    home = Path(os.environ.get("XDG_CACHE_HOME") or "")
    if not home.is_absolute():
        home = Path("~/.cache").expanduser()
    return home / "profkit" / "tensorboard"


class ResultCache:
    """A folder of entries.

    Args:
        folder: The folder; where it cannot be made, a temporary one takes its place.
        limit_bytes: From how many bytes on the entries that nobody read lately are removed.
    """

    def __init__(self, folder: Path | None = None, limit_bytes: int = LIMIT_BYTES) -> None:
        self._wanted = folder
        self._limit_bytes = limit_bytes
        self._made: Path | None = None

    @property
    def folder(self) -> Path:
        """The folder; made when it is first asked for."""
        if self._made is None:
            wanted = self._wanted or default_folder()
            try:
                wanted.mkdir(mode=0o700, parents=True, exist_ok=True)
                with tempfile.TemporaryFile(dir=wanted):
                    pass
                self._made = wanted
            except OSError:
                self._made = Path(tempfile.mkdtemp(prefix="profkit-tensorboard-"))
        return self._made

    def read(self, key: str, name: str, *, in_passing: bool = False) -> bytes | None:
        """A file of an entry, or None where there is none.

        Args:
            key: The entry's key, from :func:`key_of`.
            name: The file's name.
            in_passing: Whether nobody asked for this entry: then it is kept no longer for it.
        """
        entry = self.folder / key
        with contextlib.suppress(OSError):
            content = (entry / name).read_bytes()
            if not in_passing:
                os.utime(entry)  # read lately: the last to go
            return content
        return None

    def path(self, key: str, name: str) -> str:
        """Where a file of an entry is, whether there is one or not.

        Args:
            key: The entry's key.
            name: The file's name.
        """
        return str(self.folder / key / name)

    def has(self, key: str) -> bool:
        """Whether there is an entry."""
        return (self.folder / key).is_dir()

    def draft(self) -> Path:
        """An empty folder in which an entry can be made."""
        return Path(tempfile.mkdtemp(prefix=_DRAFT, dir=self.folder))

    def keep(self, draft: Path, key: str) -> None:
        """Make a draft an entry, and see to it that all entries stay within the limit.

        Args:
            draft: What :meth:`draft` gave, filled.
            key: The entry's key.
        """
        target = self.folder / key
        with contextlib.suppress(OSError):
            draft.replace(target)
        shutil.rmtree(draft, ignore_errors=True)  # another server was first
        self._prune(key)

    def _prune(self, newest: str) -> None:
        """Remove the entries that were read longest ago until the rest is within the limit."""
        entries = []
        for draft in self.folder.glob(f"{_DRAFT}*"):
            with contextlib.suppress(OSError):
                if time.time() - draft.stat().st_mtime > _FORGOTTEN_S:
                    shutil.rmtree(draft, ignore_errors=True)
        for entry in self.folder.iterdir():
            with contextlib.suppress(OSError):
                n_bytes = sum(file.stat().st_size for file in entry.iterdir())
                entries.append((entry.stat().st_mtime_ns, n_bytes, entry))
        total = sum(n_bytes for _, n_bytes, _ in entries)
        for _, n_bytes, entry in sorted(entries, key=lambda each: each[0]):
            if total <= self._limit_bytes:
                return
            if entry.name != newest and not entry.name.startswith(_DRAFT):
                shutil.rmtree(entry, ignore_errors=True)
                total -= n_bytes
