"""Interns the texts that repeat in a trace: names of events, threads and streams."""

import re
from collections.abc import Callable, Iterable
from typing import Any, Final

from profkit.model.events import MISSING, Lane
from profkit.model.torch_names import BUILTIN_PREFIX
from profkit.patterns import regex
from profkit.readers.kineto import keys

_UNESCAPED_PATH: Final = regex(r"[^\b\f\n\r\t]*[\b\f\n\r\t].*\.py\(\d+\): ", re.DOTALL)
_MAX_NAME: Final = 8192
"""Longer names are cut: no C++ template has more characters, and a rule that searches names may
take time that is quadratic in their length."""
_VARIANT_CHARS: Final = 1 << 20
"""Characters of names with addresses that are stored: there may be one per event, but the methods
of a program's parameters are called in each step."""
_MAX_INPUTS: Final = 1 << 12
_ESCAPES: Final = str.maketrans({"\b": r"\b", "\f": r"\f", "\n": r"\n", "\r": r"\r", "\t": r"\t"})


def plain_text(text: str) -> str:
    """Return the text with unpaired surrogates escaped, so that it can be encoded as UTF-8."""
    return text.encode("utf-8", "backslashreplace").decode()


def plain_name(name: str) -> str:
    r"""Return a name without object addresses, cut, with the backslashes of Windows paths restored.

    torch names a call of a builtin ``<built-in method item of Tensor object at 0x7f0c…>``, which
    gives thousands of names to one function. A path that was written without escaping its
    backslashes decodes to control characters: the line feed in ``torch\nn`` was a backslash.
    """
    if name.isascii() and name.isprintable() and len(name) <= _MAX_NAME and name[:1] != "<":
        return name  # like most: nothing below applies
    if len(name) > _MAX_NAME:
        name = f"{name[: _MAX_NAME - 1]}…"
    # The address ends at the closing ``>``.
    if name.startswith(BUILTIN_PREFIX):
        head, at, tail = name.partition(" at 0x")
        if at:
            return head + tail[tail.find(">") :]
    if _UNESCAPED_PATH.match(name):
        name = name.translate(_ESCAPES)
    return plain_text(name)


class InternTable(dict[str, int]):
    """Numbers texts in order of appearance.

    Attributes:
        texts: The texts, by number.
    """

    def __init__(self, plain: Callable[[str], str]) -> None:
        super().__init__()
        self.texts: list[str] = []
        self._plain = plain
        self._variant_chars = _VARIANT_CHARS

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the texts in their order; the numbers follow from it."""
        return _restore_table, (self._plain, self.texts)

    def __missing__(self, text: str) -> int:
        plain = self._plain(text)
        if plain != text:
            number = self[plain]
            if len(text) <= self._variant_chars:
                self._variant_chars -= len(text)
                self[text] = number
            return number
        number = self[text] = len(self.texts)
        self.texts.append(text)
        return number


def _restore_table(plain: Callable[[str], str], texts: list[str]) -> InternTable:
    table = InternTable(plain)
    for text in texts:
        table[text]
    return table


class RawTable(dict[bytes, int]):
    """Numbers JSON texts in a table of names, where they are stored as they are written."""

    def __init__(self, names: InternTable) -> None:
        super().__init__({b"": MISSING})
        self._names = names

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the names only: texts that are read later get their numbers from them."""
        return RawTable, (self._names,)

    def __missing__(self, raw: bytes) -> int:
        number = self[raw] = self._names[raw.decode("utf-8", "replace")]
        return number


class InputTable(dict[bytes, int]):
    """Numbers the JSON texts of an operator's inputs together, joined by NUL, which no text has.

    Attributes:
        numbers: By the place that is looked up, the number of each text in the table of names.
    """

    def __init__(self, raw: RawTable) -> None:
        super().__init__()
        self.numbers: list[tuple[int, ...]] = []
        self._raw = raw

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the names only, as places are not used beyond a batch."""
        return InputTable, (self._raw,)

    def __missing__(self, joined: bytes) -> int:
        place = self[joined] = len(self.numbers)
        self.numbers.append(tuple(map(self._raw.__getitem__, joined.split(b"\0"))))
        return place

    def limit_size(self) -> None:
        """Forget all inputs where there are so many that they hardly repeat."""
        if len(self) > _MAX_INPUTS:
            self.clear()
            self.numbers.clear()


class LaneTable(dict[tuple[object, object], int]):
    """Numbers (process, thread) pairs in order of appearance.

    Old traces write the same thread both as ``25738`` and as ``"25738"``; both are one lane.

    Attributes:
        processes: Names of processes.
        threads: Names of threads, by process and thread.
    """

    def __init__(self) -> None:
        super().__init__()
        self._numbers: dict[tuple[str, str], int] = {}
        self.processes: dict[str, str] = {}
        self.threads: dict[tuple[str, str], str] = {}

    def __missing__(self, key: tuple[object, object]) -> int:
        text = (plain_text(str(key[0])), plain_text(str(key[1])))
        number = self[key] = self._numbers.setdefault(text, len(self._numbers))
        return number

    def pairs(self) -> list[tuple[str, str]]:
        """Return process and thread of each lane, by number."""
        return list(self._numbers)

    def add_names(self, other: "LaneTable") -> None:
        """Add the names of processes and threads of another table."""
        self.processes.update(other.processes)
        self.threads.update(other.threads)

    def name_lanes(self, events: Iterable[Any]) -> None:
        """Store the names of processes and threads that metadata events give."""
        for event in events:
            name = plain_text(str(event.args.name) if event.args else "")
            pid, tid = plain_text(str(event.pid)), plain_text(str(event.tid))
            if event.name == keys.PROCESS_NAME:
                self.processes[pid] = name
            elif event.name == keys.THREAD_NAME:
                self.threads[pid, tid] = name

    def lanes(self) -> tuple[Lane, ...]:
        """Return all lanes by number, with their names where known."""
        return tuple(
            Lane(pid, tid, self.processes.get(pid, ""), self.threads.get((pid, tid), ""))
            for pid, tid in self._numbers
        )
