"""``profkit trigger``: records the next steps of a program that is running."""

from typing import TYPE_CHECKING

import click

from profkit.cli._exit_codes import echo
from profkit.cli._options import (
    FormatChoice,
    add_fail_on_option,
    add_output_options,
    add_run_argument,
)
from profkit.cli._output import check_target

if TYPE_CHECKING:
    from profkit.capture.live.endpoint import Endpoint, Message


@click.command(
    short_help="Record the next steps of a running program, and report.",
    epilog="\b\nExample: profkit trigger train --steps 3",
)
@add_run_argument
@click.option(
    "--steps",
    metavar="N",
    type=click.IntRange(1, 100),
    default=3,
    show_default=True,
    help="Steps to record.",
)
@click.option("--memory", is_flag=True, help="Monitor memory as well; on CUDA, write a snapshot.")
@click.option(
    "--timeout",
    "timeout_s",
    metavar="SECONDS",
    type=click.FloatRange(min=0),
    default=60,
    show_default=True,
    help="How long to wait for the steps.",
)
@add_output_options(FormatChoice())
@add_fail_on_option()
@click.pass_context
def command(  # noqa: PLR0913  (one argument per option)
    context: click.Context,
    *,
    run: str,
    steps: int,
    memory: bool,
    timeout_s: float,
    format_: str,
    output: str,
    force: bool,
    fail_on: str | None,
) -> int:
    """Record the next steps of a running program, the same ones on all ranks, and report on them.

    One step is recorded with stacks for source lines, then the others without. RUN is the name of
    the run, such as train for train.py, the id of a process, or a folder; it may be omitted where
    one program listens. A program listens if it was started with PROFKIT_LISTEN=1 profkit run, or
    calls profkit.listen().
    """
    from profkit.cli import analyze

    check_target(output, force=force)
    files = _record(run, steps, timeout_s, memory=memory)
    # The files are recordings like any other, and so is their report.
    code: int = context.invoke(
        analyze.command,
        paths=files,
        format_=format_,
        output=output,
        force=force,
        fail_on=fail_on,
    )
    return code


def _record(run: str, n_steps: int, timeout_s: float, *, memory: bool) -> tuple[str, ...]:
    """Let the program record its next steps.

    Returns:
        The files of all ranks.

    Raises:
        CaptureError: They were not recorded.
    """
    import uuid

    from profkit.capture.recording.session import TIME_IS_UP
    from profkit.cli._live import ask_processes, open_conversation
    from profkit.engine.wording import counted
    from profkit.errors import CaptureError
    from profkit.folders import working_folder
    from profkit.names import short_path

    def refused(process: "Endpoint", answer: "Message") -> None:
        if "error" in answer:
            raise CaptureError(f"Process {process.pid} records nothing: {answer['error']}.")

    with open_conversation(run) as conversation:
        ranks = ask_processes(conversation, {"ask": "identity"}, run)
        conversation.forget_all_but(ranks)
        processes = counted(len(ranks), "process", "processes")
        echo(f"profkit: recording the next {counted(n_steps, 'step')} of {processes}.")
        question = {"ask": "record", "id": uuid.uuid4().hex, "steps": n_steps, "memory": memory}
        answers = conversation.ask(question, timeout_s, refused)
        ended = [process for process in ranks if process in conversation.failed]
        # Whether a step has ended at all tells a slow program from one without steps.
        figures = {} if answers else conversation.ask({"ask": "figures", "after": 0}, 1.0)

    if not answers:
        if ended:
            raise CaptureError(f"The program in {run} has ended before its steps were recorded.")
        if figures and all(answer.get("n_steps") == 0 for answer in figures.values()):
            raise CaptureError(
                f"No step of the program in {run} has ended since it began to listen.",
                "Without an optimizer or DataLoader, call step() of the object that "
                "profkit.listen() returns.",
            )
        raise CaptureError(
            f"{_steps(n_steps)} not recorded within {timeout_s:g} s.",
            f"profkit stacks {run} shows where the program is; --timeout waits longer.",
        )
    for process in ranks:
        if process not in answers:
            why = "has ended" if process in ended else f"did not record them within {timeout_s:g} s"
            echo(f"profkit: process {process.pid} {why}; it is not in the report.")
    # Ranks stop for the same reason: it is printed once.
    for why in sorted({answer["stopped_by"] for answer in answers.values()} - {""}):
        is_late = why == TIME_IS_UP
        what = "the steps took too long" if is_late else "the program ended"
        echo(f"profkit: not all steps were recorded: {what}.")

    folder = str(working_folder())
    recorded = (answers[process] for process in ranks if process in answers)
    return tuple(short_path(file, folder) for answer in recorded for file in answer["files"])


def _steps(n: int) -> str:
    return "The step was" if n == 1 else f"The {n} steps were"
