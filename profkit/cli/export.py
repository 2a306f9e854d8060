"""``profkit export``: writes recordings and reports for other programs."""

import importlib
import importlib.util
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from profkit.cli._inputs import Input, is_archive, plain_name, read_all, read_jobs
from profkit.cli._newest import select_recordings
from profkit.cli._options import FormatChoice, add_analysis_options, add_paths_argument
from profkit.cli._output import STDOUT, check_target, deliver, layout
from profkit.cli._progress import Progress, progress
from profkit.cli._scale import Place, add_scale_options
from profkit.dataclass import dataclass
from profkit.folders import working_folder

if TYPE_CHECKING:
    from profkit.analysis.options import AnalysisOptions
    from profkit.present.renderer import Renderer

_INTO_FOLDERS: Final = {"tensorboard": "profkit.integrations.tensorboard.export"}
"""Formats of several files: the module whose ``write(reports, folder)`` writes them."""
_GZIP: Final = ".gz"
_GZIP_LEVEL: Final = 1
_GZIP_WBITS: Final = 31


class ExportChoice(FormatChoice):
    """The name of a renderer, or of a format of several files."""

    def __init__(self) -> None:
        super().__init__(of_recordings=True)

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> str:
        """Check that there is such a format; Perfetto is a viewer, which people ask for by name."""
        return super().convert("chrome" if value == "perfetto" else value, param, ctx)

    def _names(self) -> tuple[str, ...]:
        return tuple(sorted((*super()._names(), *filter(_is_folder_format, _INTO_FOLDERS))))

    def _is_known(self, name: str) -> bool:
        return _is_folder_format(name) or super()._is_known(name)


def _is_folder_format(name: str) -> bool:
    """Tell whether a format has several files, and the module that writes them is installed."""
    return name in _INTO_FOLDERS and importlib.util.find_spec(_INTO_FOLDERS[name]) is not None


@click.command(
    short_help="Export a recording for Perfetto, TensorBoard, spreadsheets and others.",
    epilog="\b\nExamples:\n  profkit export --to md\n"
    "  profkit export trace.json.gz --to chrome\n"
    "  profkit export trace.json.gz --to csv -o tables/",
)
@add_paths_argument
@click.option("--to", "format_", type=ExportChoice(), required=True, help="The format.")
@click.option(
    "-o",
    "--output",
    metavar="OUT",
    help="A file, compressed if its name ends in .gz; or a folder, which ends in / or "
    "exists; - is stdout.  [default: a file in the working directory named after PATH; "
    "in a pipe, stdout]",
)
@click.option(
    "--table",
    metavar="NAME",
    help="The table to export, for table formats; a folder gets all tables.",
)
@click.option(
    "--weight",
    metavar="NAME",
    help="For stacks: host, device, memory, or the name of a flame graph.",
)
@click.option(
    "--base",
    metavar="FOLDER",
    type=click.Path(file_okay=False),
    help="Base of relative source paths.  [default: working directory]",
)
@click.option("--force", is_flag=True, help="Overwrite existing files.")
@add_analysis_options
@add_scale_options
def command(  # noqa: PLR0913  (one argument per option)
    *,
    paths: tuple[str, ...],
    format_: str,
    output: str | None,
    table: str | None,
    weight: str | None,
    base: str | None,
    force: bool,
    options: "AnalysisOptions",
    place: Place,
) -> int:
    """Export a recording or its report for other programs.

    PATH is a trace, a snapshot of the CUDA caching allocator, a memory record of profkit run, a
    folder or an archive of these, or a report that profkit analyze saved as JSON, which has neither
    a timeline nor stacks. Without PATH, the newest recording in $PROFKIT_DIR, else traces, is
    exported.
    """
    root = str(Path(base).absolute() if base else working_folder())
    remarks: list[str] = []
    selection = select_recordings(paths)
    with progress() as shown:
        if format_ in _INTO_FOLDERS:
            written = _write_folder(format_, read_all(selection, options, shown), output)
            opened_by = f"{format_} --logdir {output}"
        else:
            wanted = {"table": table, "weight": weight}
            export = _Export(format_, output, wanted, base=root, shown=shown, force=force)
            export.check(selection.paths)
            info = export.module.INFO
            # The report of a job is one product, while recordings of ranks usually stay apart.
            joins_ranks = info.joins_ranks or info.shows == "report"
            reads = (
                read_jobs(selection, options, place, shown)
                if joins_ranks
                else read_all(selection, options, shown)
            )
            written, opened_by = export.write(reads), info.opened_by
            remarks = export.remarks

    for remark in dict.fromkeys(remarks):
        click.echo(f"profkit: {remark}", err=True)
    _print_files(written, opened_by)
    return 0


@dataclass(frozen=True)
class ExportTarget:
    """One output.

    Attributes:
        place: A file, or ``-`` for stdout.
        table: The table that is written there, for a format of tables, else None.
    """

    place: str
    table: str | None = None


class _Export:
    """Writes inputs in one format.

    Args:
        format_: The renderer's name.
        output: As on the command line.
        wanted: More options of the command line, by name; None if not given.
        base: The base of relative paths.
        shown: Shows the progress.
        force: Whether existing files are overwritten.
    """

    def __init__(
        self,
        format_: str,
        output: str | None,
        wanted: Mapping[str, str | None],
        *,
        base: str,
        shown: Progress,
        force: bool,
    ) -> None:
        from dataclasses import fields

        from profkit.present.renderer import renderer

        self.module: Renderer = renderer(format_)
        self._wanted = {name: value for name, value in wanted.items() if value is not None}
        unknown = self._wanted.keys() - {field.name for field in fields(self.module.Options)}
        if unknown:
            raise click.UsageError(f"{format_} does not take --{min(unknown)}.")
        self.remarks: list[str] = []
        # In a pipe the next program reads the product.
        if output is None and not sys.stdout.isatty():
            output = STDOUT
        self._output, self._table = output, wanted.get("table")
        self._base, self._shown, self._force = base, shown, force

    def check(self, paths: tuple[str, ...]) -> None:
        """Check the output file before any work is done, if its name is known."""
        if self._output is not None and not _is_folder(self._output):
            check_target(self._output, force=self._force)
        # The names of several files are known only when these have been read.
        elif self._output is None and len(paths) == 1 and not _holds_several(paths[0]):
            check_target(self._file_of(plain_name(paths[0]), self._table), force=self._force)

    def write(self, reads: Iterable[Input]) -> list[str]:
        """Write everything and return the files."""
        if self._output is None or _is_folder(self._output):
            return self._write_each(reads)
        return self._write_one(iter(reads), self._output)

    def _write_one(self, reads: Iterator[Input], place: str) -> list[str]:
        """Write one file; only formats of reports can combine several recordings."""
        from profkit.errors import UsageError
        from profkit.present.renderer import together

        target = ExportTarget(place, self._table)
        if self.module.INFO.shows == "report":
            products = [b"".join(self._render(read, target)) for read in reads]
            self._deliver(iter((together(self.module, products),)), place)
            return [place]

        # Formats of recordings cannot be concatenated.
        first = next(reads)
        if next(reads, None) is not None:
            message = f"{place} is one file, but {first.path} is one of several recordings."
            raise UsageError(message, "Name a folder: -o FOLDER/.")
        self._deliver(self._render(first, target), place, _about_bytes(first))
        return [place]

    def _write_each(self, reads: Iterable[Input]) -> list[str]:
        """Write one file per recording, and in a folder one per table."""
        written: list[str] = []
        for read in reads:
            for target in self._choose_targets(read, set(written)):
                self._deliver(self._render(read, target), target.place, _about_bytes(read))
                written.append(target.place)
        return written

    def _choose_targets(self, read: Input, taken: set[str]) -> list[ExportTarget]:
        from profkit.present.renderer import table_names

        names = table_names(self.module, read.report, {"recording": read.recording})
        if names and self._table is not None:
            names = (self._table,)
        elif names and self._output is None:
            names = names[:1]
        tables = names or (None,)

        # Recordings of different folders may have the same name.
        name, number = read.name, 1
        while any(self._file_of(name, table) in taken for table in tables):
            number += 1
            name = f"{read.name}-{number}"
        return [ExportTarget(self._file_of(name, table), table) for table in tables]

    def _file_of(self, name: str, table: str | None) -> str:
        """Return the file of a recording, in the working directory or the output folder."""
        from profkit.present.renderer import streams

        suffix = self.module.INFO.suffix + (_GZIP if streams(self.module) else "")
        file = f"{name}.{table}{suffix}" if table is not None else f"{name}{suffix}"
        return str(Path(self._output or "") / file)

    def _render(self, read: Input, target: ExportTarget) -> Iterator[bytes]:
        from profkit.present.renderer import pieces, remark

        options = {**layout(target.place), "base": self._base, "recording": read.recording}
        options |= self._wanted
        if target.table is not None:
            options["table"] = target.table
        self._shown.writing(self.module.INFO.name)
        self.remarks += filter(None, [remark(self.module, read.report, options)])
        return pieces(self.module, read.report, options)

    def _deliver(self, pieces: Iterator[bytes], place: str, about_bytes: int = 0) -> None:
        from profkit.present.renderer import streams

        pieces = self._shown.written(pieces, about_bytes if streams(self.module) else 0)
        if place.endswith(_GZIP):
            pieces = _compress(pieces)
        if _is_folder(self._output or ""):
            _make_folder(Path(self._output or ""))
        deliver(pieces, place, force=self._force)


def _about_bytes(read: Input) -> int:
    """Return a recording's decompressed size, which an export in pieces has approximately too."""
    return read.recording.context.trace.notes.uncompressed_bytes if read.recording else 0


def _is_folder(output: str) -> bool:
    return output.endswith(("/", "\\")) or (output != STDOUT and os.path.isdir(output))  # noqa: PTH112


def _holds_several(path: str) -> bool:
    """Tell whether a path may be several recordings, which have names of their own."""
    is_folder = os.path.isdir(path)  # noqa: PTH112  (Path.is_dir raises for long names)
    return is_folder or is_archive(path)


def _make_folder(folder: Path) -> None:
    from profkit.errors import OutputError

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        message = f"{folder} cannot be created: {error.strerror or error}."
        raise OutputError(message, "Choose another place with -o.") from error


def _compress(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Compress by gzip without a time stamp, so that equal input gives equal bytes."""
    from isal import isal_zlib

    compressor = isal_zlib.compressobj(level=_GZIP_LEVEL, wbits=_GZIP_WBITS)
    for piece in pieces:
        yield compressor.compress(piece)
    yield compressor.flush()


def _write_folder(format_: str, reads: Iterable[Input], output: str | None) -> list[str]:
    """Write a format of several files."""
    if output is None or output == STDOUT:
        raise click.UsageError(f"{format_} writes several files: name a folder with -o.")
    module = importlib.import_module(_INTO_FOLDERS[format_])
    written = module.write((read.report for read in reads), Path(output))
    return [str(path) for path in written]


def _print_files(written: list[str], opened_by: str) -> None:
    """Print to stderr which files were written, and on a terminal what opens them."""
    from profkit.names import visible

    if written == [STDOUT] or not written:
        return
    what = visible(written[0]) if len(written) == 1 else f"{len(written)} files"
    where = "" if len(written) == 1 else f", such as {visible(written[0])}"
    opens = f"; open it in {opened_by}" if opened_by and sys.stderr.isatty() else ""
    click.echo(f"profkit: wrote {what}{where}{opens}", err=True)
