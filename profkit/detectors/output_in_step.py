"""CPU001 output-in-step: the steps wait while the program prints, plots or logs.

What it finds:
    Calls of ``print``, of plotting libraries (matplotlib, seaborn, plotly), of ``logging`` and of
    loggers (TensorBoard, Weights & Biases, MLflow and others) in the program's thread, which take a
    share of the recorded steps.

Why it matters:
    A line of text costs microseconds, more on a slow terminal; a figure costs tens of milliseconds,
    and histograms or images in a logger milliseconds each. A GPU is idle meanwhile. The cost is
    what the steps take less in a replay of the recording without the calls; waits for the GPU's
    earlier work stay. Recording Python calls makes them slower, up to twice as slow.

How to fix it:
    Print and log every 100 steps, and plot after the loop.

Example:
    ::

        for x, y in loader:
            losses.append(train(x, y))
            plt.plot(losses)
            plt.savefig("loss.png")

Use instead:
    ::

        for x, y in loader:
            losses.append(train(x, y))
        plt.plot(losses)
        plt.savefig("loss.png")

Reads:
    Calls of Python functions (``name``, ``ts_ns`` and ``dur_ns`` in nanoseconds), the operators
    within them, the steps, device work.

When to ignore this:
    The output belongs to the recorded steps only, as at the end of an epoch.

Source:
    ``torch.utils.tensorboard`` in PyTorch's documentation (values are written by a thread of their
    own, but converted in the calling one); "Faster rendering" and "Performance" in matplotlib's
    documentation; "Experiment logging" in that of Weights & Biases (limits of rate and size).
"""

from collections.abc import Iterator
from typing import Final

from profkit.engine.families.python_calls import (
    OUTPUT,
    PYTHON_CALLS,
    CallThresholds,
    call_findings,
)
from profkit.rule import Context, Finding, RuleInfo, needs

INFO = RuleInfo(
    id="CPU001",
    name="output-in-step",
    title="Steps wait for printing, plotting or logging",
    severity="warning",
    needs=(needs.OPERATORS, PYTHON_CALLS),
    since="0.1.0",
)

Thresholds = CallThresholds
# PIL and torchvision encode images, which takes as long as plotting.
_PLOTS: Final = ("matplotlib", "seaborn", "plotly", "PIL", "torchvision")


def detect(ctx: Context, thresholds: CallThresholds) -> Iterator[Finding]:
    """Yield a finding for each line that prints, plots or logs for too long."""
    yield from call_findings(ctx, INFO, thresholds, OUTPUT, _suggest_fix)


def _suggest_fix(name: str) -> str:
    if any(library in name for library in _PLOTS):
        return "Plot after the loop, or every 1,000 steps."
    return "Print and log every 100 steps."
