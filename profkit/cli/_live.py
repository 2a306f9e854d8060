"""Finds the processes of a running program and asks them; shared by the live commands."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from profkit.cli._exit_codes import echo

if TYPE_CHECKING:
    from profkit.capture.live.endpoint import Conversation, Endpoint, Message

ANSWER_S: Final = 5.0
"""How long a program may take to answer; it does so at once, unless it holds Python's lock."""


def open_conversation(run: str) -> "Conversation":
    """Open a conversation with the processes of a running job that can be reached from here.

    Raises:
        CaptureError: There are none.
    """
    from profkit.capture.live.endpoint import Conversation
    from profkit.capture.live.search import find_listening
    from profkit.errors import CaptureError

    processes = find_listening(run)
    local = [process for process in processes if process.is_here]
    remote_hosts = sorted({process.host for process in processes if not process.is_here})
    if not local:
        raise CaptureError(
            f"The program in {run} runs on {', '.join(remote_hosts)}.",
            "Run the command there: its socket is only reachable from its own machine.",
        )
    if remote_hosts:
        hosts = ", ".join(remote_hosts)
        echo(f"profkit: processes on {hosts} cannot be reached from this machine.")
    return Conversation(local)


def ask_processes(
    conversation: "Conversation", question: Mapping[str, object], run: str, *, again: bool = False
) -> "dict[Endpoint, Message]":
    """Ask a question that is answered at once, and return the answers by rank.

    Says which processes do not answer, and which ranks are missing.

    Args:
        again: Whether the missing ranks are known from an earlier question.

    Raises:
        CaptureError: No process answers.
    """
    from profkit.errors import CaptureError

    asked = conversation.processes
    given = conversation.ask(question, ANSWER_S)
    answers = {
        process: given[process] for process in asked if "error" not in given.get(process, _ERROR)
    }
    reasons = {
        process: _why(conversation, process, given) for process in asked if process not in answers
    }
    if not again:
        reasons |= {process: why for process, why in conversation.failed.items() if why}
    if not answers:
        why = next(iter(reasons.values()), "has ended")
        raise CaptureError(f"The program in {run} {why}.")
    for process, why in reasons.items():
        echo(f"profkit: process {process.pid} {why}.")

    # A silent process may have any of the missing ranks, which are then not named.
    world_size = max(answer["world_size"] or 1 for answer in answers.values())
    missing = sorted({*range(world_size)} - {answer["rank"] or 0 for answer in answers.values()})
    if missing and not again and len(answers) + len(reasons) < world_size:
        from profkit.engine.wording import the_ranks

        echo(f"profkit: {the_ranks(missing)} cannot be reached from this machine.")

    ordered = sorted(answers, key=lambda process: (answers[process]["rank"] or 0, process.pid))
    return {process: answers[process] for process in ordered}


_ERROR: Final = {"error": ""}


def _why(
    conversation: "Conversation", process: "Endpoint", given: "Mapping[Endpoint, Message]"
) -> str:
    """Say why a process has not answered."""
    if process in given:
        return f"does not answer: {given[process]['error']}"
    silent = (
        "does not answer: it is stopped, or in a call that holds Python's global lock; "
        f"py-spy dump --native --pid {process.pid} shows where"
    )
    return conversation.failed.get(process, silent)
