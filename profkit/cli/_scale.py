"""The options that say where many recordings are analyzed."""

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from profkit.cli._options import Command, add_options
from profkit.dataclass import dataclass

if TYPE_CHECKING:
    from profkit.analysis.several import Scale


@dataclass(frozen=True)
class Place:
    """The place of the analysis as on the command line: see :func:`add_scale_options`."""

    workers: int | None = None
    cluster: str | None = None
    scheduler_file: str | None = None

    @contextmanager
    def scale(self) -> "Iterator[Scale]":
        """Open the processes or the connection to the cluster for a block.

        Raises:
            UsageError: There is no such cluster.
        """
        from profkit.analysis.several import Scale

        if self.cluster is None and self.scheduler_file is None:
            yield Scale(self.workers)
            return
        # Dask is imported for a cluster alone.
        from profkit.scale.cluster import connected

        def say(text: str) -> None:
            click.echo(f"profkit: {text}", err=True)

        with connected(self.cluster, self.scheduler_file, say) as client:
            yield Scale(self.workers, client)


def add_scale_options(command: Command) -> Command:
    """Add the options that say where several recordings are analyzed.

    Args:
        command: The command's function. Its argument ``place`` gets a :class:`Place`.
    """

    # Both options name the cluster, and click has no options that exclude each other.
    @functools.wraps(command)
    def with_place(
        *, workers: int | None, cluster: str | None, scheduler_file: str | None, **others: object
    ) -> int:
        if cluster is not None and scheduler_file is not None:
            raise click.UsageError("--cluster and --scheduler-file both name a cluster: give one.")
        return command(place=Place(workers, cluster, scheduler_file), **others)

    return add_options(
        with_place,
        click.option(
            "--workers",
            metavar="N",
            type=click.IntRange(min=1),
            help="Processes for several recordings.  [default: by cores and memory]",
        ),
        click.option(
            "--cluster",
            metavar="ADDRESS",
            help="Analyze several recordings on a Dask cluster, such as tcp://HOST:8786.",
        ),
        click.option(
            "--scheduler-file",
            metavar="FILE",
            type=click.Path(),
            help="Like --cluster, by the file that the scheduler wrote.",
        ),
    )
