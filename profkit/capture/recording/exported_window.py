"""The window of a muted recording, in the text that torch has exported.

Kineto writes the window at the end of the file: from the start of its profiler to the stop. In a
muted recording, nothing is collected for the last part of it, which would look like idle time.
"""

import re
from pathlib import Path
from typing import Final

from profkit.readers.kineto import keys

_BASE_TIME: Final = re.compile(rf'"{keys.BASE_TIME}": (\d+)')
_WINDOW_SPAN: Final = re.compile(
    r'("cat": "Trace",[^{}]*?"ts": (?=([\d.]+))[\d.]+,\s*"dur": )[\d.]+'
)
"""The one event of this category. Its name comes before its times since torch 2.13, after them
before."""
_WINDOW_END: Final = re.compile(r'("name": "Record Window End"[^{}]*?"ts": )[\d.]+')


def end_window_at(path: Path, end_ns: int) -> None:
    """Let the window of an exported trace end at a time, after which nothing was collected.

    Args:
        end_ns: Nanoseconds since 1970.
    """
    text = path.read_text(encoding="utf-8", errors="surrogateescape")

    # Times in the file are microseconds since its base time, if it has one.
    base = _BASE_TIME.search(text)
    base_ns = 0 if base is None else int(base[1])
    end_us = (end_ns - base_ns) / 1000

    def with_new_duration(span: re.Match[str]) -> str:
        return f"{span[1]}{max(0.0, end_us - float(span[2])):.3f}"

    text = _WINDOW_SPAN.sub(with_new_duration, text)
    text = _WINDOW_END.sub(lambda mark: f"{mark[1]}{end_us:.3f}", text)
    path.write_text(text, encoding="utf-8", errors="surrogateescape")
