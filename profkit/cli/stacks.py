"""``profkit stacks``: where the threads of a running program are."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import click

from profkit.cli._output import say

if TYPE_CHECKING:
    from profkit.capture.live.endpoint import Endpoint, Message

_Stack = tuple[tuple[str, int, str], ...]


@click.command(
    short_help="Show where each thread of a running program is.",
    epilog="\b\nExample: profkit stacks traces/train",
)
@click.argument("run", metavar="RUN")
def command(*, run: str) -> int:
    """Show where each Python thread of each rank of a running program is, innermost call last.

    Threads that are at the same place are shown once. The program need not end a step for this: one
    that hangs answers too, unless it holds Python's global lock. RUN is the folder that the program
    has printed: it was started with PROFKIT_LISTEN=1 or calls profkit.listen().
    """
    from profkit.capture.live.endpoint import Conversation
    from profkit.cli._live import answers_of, processes_of

    with Conversation(processes_of(run)) as conversation:
        answers = answers_of(conversation, {"ask": "stacks"}, run)
    say("".join(f"{line}\n" for line in find_stack_lines(answers)))
    return 0


def find_stack_lines(answers: "Mapping[Endpoint, Message]") -> Iterator[str]:
    """The stacks as lines: main threads first, then those that more threads share.

    Args:
        answers: Those of the processes.
    """
    from profkit.folders import working_folder
    from profkit.names import short_path, visible

    at: dict[_Stack, dict[str, list[int | None]]] = {}
    pids: dict[int | None, int] = {}
    for answer in answers.values():
        rank = answer["rank"]
        pids[rank] = answer["pid"]
        for name, calls in answer["stacks"]:
            stack = tuple((str(file), int(line), str(function)) for file, line, function in calls)
            at.setdefault(stack, {}).setdefault(visible(name), []).append(rank)

    def order(stack: _Stack) -> tuple[bool, int]:
        return "MainThread" not in at[stack], -sum(map(len, at[stack].values()))

    base = str(working_folder())
    for stack in sorted(at, key=order):
        yield "; ".join(_threads(name, ranks, pids) for name, ranks in at[stack].items())
        for file, line, function in stack:
            yield f"  {visible(short_path(file, base))}:{line}  {visible(function)}"
        yield ""


def _threads(name: str, ranks: list[int | None], pids: Mapping[int | None, int]) -> str:
    """Whose thread it is: ``ranks 0 to 3: MainThread``."""
    from profkit.cli._live import the_ranks

    times = f" ({len(ranks)} threads)" if len(ranks) > len(set(ranks)) else ""
    known = sorted({rank for rank in ranks if rank is not None})
    who = the_ranks(known) if known else f"process {pids[None]}"
    return f"{who}: {name}{times}"
