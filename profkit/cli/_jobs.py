"""Joins the reports on the ranks of a job."""

import os
from collections.abc import Sequence
from dataclasses import dataclass

from profkit.engine.job import RankReport, job_report, jobs_of
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
    of_rank = {id(each.rank): each for each in every if each.rank is not None}
    first: dict[int, Analyzed] = {}
    joined: set[int] = set()
    for job in jobs_of(each.rank for each in every if each.rank is not None):
        members = [of_rank[id(rank)] for rank in job]
        paths = tuple(each.paths[0] for each in members)
        report = job_report(job, os.path.commonpath(paths))
        joined |= {id(each) for each in members}
        first[id(next(each for each in every if each in members))] = Analyzed(
            paths, report, None, None
        )
    return [
        first.get(id(each), each) for each in every if id(each) in first or id(each) not in joined
    ]
