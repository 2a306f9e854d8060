"""MEM007 kept-traceback: an exception that is kept holds the tensors of its frames.

What it finds:
    Tensors that outlive their step because they were local variables of a function that raised an
    exception, and the exception is kept: in a list of errors, an attribute, a log record, a future.

Why it matters:
    An exception refers to its traceback, the traceback to every frame that it passed through, and
    each frame to all of its local variables: batches, activations, losses with their graphs. One
    kept exception keeps a whole step of the program.

How to fix it:
    Keep the text instead of the exception: ``str(error)`` or ``traceback.format_exc()``. Where the
    exception itself is wanted, ``error.with_traceback(None)``.

Example:
    ::

        except RuntimeError as error:
            errors.append(error)

Use instead:
    ::

        except RuntimeError as error:
            errors.append(traceback.format_exc())

Reads:
    What was watched of the running program: tensors that survive steps (``bytes`` in bytes), the
    line that made them, who holds them.

When to ignore this:
    A few exceptions that are kept for a report at the end, in a program that rarely fails, may be
    worth their memory.

Source:
    "traceback objects" and "BaseException.with_traceback" in Python's documentation (``tb_frame``,
    ``f_locals``); pytorch/pytorch#36874 and #10348 (memory kept after exceptions).
"""

from collections.abc import Iterator

from profkit.engine import needs
from profkit.engine.context import Context
from profkit.engine.detector import RuleInfo
from profkit.engine.families.leaks.findings import LeakThresholds, leak_findings
from profkit.engine.families.leaks.messages import (
    graph_sentence,
    holder_name,
    leak_clause,
    quoted,
    sentences,
)
from profkit.model.finding import Finding
from profkit.model.live_memory import Leak

INFO = RuleInfo(
    id="MEM007",
    name="kept-traceback",
    title="Kept exceptions hold the tensors of their frames",
    severity="warning",
    needs=(needs.MONITORED_STEPS,),
    since="0.1.0",
)


Thresholds = LeakThresholds


def detect(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding for each line whose tensors hang on kept exceptions."""
    return leak_findings(INFO, ctx, thresholds, message=_message, fix=_fix)


def _message(growth: Leak) -> str:
    return sentences(
        f"{leak_clause(growth)}.",
        "They are local variables of frames in the traceback of an exception that is kept.",
        graph_sentence(growth),
    )


def _fix(growth: Leak) -> str:
    name = holder_name(growth)
    where = f" in {quoted(name)}" if name else ""
    return (
        f"Keep `traceback.format_exc()` or `str(error)`{where} instead of the exception; or let go "
        "of its frames with `error.with_traceback(None)`."
    )
