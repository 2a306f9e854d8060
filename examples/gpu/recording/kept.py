"""Puts what a run left into its folder: small, without the machine's names, with its provenance."""

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
    keep_neutral,
    neutral_name,
    what_must_hold,
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
    """Keep what a run left, in place of what was there.

    Args:
        left: The folder in which the program ran.
        target: The folder of the recording.

    Returns:
        The files that are larger than they may be.
    """
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for ending in (SUFFIX, MEMORY_SUFFIX):
        for recording in sorted((left / "out").rglob("*" + ending)):
            keep_neutral(recording, target, left)
    # One from when memory ran out tells more than one from the end.
    snapshots = [
        *sorted((left / "out").rglob("*" + SNAPSHOT_SUFFIX)),
        left / f"end{SNAPSHOT_SUFFIX}",
    ]
    written = next((path for path in snapshots if path.exists()), None)
    if written is not None:
        keep_snapshot(written, target / neutral_name(written.name), left)
    return [path for path in files_of(target) if path.stat().st_size > LARGEST_BYTES]


def files_of(target: Path) -> list[Path]:
    """The recordings in a folder: the trace first.

    Args:
        target: The folder.
    """
    return [path for ending in ENDINGS for path in sorted(target.glob("*" + ending))]


def keep_snapshot(written: Path, kept: Path, folder: Path) -> None:
    """Pack a snapshot into a file that is small enough, without the names of folders.

    Of a history that is too long its older half is left out until it fits, as the allocator itself
    leaves out what is too old.

    Args:
        written: The snapshot that profkit wrote just now.
        kept: The file to be.
        folder: Where the program ran.
    """
    with gzip.open(written) as stream:
        snapshot = pickle.load(stream)  # noqa: S301  (this program had it written)
    places = {str(folder): ANY_FOLDER, str(folder.resolve()): ANY_FOLDER, _INSTALLED: ANY_INSTALLED}
    snapshot = elsewhere(snapshot, places, {})
    while True:
        packed = gzip.compress(pickle.dumps(snapshot, PROTOCOL), _SMALLEST, mtime=0)
        histories = snapshot["device_traces"]
        if len(packed) <= LARGEST_BYTES or not any(histories):
            break
        snapshot["device_traces"] = [entries[(len(entries) + 1) // 2 :] for entries in histories]
    kept.write_bytes(packed)


def elsewhere(value: Any, places: Mapping[str, str], seen: dict[int, Any]) -> Any:  # noqa: ANN401
    """Plain data in which places have other names; what is shared in it stays shared.

    Args:
        value: Dictionaries, lists, tuples, texts, numbers.
        places: The names of folders and the names to give them.
        seen: What has been gone through, by the identity of what it was.
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
        new = {key: elsewhere(each, places, seen) for key, each in value.items()}
    else:
        new = type(value)([elsewhere(each, places, seen) for each in value])
    seen[id(value)] = new
    return new


def report_on(target: Path) -> Report | None:
    """The report on a folder's recordings, or None if there are none.

    Of a program of several processes it is on the first one's.

    Args:
        target: The folder.
    """
    firsts = [next(iter(sorted(target.glob("*" + ending))), None) for ending in ENDINGS]
    found = [path for path in firsts if path is not None]
    return profkit.analyze(found) if found else None


def what_a_device_must_have(report: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a JSON report on a recording of a GPU that another version must give too.

    Args:
        report: The report, decoded.
    """
    summary = report["summary"]
    kernels = [
        {key: kernel[key] for key in ("name", "n_calls", "total_ns")}
        for kernel in summary["top_kernels"][:_N_KERNELS]
    ]
    of_a_device = {key: summary[key] for key in _OF_A_DEVICE}
    return {**what_must_hold(dict(report)), **of_a_device, "top_kernels": kernels}


def expect(target: Path, report: Report) -> None:
    """Write down, beside recordings, what their report says now.

    Args:
        target: Their folder.
        report: The report.
    """
    decoded = json.loads(profkit.render(report, "json"))
    write(target / "expected.json", what_a_device_must_have(decoded))


def digest_of(*parts: Path | str) -> str:
    """One digest of files and texts, in their order.

    Args:
        parts: Files, folders (all Python files in them) and texts.
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
