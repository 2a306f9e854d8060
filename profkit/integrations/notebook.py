"""IPython and Jupyter: the magic ``%%profkit``, and lines of cells by the name that a reader knows.

``%load_ext profkit`` loads it. A cell that is recorded runs as it would run without: its output,
its last value and its errors are where they always are, and the report follows.
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
from profkit.capture import current
from profkit.capture.memory.scope import IdleMemory, Memory
from profkit.capture.trace import Idle, TraceCapture
from profkit.errors import ProfkitError
from profkit.model.report import Report

_DEFAULT_NAME: Final = "cell"
_IN_IPYTHON: Final = re.compile(r"<ipython-input-(\d+)-[0-9a-f]+>")


@magics_class
class ProfkitMagics(Magics):
    """The magics of profkit."""

    @magic_arguments()
    @argument("-n", "--name", default=_DEFAULT_NAME, help="Name of the recording and its folder.")
    @argument("-m", "--memory", action="store_true", help="Watch memory from step to step instead.")
    @argument("-d", "--dir", default=None, help="Folder for files; $PROFKIT_DIR, else traces.")
    @argument("-q", "--quiet", action="store_true", help="Do not show the report.")
    @argument("-o", "--output", default=None, help="Variable for the recording: .report, .path.")
    @argument("statement", nargs="*", help="What a line records: %%profkit model(batch)")
    @line_cell_magic
    def profkit(self, line: str, cell: str | None = None) -> None:
        """Record a cell, or a statement, and show the report.

        ::

            %%profkit --name forward
            for batch in batches:
                model(batch)
        """
        __tracebackhide__ = True  # an error in the cell is the cell's
        words = parse_argstring(self.profkit, line)
        statement = " ".join(words.statement)
        if cell is not None and statement:
            raise UsageError(f"%%profkit takes no {statement!r} on its line; the cell follows it.")
        source = f"\n{cell}" if cell is not None else statement
        if not source.strip():
            raise UsageError("There is nothing to record: %profkit takes a statement.")
        shell: Any = self.shell
        run = _ready(shell, source)
        current.reset_limits()
        recording = _recording(words)
        try:
            with recording:
                run()
        finally:
            if words.output:
                shell.user_ns[words.output] = recording
            if not words.quiet:
                _show(recording)


def _recording(words: Any) -> TraceCapture | Idle | Memory | IdleMemory:  # noqa: ANN401  (argparse's)
    """What records, not yet begun."""
    # By the package's own door, which tells captures how to make their report.
    record = profkit.memory if words.memory else profkit.trace
    return record(words.name, limit=sys.maxsize, dir=words.dir, quiet=True)


def _ready(shell: Any, source: str) -> Callable[[], None]:  # noqa: ANN401  (IPython's shell)
    """A cell made ready to run as the shell itself runs one.

    The shell knows its text under the name that tracebacks and the recording have, and its last
    expression is displayed by the shell, which keeps its value.

    Args:
        source: The cell; its first line is the magic's, so that lines are numbered as they stand.

    Raises:
        SyntaxError: It is no Python.
        UsageError: It awaits at the top, which only the shell itself can run.
    """
    __tracebackhide__ = True
    text = shell.transform_cell(source)
    text = source[: len(source) - len(source.lstrip("\n"))] + text.lstrip("\n")
    name = shell.compile.cache(text, _number(shell), raw_code=source)
    tree = shell.transform_ast(shell.compile.ast_parse(text, filename=name))
    if _awaits(tree):
        raise UsageError(
            "A cell that awaits at its top cannot be recorded by %%profkit; "
            "write `with profkit.trace():` around it."
        )
    quiet, shown = _parts(tree.body, shell.ast_node_interactivity, text)
    steps = [
        shell.compile(ast.Module(quiet, []), name, "exec"),
        *(shell.compile(ast.Interactive([node]), name, "single") for node in shown),
    ]

    def run() -> None:
        __tracebackhide__ = True
        for code in steps:
            exec(code, shell.user_global_ns, shell.user_ns)  # noqa: S102  (it is what the user typed)

    return run


def _number(shell: Any) -> int:  # noqa: ANN401  (IPython's shell)
    """The number of the cell that runs now: that of the nearest frame that is of a cell."""
    names = shell.compile._filename_map  # noqa: SLF001  (nothing public tells)
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code.co_filename in names:
            return int(names[frame.f_code.co_filename])
        frame = frame.f_back
    return int(shell.execution_count)


def _parts(
    body: list[ast.stmt], interactivity: str, text: str
) -> tuple[list[ast.stmt], list[ast.stmt]]:
    """The statements that run quietly, and those whose values the shell displays.

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
    """The name that a statement assigns to, as an expression."""
    targets: Iterable[ast.expr] = ()
    if isinstance(statement, ast.Assign):
        targets = statement.targets[-1:]
    elif isinstance(statement, ast.AnnAssign | ast.AugAssign):
        targets = [statement.target]
    names = [ast.Name(each.id, ast.Load()) for each in targets if isinstance(each, ast.Name)]
    return [ast.fix_missing_locations(ast.Expr(name)) for name in names]


def _awaits(tree: ast.AST) -> bool:
    """Whether something is awaited outside every function."""
    if isinstance(tree, ast.Await | ast.AsyncFor | ast.AsyncWith):
        return True
    inner = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
    return any(
        _awaits(child) for child in ast.iter_child_nodes(tree) if not isinstance(child, inner)
    )


def _show(recording: TraceCapture | Idle | Memory | IdleMemory) -> None:
    """Show the report, where there is one; what could not be recorded has been said already."""
    if recording.path is None:
        return
    try:
        report = recording.report
    except ProfkitError as error:
        print(f"profkit: {error}", file=sys.stderr)  # noqa: T201  (a notebook has no other place)
        return
    if report is not None:
        display(report)


def begin_anew_with_each_cell() -> None:
    """Let names be recorded again, and with their own lines, when a cell is run again."""
    shell = _shell()
    events = getattr(shell, "events", None)
    if events is not None and _begin_anew not in events.callbacks["pre_run_cell"]:
        events.register("pre_run_cell", _begin_anew)


def _begin_anew(*_info: object) -> None:
    current.reset_limits()


def _shell() -> Any:  # noqa: ANN401  (IPython's shell)
    """The shell that runs here, or None."""
    return sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None


def cell_names() -> dict[str, str]:
    """The files that the shell makes of its cells, by name, and what a reader calls them.

    Of ``/tmp/ipykernel_17/2563.py`` and ``<ipython-input-3-…>`` the reader knows ``In [3]``.
    """
    known: Mapping[str, int] = getattr(getattr(_shell(), "compile", None), "_filename_map", {})
    return {file: f"In [{count}]" for file, count in known.items()}


def with_cell_names(report: Report) -> Report:
    """A report whose places in cells are named ``In [3]:5``.

    Args:
        report: The report of what was recorded in this shell.
    """
    names = cell_names()
    known = {file: cell for file, cell in names.items() if not _IN_IPYTHON.fullmatch(file)}
    short = {file.replace("\\", "/").rpartition("/")[2]: cell for file, cell in known.items()}
    files = sorted({*known, *short}, key=len, reverse=True)
    pattern = re.compile("|".join([*(rf"{re.escape(f)}(?=$|:\d)" for f in files), r"(?!)"]))

    def named(text: str) -> str:
        text = _IN_IPYTHON.sub(r"In [\1]", text)
        return pattern.sub(lambda found: known.get(found[0]) or short[found[0]], text)

    renamed: Report = _renamed(report, named)
    return renamed


def _renamed(tree: Any, named: Callable[[str], str]) -> Any:  # noqa: ANN401  (any part of a report)
    """A tree of dataclasses with every text in it renamed."""
    if isinstance(tree, str):
        return named(tree)
    if isinstance(tree, tuple | list):
        return type(tree)(_renamed(each, named) for each in tree)
    if isinstance(tree, dict):
        return {key: _renamed(value, named) for key, value in tree.items()}
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        changed = {
            each.name: _renamed(getattr(tree, each.name), named)
            for each in dataclasses.fields(tree)
            if each.init
        }
        return dataclasses.replace(tree, **changed)
    return tree
