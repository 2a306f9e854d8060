"""``profkit export``: a recording and its report for other programs."""

import importlib
import importlib.util
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from profkit.cli._inputs import Read, plain_name, read_all
from profkit.cli._options import FormatChoice, reading_options
from profkit.cli._output import STDOUT, check_target, deliver, layout
from profkit.cli._progress import Progress, progress

if TYPE_CHECKING:
    from profkit.present.renderer import Renderer

_INTO_FOLDERS: Final = {"tensorboard": "profkit.integrations.tensorboard.export"}
"""Formats that are folders of files: the module whose ``write(reports, folder)`` writes them."""
_GZIP: Final = ".gz"
_GZIP_LEVEL: Final = 1
_GZIP_WBITS: Final = 31


class ExportChoice(FormatChoice):
    """The name of any renderer, or of a format that is a folder."""

    def __init__(self) -> None:
        super().__init__(of_recordings=True)

    def _known(self) -> tuple[str, ...]:
        return tuple(sorted((*super()._known(), *filter(_is_folder_format, _INTO_FOLDERS))))

    def _is_known(self, name: str) -> bool:
        return _is_folder_format(name) or super()._is_known(name)


def _is_folder_format(name: str) -> bool:
    """Whether a format is a folder of files, and what writes it is there."""
    return name in _INTO_FOLDERS and importlib.util.find_spec(_INTO_FOLDERS[name]) is not None


@click.command(
    short_help="Hand a recording on to Perfetto, a spreadsheet, a code host and others.",
    epilog="\b\nExamples:\n  profkit export trace.json.gz --to chrome\n"
    "  profkit export trace.json.gz --to csv -o tables/",
)
@click.argument("paths", metavar="PATH...", nargs=-1, required=True)
@click.option("--to", "format_", type=ExportChoice(), required=True, help="The format.")
@click.option("-o", "--output", metavar="OUT",
              help="A file, which is packed if it ends in .gz; or a folder, which ends in / or is "
              "there already; - is stdout.  [default: a file here, named after PATH; in a pipe "
              "stdout]")  # fmt: skip
@click.option("--table", metavar="NAME",
              help="Of formats that are tables this one; into a folder go all.")  # fmt: skip
@click.option("--weight", metavar="NAME",
              help="Of stacks: host, device, memory, or a flame graph's name.")  # fmt: skip
@click.option("--base", metavar="FOLDER", type=click.Path(file_okay=False),
              help="What paths of source files are relative to.  [default: here]")  # fmt: skip
@click.option("--force", is_flag=True, help="Overwrite what is there.")
@reading_options
def command(
    *,
    paths: tuple[str, ...],
    format_: str,
    output: str | None,
    table: str | None,
    weight: str | None,
    base: str | None,
    force: bool,
    chosen: Mapping[str, Any],
) -> int:
    """Write a recording, or the report on it, for other programs.

    PATH is a trace, a snapshot of the CUDA allocator's memory, what profkit run wrote of a
    program's memory, a folder or an archive of these, or a report that profkit analyze saved as
    JSON, which has no timeline and no stacks to hand on.
    """
    root = str(Path(base).absolute() if base else Path.cwd())
    remarks: list[str] = []
    with progress() as shown:
        reads = read_all(paths, chosen, shown)
        if format_ in _INTO_FOLDERS:
            written, opened_by = (
                _into_folder(format_, reads, output),
                f"{format_} --logdir {output}",
            )
        else:
            wanted = {"table": table, "weight": weight}
            export = _Export(format_, output, wanted, base=root, shown=shown, force=force)
            export.check(paths)
            written, opened_by = export.write(reads), export.module.INFO.opened_by
            remarks = export.remarks
    for remark in dict.fromkeys(remarks):
        click.echo(f"profkit: {remark}", err=True)
    _say_where(written, opened_by)
    return 0


@dataclass(frozen=True)
class ExportTarget:
    """Where one product goes.

    Attributes:
        place: A file, or ``-`` for stdout.
        table: Of a format that is tables the one that goes there, else None.
    """

    place: str
    table: str | None = None


class _Export:
    """Writes what was read in one format.

    Args:
        format_: The renderer's name.
        output: As on the command line.
        wanted: What else was asked for there, by the option's name.
        base: The folder that paths are relative to.
        shown: Shows how far it is.
        force: Whether files may be overwritten.
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
        unknown = self._wanted.keys() - {each.name for each in fields(self.module.Options)}
        if unknown:
            raise click.UsageError(f"{format_} has no --{min(unknown)}.")
        self.remarks: list[str] = []
        if output is None and not sys.stdout.isatty():
            output = STDOUT
        self._output, self._table = output, wanted.get("table")
        self._base, self._shown, self._force = base, shown, force

    def check(self, paths: tuple[str, ...]) -> None:
        """Refuse what is there already before any work is done for it, as far as that is known."""
        if self._output is not None and not _is_folder(self._output):
            check_target(self._output, force=self._force)
        elif self._output is None and len(paths) == 1 and not _holds_several(paths[0]):
            check_target(self._named(plain_name(paths[0]), self._table), force=self._force)

    def write(self, reads: Iterable[Read]) -> list[str]:
        """Write everything, and return the files."""
        if self._output is None or _is_folder(self._output):
            return self._each(reads)
        return self._as_one(iter(reads), self._output)

    def _as_one(self, reads: Iterator[Read], place: str) -> list[str]:
        """Everything in one file: of several recordings what a format can put together."""
        from profkit.errors import UsageError
        from profkit.present.renderer import together

        target = ExportTarget(place, self._table)
        if self.module.INFO.shows == "report":
            products = [b"".join(self._pieces(read, target)) for read in reads]
            self._deliver(iter((together(self.module, products),)), place)
            return [place]
        first = next(reads)
        if next(reads, None) is not None:
            message = f"{first.path} is one of several recordings, and {place} one file."
            raise UsageError(message, "Name a folder: -o FOLDER/.")
        self._deliver(self._pieces(first, target), place, _about_bytes(first))
        return [place]

    def _each(self, reads: Iterable[Read]) -> list[str]:
        """A file for each recording, and in a folder also for each of its tables."""
        written: list[str] = []
        for read in reads:
            for target in self._targets(read, set(written)):
                self._deliver(self._pieces(read, target), target.place, _about_bytes(read))
                written.append(target.place)
        return written

    def _targets(self, read: Read, taken: set[str]) -> list[ExportTarget]:
        from profkit.present.renderer import table_names

        there = table_names(self.module, read.report, {"recording": read.recording})
        if there and self._table is not None:
            there = (self._table,)
        elif there and self._output is None:
            there = there[:1]
        name, number = read.name, 1
        while any(self._named(name, table) in taken for table in there or (None,)):
            number += 1
            name = f"{read.name}-{number}"
        return [ExportTarget(self._named(name, table), table) for table in there or (None,)]

    def _named(self, name: str, table: str | None) -> str:
        """The file of a recording: here, or in the folder that was named."""
        from profkit.present.renderer import streams

        suffix = self.module.INFO.suffix + (_GZIP if streams(self.module) else "")
        file = f"{name}.{table}{suffix}" if table is not None else f"{name}{suffix}"
        return str(Path(self._output or "") / file)

    def _pieces(self, read: Read, target: ExportTarget) -> Iterator[bytes]:
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
            pieces = _packed(pieces)
        if _is_folder(self._output or ""):
            _make_folder(Path(self._output or ""))
        deliver(pieces, place, force=self._force)


def _about_bytes(read: Read) -> int:
    """How long a recording's text is, and about so long what is made of it in pieces."""
    return read.recording.context.trace.notes.uncompressed_bytes if read.recording else 0


def _is_folder(output: str) -> bool:
    return output.endswith(("/", "\\")) or (output != STDOUT and Path(output).is_dir())


def _holds_several(path: str) -> bool:
    """Whether what a path names may be several recordings, which have names of their own."""
    return Path(path).is_dir() or path.lower().endswith((".tar", ".zip", ".tgz", ".tar.gz"))


def _make_folder(folder: Path) -> None:
    from profkit.errors import OutputError

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        message = f"{folder} cannot be made: {error.strerror or error}."
        raise OutputError(message, "Choose another place with -o.") from error


def _packed(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Pack a product by gzip on its way; the same product gives the same bytes."""
    from isal import isal_zlib

    packer = isal_zlib.compressobj(level=_GZIP_LEVEL, wbits=_GZIP_WBITS)
    for piece in pieces:
        yield packer.compress(piece)
    yield packer.flush()


def _into_folder(format_: str, reads: Iterable[Read], output: str | None) -> list[str]:
    """Write a format that is a folder of files."""
    if output is None or output == STDOUT:
        raise click.UsageError(f"{format_} is a folder of files: name it with -o.")
    module = importlib.import_module(_INTO_FOLDERS[format_])
    written = module.write((read.report for read in reads), Path(output))
    return [str(path) for path in written]


def _say_where(written: list[str], opened_by: str) -> None:
    """Say on a terminal where the product is, and what opens it."""
    from profkit.names import visible

    if written == [STDOUT] or not sys.stderr.isatty() or not written:
        return
    what = visible(written[0]) if len(written) == 1 else f"{len(written)} files"
    where = "" if len(written) == 1 else f", such as {visible(written[0])}"
    opens = f"; open it in {opened_by}" if opened_by else ""
    click.echo(f"profkit: wrote {what}{where}{opens}", err=True)
