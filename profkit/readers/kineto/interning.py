"""Names that repeat are kept once: events, categories, threads and streams."""

import re
from collections.abc import Callable
from typing import Final

from profkit.model.events import Category, Lane
from profkit.model.torch_names import BUILTIN_PREFIX

OURS: Final = "profkit"
"""The category of what profkit itself adds to a trace for viewers: findings, counters, gaps."""

CATEGORIES: Final = {
    "cpu_op": Category.OP,
    "operator": Category.OP,
    "user_annotation": Category.ANNOTATION,
    "gpu_user_annotation": Category.DEVICE_ANNOTATION,
    "kernel": Category.KERNEL,
    "gpu_memcpy": Category.MEMCPY,
    "memcpy": Category.MEMCPY,
    "gpu_memset": Category.MEMSET,
    "memset": Category.MEMSET,
    "cuda_runtime": Category.RUNTIME,
    "runtime": Category.RUNTIME,
    "xpu_runtime": Category.RUNTIME,
    "mtia_runtime": Category.RUNTIME,
    "glow_runtime": Category.RUNTIME,
    "hpu_op": Category.RUNTIME,
    "privateuse1_runtime": Category.RUNTIME,
    "cuda_driver": Category.DRIVER,
    "xpu_driver": Category.DRIVER,
    "privateuse1_driver": Category.DRIVER,
    "python_function": Category.PYTHON,
    "overhead": Category.OVERHEAD,
    "cuda_sync": Category.DEVICE_SYNC,
    "xpu_sync": Category.DEVICE_SYNC,
    "trace": Category.SPAN,
}
"""Categories by their name in lower case.

Source: ``libkineto/include/ActivityType.h``; the capitalized names are those of torch 1.8 to 1.10.
"""


def plain_text(text: str) -> str:
    """A text that can be written again: halves of surrogate pairs are spelled out."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "backslashreplace").decode()
    return text


def plain_name(name: str) -> str:
    r"""A name as its producer meant it.

    torch names a call of a builtin ``<built-in method item of Tensor object at 0x7f0c…>``:
    thousands of names for one thing, so the address goes. And paths that were written unescaped
    were unescaped by whoever read them: the line break in ``torch\nn`` was none.
    """
    if name.startswith(BUILTIN_PREFIX):
        head, at, tail = name.partition(" at 0x")
        if at:
            return head + tail[tail.find(">") :]
    if _FRAME.search(name):
        name = name.translate(_UNESCAPED)
    return plain_text(name)


_FRAME: Final = re.compile(r"[\b\f\n\r\t].*\.py\(\d+\): ", re.DOTALL)
_UNESCAPED: Final = str.maketrans({"\b": r"\b", "\f": r"\f", "\n": r"\n", "\r": r"\r", "\t": r"\t"})


class Interned(dict[str, int]):
    """A number for every text, given out in order of appearance.

    Attributes:
        texts: The texts, by number.
    """

    def __init__(self, plain: Callable[[str], str]) -> None:
        super().__init__()
        self.texts: list[str] = []
        self._plain = plain

    def __reduce__(self) -> tuple[object, ...]:
        """How to make it again in another process: by its texts, in their order."""
        return _interned, (self._plain, self.texts)

    def __missing__(self, text: str) -> int:
        plain = self._plain(text)
        if plain != text:
            # The text itself is not kept: where addresses differ there may be one for each event.
            return self[plain]
        number = self[text] = len(self.texts)
        self.texts.append(text)
        return number


def _interned(plain: Callable[[str], str], texts: list[str]) -> Interned:
    known = Interned(plain)
    for text in texts:
        known[text]
    return known


class LaneTable(dict[tuple[object, object], int]):
    """A number for every (process, thread) pair, given out in order of appearance.

    Old traces write one thread as ``25738`` here and ``"25738"`` there; both are one lane.

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
        """Process and thread of each lane, by number."""
        return list(self._numbers)

    def learn(self, other: "LaneTable") -> None:
        """Take over the names that another table was told."""
        self.processes.update(other.processes)
        self.threads.update(other.threads)

    def name_process(self, pid: object, name: str) -> None:
        """Remember a process's name."""
        self.processes[plain_text(str(pid))] = plain_text(name)

    def name_thread(self, pid: object, tid: object, name: str) -> None:
        """Remember a thread's name."""
        self.threads[plain_text(str(pid)), plain_text(str(tid))] = plain_text(name)

    def lanes(self) -> tuple[Lane, ...]:
        """All pairs by number, with the names that were told."""
        return tuple(
            Lane(
                pid=pid,
                tid=tid,
                process=self.processes.get(pid, ""),
                thread=self.threads.get((pid, tid), ""),
            )
            for pid, tid in self._numbers
        )
