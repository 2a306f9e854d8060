"""What the peak would be if the activations of modules were computed again in the backward pass.

``torch.utils.checkpoint`` around the call of a module frees its activations when the call ends, but
for its output, and computes them again when the backward pass reaches it. So the history is
replayed without these blocks from the end of each call until the first of them is freed, which is
where its backward pass begins.

Source: ``torch/utils/checkpoint.py``.
"""

from re import Pattern
from typing import Final

import numpy as np

from profkit.dataclass import dataclass
from profkit.index.snapshot.allocation_use import USES, find_block_uses
from profkit.index.snapshot.replay import DeviceReplay
from profkit.index.snapshot.stack_lines import find_call_sites, stacks_with
from profkit.index.sums import sum_by_key
from profkit.model.events import NO_ROW, Int32s, Mask, Rows
from profkit.model.snapshot import NO_STACK, MemorySnapshot, Stacks
from profkit.patterns import regex

_CALL: Final = regex(r"torch[/\\]nn[/\\]modules[/\\]module\.py$")
_CHECKPOINT: Final = regex(r"[/\\](utils|_composable)[/\\](checkpoint|checkpoint_activation)\.py$")
_ACTIVATION, _GRADIENT = USES.index("activation"), USES.index("gradient")
_MAX_LINES: Final = 6
"""Lines that are tried, those with the most bytes at the peak first."""


@dataclass(frozen=True)
class RecomputedModules:
    """The modules that one line calls, and the peak if their activations were computed again.

    Attributes:
        frame: The line, as an index in ``stacks.frames``.
        n: Number of calls in the history.
        n_bytes: Bytes of their activations at the peak, without their outputs.
        peak_bytes: Peak of active bytes if they were computed again.
    """

    frame: int
    n: int
    n_bytes: int
    peak_bytes: int


@dataclass(frozen=True)
class _Activations:
    """The activations of a device's history, and where other stacks allocate between them.

    Attributes:
        stack: The stack of each of ``replay.alloc``.
        is_activation: Which of them are activations.
    """

    replay: DeviceReplay
    stacks: Stacks
    stack: Int32s
    is_activation: Mask

    @property
    def is_at_peak(self) -> Mask:
        """Return which activations are live at the peak."""
        replay = self.replay
        is_live = (replay.free == NO_ROW) | (replay.free >= replay.peak)
        return np.asarray(self.is_activation & (replay.alloc < replay.peak) & is_live)


def has_checkpoints(stacks: Stacks) -> bool:
    """Tell whether the program computes some activations again already."""
    return bool(_find_frames_of(stacks, _CHECKPOINT).any())


def find_recomputed_modules(
    snapshot: MemorySnapshot, replay: DeviceReplay
) -> RecomputedModules | None:
    """Find the line of modules without whose activations the peak falls most; None without one.

    A program without a backward pass in its history, or with checkpoints already, has none.
    """
    stacks = snapshot.stacks
    stack = snapshot.history.stack[replay.rows[replay.alloc]]
    if not len(stacks) or not replay.has_peak or has_checkpoints(stacks):
        return None

    is_recorded = np.ones(len(stack), dtype=np.bool_)
    uses = find_block_uses(stacks, stack, replay.free != NO_ROW, is_recorded)
    if not (uses == _GRADIENT).any():
        return None

    activations = _Activations(replay, stacks, stack, uses == _ACTIVATION)
    tried = [_measure_peak_without(activations, line) for line in _find_lines(activations)]
    return min(tried, key=lambda modules: modules.peak_bytes, default=None)


def _find_lines(activations: _Activations) -> list[int]:
    """Find the lines that call the modules with most of the activations at the peak."""
    stacks, replay = activations.stacks, activations.replay
    is_live = activations.is_at_peak
    bytes_of_stack = sum_by_key(
        len(stacks), activations.stack[is_live], replay.n_bytes[replay.alloc[is_live]]
    )

    sites = find_call_sites(stacks, _find_frames_of(stacks, _CALL))
    of_stack = np.repeat(np.arange(len(stacks)), np.diff(stacks.start))

    # A recursive call is twice in a stack, whose bytes count once.
    pairs = np.unique(np.stack((stacks.frame[sites], of_stack[sites])), axis=1)
    bytes_of_line = sum_by_key(len(stacks.frames), pairs[0], bytes_of_stack[pairs[1]])
    order = np.argsort(-bytes_of_line, kind="stable")[:_MAX_LINES]
    return [int(line) for line in order if bytes_of_line[line] > 0]


def _measure_peak_without(activations: _Activations, line: int) -> RecomputedModules:
    """Replay the history with the activations of the modules of one line computed again."""
    replay, stacks, stack = activations.replay, activations.stacks, activations.stack
    is_frame = np.zeros(len(stacks.frames), dtype=np.bool_)
    is_frame[line] = True
    is_of_line = np.append(stacks_with(stacks, is_frame), False)[stack]

    change = np.zeros(replay.end + 2, dtype=np.int64)
    saved_at_peak = n_calls = 0
    for call in _split_calls(stack, is_of_line):
        n_calls += 1
        after = call[-1] + 1
        ends = int(replay.alloc[after]) if after < len(replay.alloc) else replay.end

        # Everything that outlives the call but its output, which the next module has as its input.
        freed = np.where(replay.free[call] == NO_ROW, replay.end + 1, replay.free[call])
        kept = call[(freed > ends) & activations.is_activation[call]][:-1]
        again = int(freed[np.isin(call, kept)].min(initial=replay.end + 1))
        if again <= ends:
            continue

        n_bytes = int(replay.n_bytes[replay.alloc[kept]].sum())
        change[ends] -= n_bytes
        change[again] += n_bytes
        saved_at_peak += n_bytes if ends <= replay.peak < again else 0

    levels = replay.active_bytes + np.cumsum(change)[: replay.end + 1]
    return RecomputedModules(line, n_calls, saved_at_peak, int(levels.max()))


def _split_calls(stack: Int32s, is_of_line: Mask) -> list[Rows]:
    """Split the allocations of a line into calls, each with the indices of its allocations.

    Layers that are called one after the other allocate with the same stacks: a call begins where
    the first stack of the one before comes again, or after another line has allocated. Allocations
    without a stack are of the backward pass of another thread.
    """
    calls: list[Rows] = []
    places = np.flatnonzero(is_of_line | (stack != NO_STACK))
    current: list[int] = []
    for place, is_inside in zip(places.tolist(), is_of_line[places].tolist(), strict=True):
        # A line may allocate several times, with one stack.
        begins = bool(current) and stack[place] == stack[current[0]] != stack[current[-1]]
        if current and (begins or not is_inside):
            calls.append(np.array(current))
            current = []
        if is_inside:
            current.append(place)
    return calls + ([np.array(current)] if current else [])


def _find_frames_of(stacks: Stacks, pattern: Pattern[str]) -> Mask:
    """Return which frames have a file that matches. Shape ``(f,)``."""
    files = (pattern.search(frame.file) is not None for frame in stacks.frames)
    return np.fromiter(files, np.bool_, len(stacks.frames))
