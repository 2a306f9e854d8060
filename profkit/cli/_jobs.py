"""Joins the reports on the ranks of a job."""

from collections.abc import Sequence
from dataclasses import dataclass

from profkit.engine.job import job_report, jobs_of
from profkit.engine.job_context import RankReport
from profkit.model.report import Report


@dataclass(frozen=True)
class Analyzed:
    """A report of one file, or over the ranks of a job.

    Attributes:
        paths: Its files; of a job first that of the rank that is shown.
        rank: What joins it to the reports on other ranks; None if it is no rank's.
        product: The report in the wanted format, or None if it is still to be made.
    """

    paths: tuple[str, ...]
    report: Report
    rank: RankReport | None
    product: bytes | None


def with_jobs(every: Sequence[Analyzed]) -> list[Analyzed]:
    """One report in place of those on the ranks of a job, where the first of them was."""
    path_of = {id(each.rank): each.paths[0] for each in every}
    job_of = {
        id(rank): job
        for job in jobs_of(each.rank for each in every if each.rank is not None)
        for rank in job
    }
    found: list[Analyzed] = []
    joined: set[int] = set()
    for each in every:
        job = job_of.get(id(each.rank))
        if job is None:
            found.append(each)
        elif id(job) not in joined:
            joined.add(id(job))
            paths = tuple(path_of[id(rank)] for rank in job)
            found.append(Analyzed(paths, job_report(job), None, None))
    return found
