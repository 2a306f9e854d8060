"""Stores the recordings of a run: small, without names of the machine, with their provenance."""

import gzip
import hashlib
import json
import pickle
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch

import profkit
from profkit.capture.memory.cuda.history import PROTOCOL
from profkit.capture.memory.cuda.history import SUFFIX as SNAPSHOT_SUFFIX
from profkit.model.report import Report
from profkit.readers.live_memory import SUFFIX as MEMORY_SUFFIX
from traces.recordings import (
    ANY_FOLDER,
    SUFFIX,
    anonymous_name,
    expected_part,
    store_anonymized,
    write,
)

LARGEST_BYTES: Final = 2_000_000
"""A repository keeps every version of what is in it."""
ENDINGS: Final = (SUFFIX, MEMORY_SUFFIX, SNAPSHOT_SUFFIX)
ANY_INSTALLED: Final = "/home/user/site-packages"
_INSTALLED: Final = str(Path(torch.__file__).parents[1])
_SMALLEST: Final = 9
_OF_A_DEVICE: Final = ("devices", "syncs", "copies")
_N_KERNELS: Final = 5


def keep(left: Path, target: Path) -> list[Path]:
    """Store the recordings of a run, replacing older ones.

    Args:
        left: The folder in which the program ran.
        target: The folder of the recording.

    Returns:
        The files that are too large.
    """
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for ending in (SUFFIX, MEMORY_SUFFIX):
        for recording in sorted((left / "out").rglob("*" + ending)):
            store_anonymized(recording, target, left)
    # The snapshot of an out-of-memory error has more than one from the end.
    snapshots = [
        *sorted((left / "out").rglob("*" + SNAPSHOT_SUFFIX)),
        left / f"end{SNAPSHOT_SUFFIX}",
    ]
    written = next((path for path in snapshots if path.exists()), None)
    if written is not None:
        keep_snapshot(written, target / anonymous_name(written.name), left)
    return [path for path in files_of(target) if path.stat().st_size > LARGEST_BYTES]


def files_of(target: Path) -> list[Path]:
    """Return the recordings in a folder: the trace first."""
    return [path for ending in ENDINGS for path in sorted(target.glob("*" + ending))]


def keep_snapshot(written: Path, kept: Path, folder: Path) -> None:
    """Compress a snapshot into a file that is small enough, with neutral folder names.

    The older half of a history that is too long is dropped until it fits, as the allocator itself
    drops its oldest entries.

    Args:
        written: The snapshot that profkit wrote.
        kept: The file to write.
        folder: The folder in which the program ran.
    """
    with gzip.open(written) as stream:
        snapshot = pickle.load(stream)  # noqa: S301  (written by this program)
    places = {str(folder): ANY_FOLDER, str(folder.resolve()): ANY_FOLDER, _INSTALLED: ANY_INSTALLED}
    snapshot = copy_with_other_folders(snapshot, places, {})
    while True:
        packed = gzip.compress(pickle.dumps(snapshot, PROTOCOL), _SMALLEST, mtime=0)
        histories = snapshot["device_traces"]
        if len(packed) <= LARGEST_BYTES or not any(histories):
            break
        snapshot["device_traces"] = [entries[(len(entries) + 1) // 2 :] for entries in histories]
    kept.write_bytes(packed)


def copy_with_other_folders(value: Any, places: Mapping[str, str], seen: dict[int, Any]) -> Any:  # noqa: ANN401
    """Return a copy of plain data with other folder names; shared objects stay shared.

    Args:
        value: Dictionaries, lists, tuples, strings, numbers.
        places: From names of folders to their new names.
        seen: The copies so far, by the identity of the originals.
    """
    if not isinstance(value, dict | list | tuple | str):
        return value
    if id(value) in seen:
        return seen[id(value)]
    new: Any

    if isinstance(value, str):
        new = value
        for place, name in places.items():
            new = new.replace(place, name)
    elif isinstance(value, dict):
        new = {key: copy_with_other_folders(child, places, seen) for key, child in value.items()}
    else:
        new = type(value)([copy_with_other_folders(child, places, seen) for child in value])

    seen[id(value)] = new
    return new


def report_on(target: Path) -> Report | None:
    """Return the report on a folder's recordings, or None if there are none.

    Of several processes, only the first one's recordings are used.
    """
    firsts = [next(iter(sorted(target.glob("*" + ending))), None) for ending in ENDINGS]
    folders_there = [path for path in firsts if path is not None]
    return profkit.analyze(folders_there) if folders_there else None


def what_a_device_must_have(report: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a JSON report on a GPU recording that must not change."""
    summary = report["summary"]
    kernels = [
        {key: kernel[key] for key in ("name", "n_calls", "total_ns")}
        for kernel in summary["top_kernels"][:_N_KERNELS]
    ]
    of_a_device = {key: summary[key] for key in _OF_A_DEVICE}
    return {**expected_part(dict(report)), **of_a_device, "top_kernels": kernels}


def expect(target: Path, report: Report) -> None:
    """Write the expected report beside recordings."""
    decoded = json.loads(profkit.render(report, "json"))
    write(target / "expected.json", what_a_device_must_have(decoded))


def digest_of(*parts: Path | str) -> str:
    """Return one digest of files and strings, in order.

    Args:
        parts: Files, folders (all their Python files) and strings.
    """
    digest = hashlib.sha256()
    for part in parts:
        if isinstance(part, str):
            digest.update(part.encode() + b"\0")
            continue
        files = sorted(part.rglob("*.py")) if part.is_dir() else [part]
        for file in files:
            digest.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()
