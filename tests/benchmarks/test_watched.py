"""The benchmark of watched programs measures what it says."""

import sys
from pathlib import Path

import pytest

from benchmarks import watched


@pytest.mark.parametrize("name", ["no_torch", "syntax_error"])
def test_the_parts_of_a_cost_add_up_to_the_cost_of_being_watched(name: str, tmp_path: Path) -> None:
    (source,) = watched.PROGRAMS.glob(f"{name}.*")
    cost = watched.measure_costs(source, tmp_path, 1)
    parts = cost.start_up + cost.hooks + cost.window + cost.end
    assert cost.watched - cost.bare == pytest.approx(parts, abs=1e-6)
    assert cost.start_up > 0
    assert cost.end >= 0


def test_a_program_whose_output_changes_is_an_error(tmp_path: Path) -> None:
    source = tmp_path / "clock.py"
    source.write_text("import time; print(time.perf_counter_ns())", encoding="utf-8")
    with pytest.raises(RuntimeError, match="instead of"):
        watched.measure_costs(source, tmp_path, 1)


@pytest.mark.slow
def test_every_program_runs_bare(tmp_path: Path) -> None:
    assert len(watched.programs()) >= 10
    for name in watched.programs():
        (source,) = watched.PROGRAMS.glob(f"{name}.*")
        run = watched.run_on_one_core([sys.executable, str(source)], tmp_path)
        assert run.result[0] == (1 if name == "syntax_error" else 0), name
        assert run.total > 0
