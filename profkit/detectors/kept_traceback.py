"""MEM007 kept-traceback: a stored exception retains the tensors of its frames.

What it finds:
    Tensors that outlive their step because they are local variables of a function that raised an
    exception, and the exception is stored: in a list of errors, an attribute, a log record, a
    future.

Why it matters:
    An exception refers to its traceback, the traceback to every frame that it passed through, and
    each frame to all of its local variables: batches, activations, losses with their graphs. One
    stored exception retains a whole step of the program.

How to fix it:
    Store the text instead of the exception: ``str(error)`` or ``traceback.format_exc()``. Where the
    exception itself is needed, use ``error.with_traceback(None)``.

Example:
    ::

        except RuntimeError as error:
            errors.append(error)

Use instead:
    ::

        except RuntimeError as error:
            errors.append(traceback.format_exc())

Reads:
    Monitored memory: tensors that outlive their step (``bytes`` in bytes), their allocation sites
    and holders.

When to ignore this:
    A program that rarely fails stores a few exceptions for a report at its end.

Source:
    "traceback objects" and "BaseException.with_traceback" in Python's documentation (``tb_frame``,
    ``f_locals``); pytorch/pytorch#36874 and #10348 (memory retained after exceptions).
"""

from collections.abc import Iterator

from profkit.engine.families.leaks.findings import LeakThresholds, leak_findings
from profkit.engine.families.leaks.messages import (
    graph_sentence,
    in_holder,
    leak_clause,
    sentences,
)
from profkit.rule import Context, Finding, Leak, RuleInfo, needs

INFO = RuleInfo(
    id="MEM007",
    name="kept-traceback",
    title="Tensors retained by a stored exception",
    severity="warning",
    needs=(needs.MONITORED_STEPS,),
    since="0.1.0",
)

Thresholds = LeakThresholds


def detect(ctx: Context, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a finding for each line whose tensors stored exceptions retain."""
    return leak_findings(INFO, ctx, thresholds, message=_build_message, fix=_suggest_fix)


def _build_message(leak: Leak) -> str:
    return sentences(
        f"{leak_clause(leak)}.",
        "They are local variables of frames in the traceback of a stored exception.",
        graph_sentence(leak),
    )


def _suggest_fix(leak: Leak) -> str:
    # The text of a traceback has all that a report shows, and refers to no frame.
    return (
        f"Store `traceback.format_exc()` or `str(error)`{in_holder(leak)} instead of the "
        "exception, or drop its frames with `error.with_traceback(None)`."
    )
