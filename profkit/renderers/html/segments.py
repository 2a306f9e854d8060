"""The segments of a snapshot's devices, with the blocks in them, as ``segments.js`` draws them."""

from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from profkit.engine.wording import counted
from profkit.index.snapshot.stack_lines import StackLines
from profkit.model.events import Int32s, Int64s
from profkit.present.labels import source_line
from profkit.present.memory_series import USE_LABELS
from profkit.present.segment_blocks import SegmentBlocks, find_segment_blocks
from profkit.renderers.html._options import Options
from profkit.renderers.html._packed_columns import MAX_PLAIN, pack_columns
from profkit.renderers.html._table import cell
from profkit.units import format_bytes

SCRIPTS: Final = ("canvas.js", "segments.js")

USE_COLORS: Final = {label: f"--series-{number or 8}" for number, label in enumerate(USE_LABELS)}
"""The colour of each use, by its label; grey if it is unknown."""


def build_segment_maps(options: Options) -> Iterator[dict[str, Any]]:
    """Return what is drawn of each device with segments: its columns, labels and colours."""
    recording = options.recording
    for number, memory in enumerate(recording.context.device_memories if recording else ()):
        blocks = find_segment_blocks(memory)
        if len(blocks.segment_bytes):
            texts, place = _list_places(memory.lines, blocks.line, options.base)
            yield _pack_map(number, blocks, texts, place)


def _pack_map(
    number: int, blocks: SegmentBlocks, places: list[str], place: Int64s
) -> dict[str, Any]:
    n_segments, n_blocks = len(blocks.segment_bytes), int((blocks.state > 0).sum())
    whole = format_bytes(int(blocks.segment_bytes.sum()))

    return {
        "id": f"segments-{number}",
        "title": f"{blocks.device} at the end: {counted(n_segments, 'segment')} of {whole} "
        f"with {counted(n_blocks, 'block')}",
        "clock": blocks.clock,
        "until": blocks.until,
        "places": places,
        "uses": [*USE_COLORS.items()],
        "nStreams": int(blocks.stream.max(initial=0)) + 1,
        "packed": pack_columns(
            (
                blocks.segment_bytes,
                blocks.n_blocks,
                blocks.stream,
                blocks.is_private * 2 + blocks.is_small.astype(np.int64),
                blocks.gap_bytes,
                blocks.n_bytes,
                blocks.state,
                place,
                blocks.use,
                blocks.at + 1,
            ),
            plain=n_blocks <= MAX_PLAIN,
        ),
    }


def _list_places(lines: StackLines, line: Int32s, base: str) -> tuple[list[str], Int64s]:
    """Return the source lines of blocks as text without repetition, and each block's number."""
    used, place = np.unique(line, return_inverse=True)
    texts = []
    for call_site in map(lines.location, used.tolist()):
        file, function = call_site.file, call_site.function
        where = source_line(file, call_site.line, base) if file else ""
        texts.append(cell(f"{where} in {function}" if function else where))
    return texts, place
