"""``profkit mcp``: a server for language models."""

from pathlib import Path

import click


@click.command(
    short_help="Serve recordings to language models (MCP).",
    epilog="\b\nExample: claude mcp add profkit -- profkit mcp --root ~/project",
)
@click.option(
    "--root",
    metavar="FOLDER",
    default=".",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder of the recordings.  [default: working directory]",
)
def command(*, root: Path) -> int:
    """Serve the recordings of a folder over the Model Context Protocol, on stdin and stdout.

    Its tools return what analyze, explain, diff and what-if print, as JSON of a bounded size. They
    write nothing, and read nothing outside of FOLDER.
    """
    from profkit.errors import UsageError

    try:
        from profkit.integrations.mcp.server import build_server
    except ImportError as error:
        # Another module that is missing is not an optional one.
        if (error.name or "").partition(".")[0] != "mcp":
            raise
        raise UsageError(
            "profkit mcp needs a package that is not installed: mcp.",
            "pip install 'profkit[mcp]'",
        ) from None
    build_server(root).run("stdio")
    return 0
