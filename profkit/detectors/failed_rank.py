"""COM012 failed-rank: the program of a rank ended early.

What it finds:
    Ranks whose program raised an exception, exited with another code than 0, was ended by a signal,
    or was gone without a word, as by SIGKILL. Of several, the finding is about those whose end no
    other one explains: a rank that loses its peer fails as well, and so does one that the launcher
    ends.

Why it matters:
    The job made no progress from then on. What the other ranks raised follows from it, and the
    times in the report are of the steps before.

How to fix it:
    Look at the exception and the line of the rank that is named. A rank that was killed leaves no
    exception: ``dmesg`` names processes that the system killed since memory ran out, and
    ``python -X faulthandler`` prints the stack of one that crashed in native code.

Example:
    ::

        labels = torch.tensor([classes[name] for name in names])  # KeyError on one rank

Use instead:
    ::

        labels = torch.tensor([classes.get(name, UNKNOWN) for name in names])

Reads:
    What ``profkit run`` writes about the end of each rank into its dump of the FlightRecorder.

When to ignore this:
    The rank was ended on purpose.

Source:
    ``ChildFailedError`` of torchrun, which names the first rank that failed as well.
"""

from collections.abc import Iterator

from profkit.rule import (
    Finding,
    JobContext,
    Location,
    RankFailure,
    RuleInfo,
    dataclass,
    needs,
    the_ranks,
    visible,
)

INFO = RuleInfo(
    id="COM012",
    name="failed-rank",
    title="The program of a rank ended early",
    severity="error",
    needs=(needs.RANKS,),
    since="0.2.0",
    no_example="A program that does this fails.",
)

_OUT_OF_MEMORY = ("OutOfMemoryError", "can't allocate memory", "MemoryError")


@dataclass(frozen=True)
class Thresholds:
    """No settings: each failure is an error."""


def detect(job: JobContext, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding for each way in which ranks failed by themselves."""
    by_end: dict[tuple[str, str, int], list[int]] = {}
    for rank in job.failed_first:
        failure = job.failures[rank]
        by_end.setdefault((failure.what, failure.file, failure.line), []).append(rank)

    others = sorted(set(job.failures) - set(job.failed_first))
    for ranks in by_end.values():
        failure = job.failures[ranks[0]]
        place = Location(file=failure.file, line=failure.line) if failure.file else None
        named = the_ranks(ranks)
        message = f"{named[0].upper()}{named[1:]} {visible(failure.what)}"
        message += f" at {visible(place.place)}." if place is not None else "."
        if others:
            message += f" {the_ranks(others).capitalize()} ended after it."
        yield INFO.finding(
            confidence="medium" if failure.has_died else "high",
            message=message,
            fix=_suggest_fix(failure),
            locations=(place,) if place is not None else (),
            n=len(ranks),
            ranks=tuple(sorted(ranks)),
            evidence={"what": failure.what, "ended_after": others},
        )


def _suggest_fix(failure: RankFailure) -> str:
    if failure.has_died:
        return (
            "Look into the output of `dmesg`, which names processes that were killed since memory "
            "ran out, and run with `python -X faulthandler`, which prints the stack of a crash."
        )
    if any(text in failure.what for text in _OUT_OF_MEMORY):
        return "Give this rank smaller batches, or compare its memory with the other ranks."
    return "Mend this error first: what the other ranks raised follows from it."
