"""Writes the text of a trace to a file, compressed according to its name."""

import gzip
import io
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Final


def write(path: Path, text: bytes, n_members: int = 1) -> None:
    """Write a trace, compressed according to its name.

    Args:
        path: The suffixes ``.gz``, ``.zst``, ``.zip`` and ``.tar`` are applied in their order
            (``.tar.gz``). The member of an archive is ``trace.json``, ``trace.json.gz`` and so on.
        text: The trace.
        n_members: Number of members of a gzip stream: some programs compress piece by piece.
    """
    name = "trace.json"
    for suffix in path.suffixes:
        if suffix == ".gz":
            text = _compress_gzip(text, n_members)
        elif suffix in _COMPRESSORS:
            text = _COMPRESSORS[suffix](text, name)
        else:
            continue
        name += suffix
    path.write_bytes(text)


def _compress_gzip(text: bytes, n_members: int) -> bytes:
    # A time of zero makes the same trace the same file.
    length = -(-len(text) // n_members) or 1
    pieces = [text[at : at + length] for at in range(0, len(text), length)] or [b""]
    return b"".join(gzip.compress(piece, compresslevel=1, mtime=0) for piece in pieces)


def _compress_zstd(text: bytes, _: str) -> bytes:
    import zstandard  # noqa: PLC0415  (an extra, needed for such files only)

    return bytes(zstandard.compress(text))


def _pack_zip(text: bytes, name: str) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr(zipfile.ZipInfo(name), text, zipfile.ZIP_DEFLATED)
    return packed.getvalue()


def _pack_tar(text: bytes, name: str) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        info = tarfile.TarInfo(name)
        info.size = len(text)
        archive.addfile(info, io.BytesIO(text))
    return packed.getvalue()


_COMPRESSORS: Final[dict[str, Callable[[bytes, str], bytes]]] = {
    ".zst": _compress_zstd,
    ".zip": _pack_zip,
    ".tar": _pack_tar,
}
