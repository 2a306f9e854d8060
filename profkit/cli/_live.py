"""What the commands for running programs share: who they are, and who is missing."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from profkit.cli._exit_codes import echo

if TYPE_CHECKING:
    from profkit.capture.live.endpoint import Conversation, Endpoint, Message

ANSWER_S: Final = 5.0
"""How long a program may take to answer; it does so at once, unless it holds Python's lock."""


def processes_of(run: str) -> "list[Endpoint]":
    """The processes of a running job that can be reached from here.

    Raises:
        CaptureError: There are none.
    """
    from profkit.capture.live.endpoint import endpoints
    from profkit.errors import CaptureError

    found = endpoints(run)
    here = [each for each in found if each.is_here]
    others = sorted({each.host for each in found if not each.is_here})
    if not here:
        raise CaptureError(
            f"The program in {run} runs on {', '.join(others)}.",
            "Run the command there: its socket is only reachable from its own machine.",
        )
    if others:
        echo(f"profkit: processes on {', '.join(others)} cannot be reached from this machine.")
    return here


def answers_of(
    conversation: "Conversation", question: Mapping[str, object], run: str, *, again: bool = False
) -> "dict[Endpoint, Message]":
    """The answers to a question that is answered at once, by rank.

    Says which processes do not answer, and which ranks are missing.

    Args:
        again: Whether the missing ranks are known from an earlier question.

    Raises:
        CaptureError: None answers.
    """
    from profkit.errors import CaptureError

    asked = conversation.processes
    given = conversation.ask(question, ANSWER_S)
    answers = {each: given[each] for each in asked if "error" not in given.get(each, _ERROR)}
    whys = {each: _why(conversation, each, given) for each in asked if each not in answers}
    whys |= {} if again else {each: why for each, why in conversation.failed.items() if why}
    if not answers:
        why = next(iter(whys.values()), "has ended")
        raise CaptureError(f"The program in {run} {why}.")
    for each, why in whys.items():
        echo(f"profkit: process {each.pid} {why}.")
    ordered = sorted(answers, key=lambda each: (answers[each]["rank"] or 0, each.pid))
    world_size = max(answer["world_size"] or 1 for answer in answers.values())
    missing = sorted({*range(world_size)} - {each["rank"] or 0 for each in answers.values()})
    if missing and not again and len(answers) + len(whys) < world_size:
        echo(f"profkit: {the_ranks(missing)} cannot be reached from this machine.")
    return {each: answers[each] for each in ordered}


_ERROR: Final = {"error": ""}


def _why(
    conversation: "Conversation", process: "Endpoint", given: "Mapping[Endpoint, Message]"
) -> str:
    """Why a process has not answered."""
    if process in given:
        return f"does not answer: {given[process]['error']}"
    silent = (
        "does not answer: it is stopped, or in a call that holds Python's global lock; "
        f"py-spy dump --native --pid {process.pid} shows where"
    )
    return conversation.failed.get(process, silent)


def the_ranks(ranks: Sequence[int]) -> str:
    """Some ranks as text: ``ranks 0 to 3``."""
    from profkit.engine import wording

    return wording.the_ranks(ranks)
