"""The segments of a snapshot's devices, with the blocks in them, as ``segments.js`` draws them."""

from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from profkit.engine.wording import counted
from profkit.index.snapshot.stack_lines import StackLines
from profkit.model.events import Int32s, Int64s
from profkit.model.location import numbered_line
from profkit.names import short_path
from profkit.present.memory_series import USE_LABELS
from profkit.present.segment_blocks import SegmentBlocks, find_segment_blocks
from profkit.renderers.html._options import Options
from profkit.renderers.html._packed_columns import packed
from profkit.renderers.html._table import cell
from profkit.units import format_bytes

SCRIPTS: Final = ("canvas.js", "segments.js")
_MAX_PLAIN_BLOCKS: Final = 500
"""Blocks of a device that are not compressed."""

USE_COLORS: Final = {label: f"--series-{number or 8}" for number, label in enumerate(USE_LABELS)}
"""The colour of each use, by its label; grey if it is unknown."""


def segment_maps(options: Options) -> Iterator[dict[str, Any]]:
    """What is drawn of each device with segments: its columns, labels and colours."""
    recording = options.recording
    for number, memory in enumerate(recording.context.device_memories if recording else ()):
        found = find_segment_blocks(memory)
        if len(found.segment_bytes):
            places, place = _places(memory.lines, found.line, options.base)
            yield _data(number, found, places, place)


def _data(number: int, found: SegmentBlocks, places: list[str], place: Int64s) -> dict[str, Any]:
    n_segments, n_blocks = len(found.segment_bytes), int((found.state > 0).sum())
    whole = format_bytes(int(found.segment_bytes.sum()))
    return {
        "id": f"segments-{number}",
        "title": f"{found.device} at the end: {counted(n_segments, 'segment')} of {whole} "
        f"with {counted(n_blocks, 'block')}",
        "clock": found.clock,
        "until": found.until,
        "places": places,
        "uses": [*USE_COLORS.items()],
        "nStreams": int(found.stream.max(initial=0)) + 1,
        "packed": packed(
            (
                found.segment_bytes, found.n_blocks, found.stream,
                found.is_private * 2 + found.is_small.astype(np.int64),
                found.gap_bytes, found.n_bytes, found.state, place, found.use, found.at + 1,
            ),
            plain=n_blocks <= _MAX_PLAIN_BLOCKS,
        ),
    }  # fmt: skip


def _places(lines: StackLines, line: Int32s, base: str) -> tuple[list[str], Int64s]:
    """The source lines of some blocks as text, each once, and the number of each block's."""
    used, place = np.unique(line, return_inverse=True)
    texts = []
    for each in map(lines.location, used.tolist()):
        where = numbered_line(short_path(each.file, base), each.line) if each.file else ""
        texts.append(cell(f"{where} in {each.function}" if each.function else where))
    return texts, place
