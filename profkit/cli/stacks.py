"""``profkit stacks``: shows where the threads of a running program are."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import click

from profkit.cli._options import add_run_argument
from profkit.cli._output import say

if TYPE_CHECKING:
    from profkit.capture.live.endpoint import Endpoint, Message

_Stack = tuple[tuple[str, int, str], ...]


@click.command(
    short_help="Show where each thread of a running program is.",
    epilog="\b\nExample: profkit stacks train",
)
@add_run_argument
def command(*, run: str) -> int:
    """Show where each Python thread of each rank of a running program is, innermost call last.

    Threads at the same place are shown once. A program that hangs answers too, unless it holds
    Python's global lock. RUN is the name of the run, such as train for train.py, the id of a
    process, or a folder; it may be omitted where one program listens. A program listens if it was
    started with PROFKIT_LISTEN=1 profkit run, or calls profkit.listen().
    """
    from profkit.cli._live import ask_processes, open_conversation

    with open_conversation(run) as conversation:
        answers = ask_processes(conversation, {"ask": "stacks"}, run)
    say("".join(f"{line}\n" for line in format_stacks(answers)))
    return 0


def format_stacks(answers: "Mapping[Endpoint, Message]") -> Iterator[str]:
    """Format stacks as lines: main threads first, then the stacks that most threads share.

    Args:
        answers: The answers of the processes.
    """
    from profkit.folders import working_folder
    from profkit.names import short_path, visible

    by_stack: dict[_Stack, dict[str, list[int | None]]] = {}
    pids: dict[int | None, int] = {}
    for answer in answers.values():
        rank = answer["rank"]
        pids[rank] = answer["pid"]
        for name, calls in answer["stacks"]:
            stack = tuple((str(file), int(line), str(function)) for file, line, function in calls)
            by_stack.setdefault(stack, {}).setdefault(visible(name), []).append(rank)

    # Main threads run the program, and a stack that many threads share says most.
    def order(stack: _Stack) -> tuple[bool, int]:
        return "MainThread" not in by_stack[stack], -sum(map(len, by_stack[stack].values()))

    base = str(working_folder())
    for stack in sorted(by_stack, key=order):
        yield "; ".join(_threads(name, ranks, pids) for name, ranks in by_stack[stack].items())
        for file, line, function in stack:
            yield f"  {visible(short_path(file, base))}:{line}  {visible(function)}"
        yield ""


def _threads(name: str, ranks: list[int | None], pids: Mapping[int | None, int]) -> str:
    """Name the threads with their ranks: ``ranks 0 to 3: MainThread``."""
    from profkit.engine.wording import the_ranks

    times = f" ({len(ranks)} threads)" if len(ranks) > len(set(ranks)) else ""
    distinct_ranks = sorted({rank for rank in ranks if rank is not None})
    who = the_ranks(distinct_ranks) if distinct_ranks else f"process {pids[None]}"
    return f"{who}: {name}{times}"
