"""IPython and Jupyter: the magic ``%%profkit``, and source lines named by cell, as ``In [3]:5``.

``%load_ext profkit`` loads it. A recorded cell runs as it does without the magic, with the same
output, last value and errors; the report follows.
"""

import ast
import dataclasses
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from IPython.core.display_functions import display
from IPython.core.error import UsageError
from IPython.core.magic import Magics, line_cell_magic, magics_class
from IPython.core.magic_arguments import argument, magic_arguments, parse_argstring

import profkit
from profkit.capture.memory.scope import IdleMemory, Memory
from profkit.capture.recording import current
from profkit.capture.recording.trace import Idle
from profkit.errors import ProfkitError
from profkit.integrations.cell_recording import CellRecording, new_recording
from profkit.model.location import base_name
from profkit.model.report import Report
from profkit.patterns import regex

_DEFAULT_NAME: Final = "cell"
_IN_IPYTHON: Final = regex(r"<ipython-input-(\d+)-[0-9a-f]+>")


@magics_class
class ProfkitMagics(Magics):
    """The magics of profkit."""

    @magic_arguments()
    @argument("-n", "--name", default=_DEFAULT_NAME, help="Name of the recording and its folder.")
    @argument("-m", "--memory", action="store_true", help="Monitor memory only; record no trace.")
    @argument(
        "-d", "--dir", default=None, help="Folder for files; default: $PROFKIT_DIR or traces."
    )
    @argument("-q", "--quiet", action="store_true", help="Do not show the report.")
    @argument("-o", "--output", default=None, help="Variable for the recording: .report, .path.")
    @argument("statement", nargs="*", help="The statement to record: %%profkit model(batch)")
    @line_cell_magic
    def profkit(self, line: str, cell: str | None = None) -> None:
        """Record a cell or a statement, and show the report.

        ::

            %%profkit --name forward
            for batch in batches:
                model(batch)
        """
        __tracebackhide__ = True  # an error in the cell is the cell's
        arguments = parse_argstring(self.profkit, line)
        shell: Any = self.shell
        run = _compile(shell, _read_source(arguments, cell))
        recording = _open_recording(arguments)
        try:
            with recording:
                run()
        finally:
            if arguments.output:
                shell.user_ns[arguments.output] = recording
            if not arguments.quiet:
                _show(recording)


def _read_source(arguments: Any, cell: str | None) -> str:  # noqa: ANN401  (argparse's)
    statement = " ".join(arguments.statement)
    if cell is not None and statement:
        raise UsageError(
            f"%%profkit records the cell below it: remove {statement!r} from its line."
        )
    # An empty line stands for the line of the magic, so that line numbers are the cell's.
    source = f"\n{cell}" if cell is not None else statement
    if not source.strip():
        raise UsageError("There is nothing to record: give %profkit a statement.")
    return source


def _open_recording(arguments: Any) -> CellRecording | Idle | Memory | IdleMemory:  # noqa: ANN401  (argparse's)
    # A cell that runs again is recorded again, whatever the limit of its name.
    current.reset_limits()
    if not arguments.memory:
        return new_recording(arguments.name, arguments.dir)
    # Through the package, which gives captures the function that makes their report.
    return profkit.memory(arguments.name, limit=sys.maxsize, dir=arguments.dir, quiet=True)


def _compile(shell: Any, source: str) -> Callable[[], None]:  # noqa: ANN401  (IPython's shell)
    """Return a function that runs a cell as the shell runs one.

    The cell's text is registered with the shell under its file name, for tracebacks and the
    recording. The shell displays and stores the value of its last expression.

    Args:
        shell: IPython's shell.
        source: The cell; its first line is the magic, so that line numbers are those of the cell.

    Raises:
        SyntaxError: The cell is not valid Python.
        UsageError: The cell has a top-level ``await``, which only the shell itself can run.
    """
    __tracebackhide__ = True
    # Transforming drops empty lines at the beginning, and would move all line numbers.
    text = shell.transform_cell(source)
    text = source[: len(source) - len(source.lstrip("\n"))] + text.lstrip("\n")
    name = shell.compile.cache(text, _number(shell), raw_code=source)

    tree = shell.transform_ast(shell.compile.ast_parse(text, filename=name))
    if _has_await(tree):
        raise UsageError(
            "%%profkit cannot record a cell with a top-level `await`; "
            "use `with profkit.trace():` in the cell."
        )

    silent, displayed = _split(tree.body, shell.ast_node_interactivity, text)
    steps = [
        shell.compile(ast.Module(silent, []), name, "exec"),
        *(shell.compile(ast.Interactive([node]), name, "single") for node in displayed),
    ]

    def run() -> None:
        __tracebackhide__ = True
        for code in steps:
            exec(code, shell.user_global_ns, shell.user_ns)  # noqa: S102  (the user's own cell)

    return run


def _number(shell: Any) -> int:  # noqa: ANN401  (IPython's shell)
    """Return the number of the running cell: the cell of the innermost frame within any."""
    names = shell.compile._filename_map  # noqa: SLF001  (there is no public accessor)
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code.co_filename in names:
            return int(names[frame.f_code.co_filename])
        frame = frame.f_back
    return int(shell.execution_count)


def _split(
    body: list[ast.stmt], interactivity: str, text: str
) -> tuple[list[ast.stmt], list[ast.stmt]]:
    """Split a cell: statements without displayed values, then the ones that the shell displays.

    Source: ``InteractiveShell.ast_node_interactivity`` in IPython's documentation.
    """
    if interactivity == "all":
        return [], body
    if interactivity == "last_expr_or_assign" and body:
        body = [*body, *_assigned(body[-1])]
    is_shown = bool(body) and (interactivity == "last" or isinstance(body[-1], ast.Expr))
    if interactivity == "none" or not is_shown or text.rstrip().endswith(";"):
        return body, []
    return body[:-1], body[-1:]


def _assigned(statement: ast.stmt) -> list[ast.stmt]:
    """Return the name that a statement assigns to, as an expression."""
    targets: Iterable[ast.expr] = ()
    if isinstance(statement, ast.Assign):
        targets = statement.targets[-1:]
    elif isinstance(statement, ast.AnnAssign | ast.AugAssign):
        targets = [statement.target]
    names = [ast.Name(target.id, ast.Load()) for target in targets if isinstance(target, ast.Name)]
    return [ast.fix_missing_locations(ast.Expr(name)) for name in names]


def _has_await(tree: ast.AST) -> bool:
    """Return whether there is an ``await`` outside every function."""
    if isinstance(tree, ast.Await | ast.AsyncFor | ast.AsyncWith):
        return True
    inner = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
    return any(
        _has_await(child) for child in ast.iter_child_nodes(tree) if not isinstance(child, inner)
    )


def _show(recording: CellRecording | Idle | Memory | IdleMemory) -> None:
    """Show the report, if there is one; capture itself warns if nothing was recorded."""
    files = recording.files if isinstance(recording, CellRecording) else [recording.path]
    if not any(files):
        return
    try:
        report = recording.report
    except ProfkitError as error:
        print(f"profkit: {error}", file=sys.stderr)  # noqa: T201  (shown below the cell)
        return
    if report is not None:
        display(report)


def reset_limits_with_each_cell() -> None:
    """Record a name again, with the current source lines, when its cell is run again."""
    shell = _shell()
    events = getattr(shell, "events", None)
    if events is not None and _reset_limits not in events.callbacks["pre_run_cell"]:
        events.register("pre_run_cell", _reset_limits)


def _reset_limits(*_info: object) -> None:
    current.reset_limits()


def _shell() -> Any:  # noqa: ANN401  (IPython's shell)
    """Return the shell of this process, or None."""
    return sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None


def with_cell_names(report: Report) -> Report:
    """Return a report with source lines in this shell's cells named ``In [3]:5``."""
    numbers: Mapping[str, int] = getattr(getattr(_shell(), "compile", None), "_filename_map", {})
    # Such as /tmp/ipykernel_17/2563.py.
    cells = {
        file: f"In [{number}]"
        for file, number in numbers.items()
        if not _IN_IPYTHON.fullmatch(file)
    }
    short = {base_name(file): cell for file, cell in cells.items()}

    # The longest first: a file's name alone also ends its path.
    files = sorted({*cells, *short}, key=len, reverse=True)
    pattern = re.compile("|".join([*(rf"{re.escape(f)}(?=$|:\d)" for f in files), r"(?!)"]))

    def name_cells(text: str) -> str:
        text = _IN_IPYTHON.sub(r"In [\1]", text)
        return pattern.sub(lambda match: cells.get(match[0]) or short[match[0]], text)

    renamed: Report = _rename(report, name_cells)
    return renamed


def _rename(tree: Any, rename: Callable[[str], str]) -> Any:  # noqa: ANN401  (any part of a report)
    """Return a tree of dataclasses with every text in it renamed."""
    if isinstance(tree, str):
        return rename(tree)
    if isinstance(tree, tuple | list):
        return type(tree)(_rename(part, rename) for part in tree)
    if isinstance(tree, dict):
        return {key: _rename(value, rename) for key, value in tree.items()}
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        changed = {
            field.name: _rename(getattr(tree, field.name), rename)
            for field in dataclasses.fields(tree)
            if field.init
        }
        return dataclasses.replace(tree, **changed)
    return tree
