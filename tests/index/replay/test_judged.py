"""What waits of real traces cost: each figure was worked out by an independent replay."""

import numpy as np
import pytest

from profkit.engine.context import Context
from profkit.index.device.syncs import SyncKind
from profkit.model.change import ProgramChange
from tests.corpus.recordings import CORPUS, needs_corpus
from tests.traces import load_trace

TOLERANCE = 0.15
MS = 1_000_000


def load_context(name: str) -> Context:
    return Context(trace=load_trace(CORPUS / "traces" / f"{name}.json.gz"))


@needs_corpus
@pytest.mark.parametrize(
    ("name", "kind", "least_ms", "most_ms"),
    [
        ("mi300-owlv2-inference", SyncKind.TO_DEVICE, 2.9, 2.9),
        ("mi300-owlv2-inference", SyncKind.TO_HOST, 5.2, 5.2),
        ("switch-transformer-inference", SyncKind.READ, 14.6, 14.6),
        ("graph-kernels-missing", SyncKind.TO_HOST, 0.0, 5 * 2.7),
        ("mi300-timesformer-inference", SyncKind.TO_HOST, 0.7, 0.7),
        ("loader-waits-without-steps", SyncKind.TO_DEVICE, 1986.0, 2010.0),
    ],
)
def test_the_saving_of_waits_meets_what_they_are_known_to_cost(
    name: str, kind: SyncKind, least_ms: float, most_ms: float
) -> None:
    ctx = load_context(name)
    syncs = ctx.syncs.of_kind(kind)
    # As the rules: a copy stays, without a wait; the operator of a read need not run at all.
    owners = syncs.owner.astype(np.intp)[: None if kind == SyncKind.READ else 0]
    change = ProgramChange(calls=syncs.rows, scaled=((owners, 0.0),))
    saving = ctx.replay.saving(change)
    assert saving.max_ns >= (1 - TOLERANCE) * least_ms * MS
    assert saving.ns <= (1 + TOLERANCE) * most_ms * MS
    assert saving.max_ns <= 2 * most_ms * MS


@needs_corpus
def test_the_waits_for_the_loader_cost_what_they_take() -> None:
    ctx = load_context("loader-waits-without-steps")
    saving = ctx.replay.saving(ProgramChange(scaled=((ctx.data_waits, 0.0),)))
    waited_ns = int(ctx.events.dur_ns[ctx.data_waits].sum())
    assert waited_ns == pytest.approx(8200 * MS, rel=0.01)
    assert 0.8 * waited_ns <= saving.max_ns <= waited_ns
