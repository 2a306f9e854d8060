"""DAT006 blocking-checkpoint: the steps wait while a checkpoint is written or read.

What it finds:
    Calls of ``torch.save``, ``torch.load``, ``torch.distributed.checkpoint`` and ``safetensors`` in
    the program's thread that take a share of the recorded steps.

Why it matters:
    The calls return when everything is copied from the GPU and written to the file: hundreds of
    megabytes to many gigabytes, with the GPU idle. The cost is what the steps take less in a replay
    of the recording without them; waits for the GPU's earlier work stay.

How to fix it:
    Write from another thread: ``torch.distributed.checkpoint.async_save`` copies the state to host
    memory and writes it while training goes on, also with a single process. Or write less often.
    Read a file once, before the loop.

Example:
    ::

        for step, (x, y) in enumerate(loader):
            train(x, y)
            torch.save(model.state_dict(), "last.pt")

Use instead:
    ::

        for step, (x, y) in enumerate(loader):
            train(x, y)
            if step % 1000 == 0:
                torch.distributed.checkpoint.async_save(model.state_dict(), checkpoint_id="last")

Reads:
    Calls of Python functions (``name``, ``ts_ns`` and ``dur_ns`` in nanoseconds), the operators
    within them, the steps, device work.

When to ignore this:
    The recording contains one of few checkpoints: compare its cost with the time between two.

Source:
    "Asynchronous Saving with Distributed Checkpoint" among PyTorch's recipes; ``torch.save`` in
    PyTorch's documentation.
"""

from collections.abc import Iterator

from profkit.engine.families.python_calls import (
    CHECKPOINT,
    PYTHON_CALLS,
    CallThresholds,
    call_findings,
)
from profkit.engine.families.sampled_texts import FIX_LOAD, FIX_SAVE
from profkit.rule import Context, Finding, RuleInfo, needs

INFO = RuleInfo(
    id="DAT006",
    name="blocking-checkpoint",
    title="Steps wait for a checkpoint",
    severity="warning",
    needs=(needs.OPERATORS, PYTHON_CALLS),
    since="0.1.0",
)

Thresholds = CallThresholds


def detect(ctx: Context, thresholds: CallThresholds) -> Iterator[Finding]:
    """Yield a finding for each line that writes or reads checkpoints for too long."""
    yield from call_findings(ctx, INFO, thresholds, CHECKPOINT, _suggest_fix)


def _suggest_fix(name: str) -> str:
    # A frame is `torch/serialization.py(810): load`; other libraries have `load_file` and the like.
    return FIX_LOAD if name.rpartition(": ")[2].startswith("load") else FIX_SAVE
