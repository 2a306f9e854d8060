"""Hostile files: recordings of every kind with some values, entries or bytes changed.

A mutant is made from a number alone, so that any of them can be made again.
"""

import copy
import gzip
import io
import json
import pickle
import random
import re
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from seeds import SNAPSHOT, program  # type: ignore[import-not-found]  # beside this file

from profkit.api import analyze
from profkit.model.live_memory import Leak, SyncSite, TensorShape
from profkit.model.location import Frame
from profkit.renderers import json_report
from profkit.testing import Format, LiveBuilder

TRACES: Final = Path(__file__).parents[1] / "traces"
_FORMATS: Final = (
    Format(layout="kineto", extras=True),
    Format(begin_end=True, times="string"),
    Format(old=True, absolute=True, events_first=True),
    Format(vendor="rocm-7.1"),
    Format(vendor="xpu", begin_end=True, instants="I"),
    Format(vendor="hpu", begin_end=True),
)
_LONG_NUMBER: Final = "@long number@"
"""Replaced in the text: Python writes no integer of 5,000 digits."""
_VALUES: Final[tuple[Any, ...]] = (
    None, True, "", [], {}, 0, -1, 1, -0.0, 0.5, 1e308, float("nan"), float("inf"),
    -float("inf"),    1 << 31, -(1 << 31) - 1, (1 << 63) - 1, 1 << 63, -(1 << 63),
    -(1 << 63) - 1, 1 << 64, 10**30,
    10**400, -(10**400), _LONG_NUMBER, "x" * 70_000, "\ud800", "\0\x1b[31m\n", "9" * 40, "-1",
    "NaN",
    "a/../../b", "aten::mm", "ProfilerStep#1", "Optimizer.step#SGD.step", "[memory]", [[[[[[]]]]]],
    [1, "a", None], {"name": {"name": []}}, [{}] * 50,
)  # fmt: skip
_COMPILES: Final = {
    "compiled": [
        {"number": f"{n % 3}/{n // 3}", "code": ["train.py", 3, "f"], "is_users": True,
         "caller": ["train.py", 9, "main"], "start_ns": 1_790_857_026_000_000_000 + n, "n_ops": 3,
         "dur_ns": 5_000_000, "again": n > 2, "reason": "size 8 != 9", "failure": ""}
        for n in range(12)
    ],
    "breaks": [
        {"reason": "print", "stack": [["train.py", 4, "f"], ["lib.py", 1, "g"]], "user": 0, "n": 2}
    ],
    "n_left_out": 1,
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """A hostile file.

    Attributes:
        kind: What it was made from: ``trace``, ``snapshot``, ``memory``, ``report``.
        suffix: The file's suffix.
        data: Its bytes.
    """

    kind: str
    suffix: str
    data: bytes


@cache
def _read_bases() -> tuple[tuple[str, Any], ...]:
    recorded = sorted(TRACES.glob("*/*.pt.trace.json.gz"))
    bases = [("trace", json.loads(gzip.decompress(path.read_bytes()))) for path in recorded]
    bases[0][1]["profkit"]["compiles"] = _COMPILES
    bases += [("trace", json.loads(program().to_bytes(form))) for form in _FORMATS]
    bases += [("snapshot", SNAPSHOT), ("snapshot", SNAPSHOT["segments"])]
    frame = Frame("train.py", 3, "step")
    shape = TensorShape("float32", (8, 128), 4)
    leak = Leak("tensors", "cpu", 4096, 1 << 20, 9, 3, 190, stack=(frame,), shape=shape)
    site = SyncSite("item()", frame, 3)
    live = LiveBuilder(sync_sites=(site,), devices=("cuda:0",)).add(leak).build()
    from profkit.readers.live_memory import encode_live

    bases.append(("memory", json.loads(encode_live(live))))
    for path in recorded[::4]:
        report = json_report.render(analyze(path), json_report.Options(indent=0))
        bases.append(("report", json.loads(report)))
    return tuple(bases)


def build_mutant(number: int) -> Mutant:
    """Build the mutant of a number."""
    rng = random.Random(number)  # noqa: S311  (not for secrets)
    kinds = ("trace",) * 7 + ("snapshot",) * 2 + ("memory", "report")
    kind = rng.choice(kinds)
    tree = copy.deepcopy(rng.choice([tree for name, tree in _read_bases() if name == kind]))
    for _ in range(rng.choice((0, 1, 1, 1, 2, 3, 8))):
        tree = _changed(tree, rng)

    if kind == "snapshot":
        data, suffix = _pickled(tree, rng), ".pickle"
    else:
        data, suffix = _as_json(tree, rng), f".{'pt.trace' if kind == 'trace' else kind}.json"
    if rng.random() < 0.15:
        data = _damaged(data, rng)
    if rng.random() < 0.3:
        data, ending = rng.choice(_PACKINGS)(data, f"a{suffix}")
        suffix = f"{suffix}{ending}"
        if rng.random() < 0.5:
            data = _damaged(data, rng)

    return Mutant(kind, suffix, data)


def _as_json(tree: Any, rng: random.Random) -> bytes:  # noqa: ANN401  (any JSON value)
    text = json.dumps(tree, separators=rng.choice((None, (",", ":"))), ensure_ascii=True)
    number = rng.choice(("", "-")) + "7" * 5_000
    return re.sub(f'"{_LONG_NUMBER}"', number, text).encode()


def _pickled(tree: Any, rng: random.Random) -> bytes:  # noqa: ANN401  (any plain data)
    def whole(value: Any) -> Any:  # noqa: ANN401
        if value == _LONG_NUMBER:
            return rng.choice((1, -1)) * 10**5_000
        if isinstance(value, dict):
            return {key: whole(child) for key, child in value.items()}
        return [*map(whole, value)] if isinstance(value, list) else value

    return pickle.dumps(whole(tree), rng.randrange(2, 6))


def _paths(tree: Any) -> Iterator[tuple[Any, Any]]:  # noqa: ANN401  (any JSON value)
    """Every container with every key or index of it."""
    remaining = [tree]
    while remaining:
        node = remaining.pop()
        children = node.items() if isinstance(node, dict) else enumerate(node)
        for key, value in children:
            yield node, key
            if isinstance(value, dict | list):
                remaining.append(value)


def _changed(tree: Any, rng: random.Random) -> Any:  # noqa: ANN401  (any JSON value)
    """Return the tree with one change, in place where that is possible."""
    below = tree
    if isinstance(tree, dict) and isinstance(tree.get("profkit"), dict) and rng.random() < 0.6:
        below = tree["profkit"]
        if isinstance(below.get("lines"), dict) and rng.random() < 0.6:
            below = below["lines"]
        elif isinstance(below.get("compiles"), dict) and rng.random() < 0.6:
            below = below["compiles"]
    paths = list(_paths(below))
    if not paths:
        return tree
    # Deep values are many: half of the changes are to one of the first levels.
    node, key = rng.choice(paths if rng.random() < 0.5 else paths[:60])
    rng.choice(_CHANGES)(node, key, rng, paths)
    return tree


_Change = Callable[[Any, Any, random.Random, list[tuple[Any, Any]]], None]


def _replace(node: Any, key: Any, rng: random.Random, _: Any) -> None:  # noqa: ANN401
    node[key] = copy.deepcopy(rng.choice(_VALUES))


def _shift(node: Any, key: Any, rng: random.Random, _: Any) -> None:  # noqa: ANN401
    value = node[key]
    if isinstance(value, int | float):
        node[key] = rng.choice((value + 1, value - 1, -value, value * 1_000, value << 40
                                if isinstance(value, int) else value * 1e12))  # fmt: skip
    elif isinstance(value, str):
        node[key] = rng.choice((value[: len(value) // 2], value * 3, value + "#7", value.upper()))
    else:
        _change_length(node, key, rng, _)


def _remove(node: Any, key: Any, rng: random.Random, _: Any) -> None:  # noqa: ANN401
    if rng.random() < 0.5 and isinstance(node, dict):
        node[rng.choice(("x", "name", "ph", "args"))] = node.pop(key)
    else:
        del node[key]


def _swap(node: Any, key: Any, rng: random.Random, paths: list[tuple[Any, Any]]) -> None:  # noqa: ANN401
    source_node, there = rng.choice(paths)
    try:
        node[key] = copy.deepcopy(source_node[there])
    except (KeyError, IndexError, RecursionError):
        return


def _change_length(node: Any, key: Any, rng: random.Random, _: Any) -> None:  # noqa: ANN401
    """Change a list, or the list that the value is in."""
    value = node[key] if isinstance(node[key], list) else node
    if not isinstance(value, list) or not value:
        return
    change = rng.randrange(7)
    n = len(value)

    if change == 0:
        rng.shuffle(value)
    elif change == 1:
        del value[rng.randrange(n) :]
    elif change == 2:
        value *= rng.choice((2, 3, max(1, 5_000 // n)))
    elif change == 3:
        value.reverse()
    elif change == 4 and all(isinstance(size, int) for size in value):
        value[:] = [rng.randrange(-2, n + 2) for _ in value]
    elif change == 5 and all(isinstance(size, int) for size in value):
        value[:] = [(i + 1) % n for i in range(n)]
    else:
        value[:] = [value[rng.randrange(n)]] * n


_CHANGES: Final[tuple[_Change, ...]] = (_replace, _replace, _shift, _remove, _swap, _change_length)


def _damaged(data: bytes, rng: random.Random) -> bytes:
    """Bytes cut off, changed, repeated or inserted."""
    changed = bytearray(data)
    at = rng.randrange(len(data) + 1)
    kind = rng.randrange(4)
    if kind == 0:
        del changed[at:]
    elif kind == 1:
        for _ in range(rng.choice((1, 4, 64))):
            if changed:
                changed[rng.randrange(len(changed))] = rng.randrange(256)
    elif kind == 2:
        changed[at:at] = rng.randbytes(rng.choice((1, 8, 400)))
    else:
        changed[at:at] = data[: rng.randrange(len(data) + 1)]
    return bytes(changed)


def _gzipped(data: bytes, _: str) -> tuple[bytes, str]:
    return gzip.compress(data, mtime=0), ".gz"


def _zipped(data: bytes, name: str) -> tuple[bytes, str]:
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(zipfile.ZipInfo(name), data)
    return raw.getvalue(), ".zip"


def _tarred(data: bytes, name: str) -> tuple[bytes, str]:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w:gz") as archive:
        info = tarfile.TarInfo(name)
        info.size = len(data)
        archive.addfile(info, io.BytesIO(data))
    return raw.getvalue(), ".tar.gz"


def _zstandard(data: bytes, _: str) -> tuple[bytes, str]:
    import zstandard

    return zstandard.compress(data), ".zst"


_PACKINGS: Final = (_gzipped, _zipped, _tarred, _zstandard)
