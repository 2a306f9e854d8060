"""Whatever a program does, no rule crashes and no finding claims more than there is."""

from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from profkit.api import analyze
from tests.catalogue.random_programs import briefly, played, programs


@settings(briefly, max_examples=60)
@given(program=programs, stacks=st.booleans(), steps=st.booleans(), repeat=st.integers(1, 3))
def test_any_program_is_judged_within_its_bounds(
    tmp_path: Path,
    program: list[list[int]],
    stacks: bool,  # noqa: FBT001
    steps: bool,  # noqa: FBT001
    repeat: int,
) -> None:
    b = played(program * repeat, steps=steps, stacks=stacks)
    report = analyze(b.write(tmp_path / "t.json"), strict=True)
    window_ns = report.summary.window_ns
    for finding in (*report.findings, *report.health):
        assert 0 <= (finding.cost.ns or 0) <= window_ns
        assert (finding.cost.bytes or 0) >= 0
        for start, end in finding.spans:
            assert 0 <= start < end <= window_ns
        assert finding.n >= 1
        if finding.cost.basis == "measured" and not finding.cost.ns:
            assert finding.severity == "note" or finding.cost.bytes or finding.rule[:3] == "PRF"
    assert report.summary.recoverable_ns <= window_ns
