"""``profkit top``: shows the step time and memory of a running program, live."""

import itertools
import sys
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

import click

from profkit.cli._options import add_run_argument
from profkit.cli._output import say
from profkit.dataclass import dataclass
from profkit.units import format_bytes, format_count, format_ns, format_number, format_share

if TYPE_CHECKING:
    from profkit.capture.live.endpoint import Message

_COLUMNS: Final = (
    "step", "step time", "range", "steps/s", "data", "syncs", "memory", "growth",
)  # fmt: skip
_CLEAR: Final = "\x1b[H\x1b[2J"
_ONCE_S: Final = 1.0


@dataclass(frozen=True)
class Interval:
    """The steps and memory of a process between two samples.

    Attributes:
        n_steps: Steps since it began to listen.
        steps_ns: Times of the steps that ended in the interval, as far as they are remembered.
        waits_ns: Times that each of these steps waited for a DataLoader.
        since_ns: Time since the last step ended, or None before the first.
        n_syncs: Syncs in the interval, or None where they are not counted.
        n_ended: Steps that ended in the interval.
        memory: Bytes by kind: resident memory of the host, allocated memory of each device.
        grown: Growth of ``memory`` since the first sample, in bytes.
        n_grown: Steps since the first sample.
    """

    rank: int | None
    pid: int
    n_steps: int
    steps_ns: tuple[int, ...]
    waits_ns: tuple[int, ...]
    since_ns: int | None
    n_syncs: int | None
    n_ended: int
    memory: Mapping[str, int]
    grown: Mapping[str, int]
    n_grown: int
    is_recording: bool


@click.command(
    short_help="Show the step time and memory of a running program, live.",
    epilog="\b\nExample: profkit top train",
)
@add_run_argument
@click.option(
    "--interval",
    "interval_s",
    metavar="SECONDS",
    type=click.FloatRange(min=0.1),
    default=2,
    show_default=True,
    help="Time between two samples.",
)
@click.option("--once", is_flag=True, help="Print one interval of one second, and exit.")
def command(*, run: str, interval_s: float, once: bool) -> int:
    """Show the step time, waits for data, syncs and memory of each rank of a running program.

    On a terminal the view is redrawn at each interval until Ctrl-C; otherwise lines are appended.
    RUN is the name of the run, such as train for train.py, the id of a process, or a folder; it may
    be omitted where one program listens. A program listens if it was started with
    PROFKIT_LISTEN=1 profkit run, or calls profkit.listen(). Syncs are counted on CUDA while this
    command runs.
    """
    from profkit.cli._live import ask_processes, open_conversation
    from profkit.errors import CaptureError

    is_drawn = sys.stdout.isatty() and not once
    with open_conversation(run) as conversation:
        first = before = ask_processes(conversation, {"ask": "figures", "after": 0}, run)
        for n_looks in itertools.count(1):
            time.sleep(min(interval_s, _ONCE_S) if once else interval_s)
            # A process that has not answered since keeps its last answer.
            after = min(answer["n_steps"] for answer in before.values())
            try:
                question = {"ask": "figures", "after": after}
                latest = ask_processes(conversation, question, run, again=True)
            except CaptureError:
                if conversation.processes:
                    raise
                say(f"The program in {run} has ended.\n")
                return 0
            intervals = [
                measure_interval(latest[process], before[process], first[process])
                for process in latest
                if process in before
            ]
            lines = format_table(intervals, with_title=is_drawn or n_looks == 1)
            say((_CLEAR if is_drawn else "") + "".join(f"{line}\n" for line in lines))
            before = {**before, **latest}
            if once:
                return 0
    return 0


def measure_interval(now: "Message", before: "Message", first: "Message") -> Interval:
    """Measure the steps and memory of a process between two answers.

    Args:
        first: The first answer.
    """
    n_ended = now["n_steps"] - before["n_steps"]
    # One more end than steps, for the differences.
    ends_ns, waits_ns = (now[name][-(n_ended + 1) :] for name in ("ends_ns", "waits_ns"))
    are_syncs_known = None not in (now["n_syncs"], before["n_syncs"])

    return Interval(
        rank=now["rank"],
        pid=now["pid"],
        n_steps=now["n_steps"],
        steps_ns=tuple(b - a for a, b in itertools.pairwise(ends_ns)) if n_ended > 0 else (),
        waits_ns=tuple(b - a for a, b in itertools.pairwise(waits_ns)) if n_ended > 0 else (),
        since_ns=now["now_ns"] - ends_ns[-1] if ends_ns else None,
        n_syncs=now["n_syncs"] - before["n_syncs"] if are_syncs_known else None,
        n_ended=max(n_ended, 0),
        memory=now["memory"],
        grown={kind: size - first["memory"].get(kind, 0) for kind, size in now["memory"].items()},
        n_grown=now["n_steps"] - first["n_steps"],
        is_recording=now["is_recording"],
    )


def format_table(intervals: list[Interval], *, with_title: bool) -> Iterator[str]:
    """Format a table with a row for each process: its mean step time, its range and its memory."""
    # A program that is no rank of a job is named by its process id.
    who = "process" if all(interval.rank is None for interval in intervals) else "rank"
    rows: list[tuple[str, ...]] = [(who, *_COLUMNS)] if with_title else []
    rows += [_format_row(interval) for interval in intervals]
    widths = (7, 9, 10, 20, 8, 7, 7, 24, 30)
    for row in rows:
        yield " ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _format_row(interval: Interval) -> tuple[str, ...]:
    from profkit.engine.wording import counted

    who = str(interval.pid if interval.rank is None else interval.rank)
    memory = ", ".join(f"{kind} {format_bytes(size)}" for kind, size in interval.memory.items())
    growth = ", ".join(f"{kind} {_signed(size)}" for kind, size in interval.grown.items())
    growth += f" in {counted(interval.n_grown, 'step')}"
    step = format_count(interval.n_steps) + ("*" if interval.is_recording else "")
    # Without a step there is no mean, but the time since the last step shows a hang.
    if not interval.steps_ns:
        since = "" if interval.since_ns is None else f"none for {format_ns(interval.since_ns)}"
        return (who, step, "-", since, "0", "-", "-", memory, growth)
    mean_ns = sum(interval.steps_ns) / len(interval.steps_ns)
    return (
        who,
        step,
        format_ns(mean_ns),
        f"{format_ns(min(interval.steps_ns))} to {format_ns(max(interval.steps_ns))}",
        format_number(1e9 / mean_ns),
        format_share(sum(interval.waits_ns) / sum(interval.steps_ns)),
        "-" if interval.n_syncs is None else format_number(interval.n_syncs / interval.n_ended),
        memory,
        growth,
    )


def _signed(n_bytes: int) -> str:
    return f"{'-' if n_bytes < 0 else '+'}{format_bytes(abs(n_bytes))}"
