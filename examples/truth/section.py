"""The part of ``docs/truth.md`` on programs that have their problem on a CPU too."""

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

MEASURED: Final = Path(__file__).with_name("measured.json")
WITHIN: Final = 0.15
"""How far a prediction may be off."""
IDLE_SHARE: Final = 0.9
"""On an idle machine a program has at least this share of the wall time."""
MIN_CPU_SHARE: Final = 0.5
"""With less of the wall time, a recording shows where other programs ran."""
UNKNOWN: Final = "unknown, machine busy"
ROUGH: Final = {"estimate": "an estimate", "upper-bound": "an upper bound"}
"""What a finding says of a cost that may be off, by its basis."""
_INTRODUCTION: Final = f"""\
## On a CPU

Programs with a problem that a CPU has too, and the same programs fixed. The report on the program
with its problem says which share of the step the problem costs: **predicted**. Without profkit, the
fix saves another share: **measured**. A prediction is **right** if it is within {WITHIN:.0%} of what was
measured. If it is not, and its finding says that the cost is an estimate or an upper bound, it is
**rough**; otherwise it is **wrong**. It is **unknown** if other programs took more than half of the
CPU: then the recording has their time, too, at places that nobody knows.
"""  # noqa: E501  (a sentence of the page)
_METHOD: Final = f"""\
### How it is measured

`make truth` runs each program with its problem and fixed, in turn, twice each in one process; then
with its problem under `profkit run`; then the next program; then all again for a quarter of an hour
and more; and writes this section. Its figures are in `examples/truth/measured.json`. Programs use
one thread and do not wait, so a step takes its CPU time on an idle machine: all times are CPU times
of the thread that trains, which leave out what other programs on the machine took.

- **runs**: of each of the two programs, and recorded.
- **problem**, **fixed**: CPU time per step without profkit, the mean over those steps that a
  recording has; the median over the runs.
- **saved**: problem minus fixed: the median over pairs of runs that follow each other.
- **recorded**: the recorded step. What it is longer than *problem* is the overhead of recording, of
  which a cost contains its share.
- **predicted**: the cost per step of the rule's finding; a range where the replay gives one. The
  recording's clock is that of the wall: both are multiplied by the share of it that the program
  had.
- **predicted / saved**: 1 is exact, above 1 is too high. It is too high by the overhead of
  recording.
- **share predicted / measured**: predicted / recorded divided by saved / problem, which the first
  table judges: the overhead is in both of the first. For an upper bound it has to be at least
  {1 - WITHIN:.2f}.
- **on CPU**: the share of the wall time in which the program with its problem ran: 100% on an idle
  machine.

In parentheses are the quartiles over the runs or pairs of runs.

By default glibc returns large freed tensors and arrays to the system, so that new ones have page
faults, and how large they have to be depends on what the process freed before. A recorded process
has freed other things than an unrecorded one, and the programs with and without the problem
allocate differently, so rows with that setting compare more than the problem: two programs have one
such row each. In their other rows, and for programs of `examples/host` and
`examples/truth/programs`, `MALLOC_MMAP_THRESHOLD_` and `MALLOC_TRIM_THRESHOLD_` are 1 GB: freed
memory is kept, as PyTorch's allocators of GPUs do. That setting was chosen after results with the
default one had been seen.
"""


@dataclass(frozen=True)
class Round:
    """One process of each kind for a pair; times are CPU times per step in milliseconds.

    Attributes:
        problem_ms: The program with its problem, without profkit: each of its runs.
        fixed_ms: The fixed program: the run beside each of those.
        recorded_ms: The program with its problem, recorded.
        predicted_ms: The cost of the finding.
        predicted_max_ms: The upper end of its range.
        cpu_share: CPU time by wall time of the program with its problem, without profkit.
    """

    problem_ms: Sequence[float]
    fixed_ms: Sequence[float]
    recorded_ms: float
    predicted_ms: float
    predicted_max_ms: float
    cpu_share: float

    @property
    def saved_ms(self) -> Sequence[float]:
        """Return the milliseconds per step that the fix saves, by each two runs."""
        return [
            problem - fixed for problem, fixed in zip(self.problem_ms, self.fixed_ms, strict=True)
        ]


@dataclass(frozen=True)
class Pair:
    """A program with its problem and fixed, measured several times.

    Attributes:
        program: Its name.
        rule: The name of the rule that finds the problem.
        basis: The basis of the cost.
        rounds: Two or more, unless the command was stopped.
        date: When it was measured.
    """

    program: str
    rule: str
    basis: str
    rounds: Sequence[Round]
    date: str = ""

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> "Pair":
        """Return a pair of ``measured.json``."""
        rounds = [Round(**facts_of_round) for facts_of_round in facts["rounds"]]
        return cls(facts["program"], facts["rule"], facts["basis"], rounds, facts["date"])

    def each(self, name: str) -> list[float]:
        """Return a figure of every round, or of every run of them."""
        figures = [getattr(repetition, name) for repetition in self.rounds]
        return [
            run for figure in figures for run in ([figure] if isinstance(figure, float) else figure)
        ]

    def median(self, name: str) -> float:
        """Return the median of a figure over the rounds."""
        return statistics.median(self.each(name))

    @property
    def saved_ms(self) -> float:
        """Milliseconds per step that the fix saves."""
        return self.median("saved_ms")

    @property
    def is_sure(self) -> bool:
        """Return whether the quartiles of what is saved are within a tenth of it."""
        return all(
            abs(end - self.saved_ms) <= WITHIN * self.saved_ms
            for end in quartiles(self.each("saved_ms"))
        )

    @property
    def ratios(self) -> tuple[float, float] | None:
        """Return the ends of predicted / saved, or None if nothing was saved."""
        if self.saved_ms <= 0:
            return None
        low, high = (self.median(name) for name in ("predicted_ms", "predicted_max_ms"))
        return low / self.saved_ms, high / self.saved_ms

    @property
    def share_ratios(self) -> tuple[float, float] | None:
        """Return the ends of predicted / saved, both as shares of their step."""
        if self.ratios is None:
            return None
        stretched = self.median("recorded_ms") / self.median("problem_ms")
        return self.ratios[0] / stretched, self.ratios[1] / stretched

    @property
    def verdict(self) -> str:
        """Return whether the prediction is right, rough and said to be, wrong, or not known."""
        if self.median("cpu_share") < MIN_CPU_SHARE:
            return UNKNOWN
        if self.is_within(self.share_ratios):
            return "right"
        return f"rough, said to be {ROUGH[self.basis]}" if self.basis in ROUGH else "**wrong**"

    @property
    def shares(self) -> tuple[float, float, float]:
        """Return the measured share of the step, and the ends of the predicted one."""
        ends = (self.median(name) for name in ("predicted_ms", "predicted_max_ms"))
        low, high = (end / self.median("recorded_ms") for end in ends)
        return self.saved_ms / self.median("problem_ms"), low, high

    def is_within(self, ratios: tuple[float, float] | None) -> bool:
        """Return whether a prediction of such ratios is as near as it should be."""
        if ratios is None:
            return False
        low, high = ratios
        return high >= 1 - WITHIN and (low <= 1 + WITHIN or self.basis == "upper-bound")


def quartiles(values: Sequence[float]) -> tuple[float, float]:
    """Return the first and third quartile."""
    first, _, third = statistics.quantiles(
        [*values] * 2 if len(values) == 1 else values, n=4, method="inclusive"
    )
    return first, third


def write_section(measured: Mapping[str, Any]) -> str:
    """Write the section.

    Args:
        measured: The content of ``measured.json``.
    """
    machine = measured["machine"]
    pairs = [Pair.of(facts) for facts in measured["pairs"]]
    n_right = sum(pair.verdict == "right" for pair in pairs)
    n_rough = sum(pair.verdict.startswith("rough") for pair in pairs)
    n_unknown = sum(pair.verdict == UNKNOWN for pair in pairs)
    misses = [pair for pair in pairs if pair.verdict not in {"right", UNKNOWN}]
    n_wrong = len(pairs) - n_right - n_rough - n_unknown
    unknown = f"; {n_unknown} are unknown" if n_unknown else ""
    count = (
        f"{n_right} of {len(pairs)} predictions are right, {n_rough} rough and {n_wrong} "
        f"wrong{unknown}.\n"
    )
    where = (
        f"Last measured on {measured['date']}: {machine['cpu']}, {machine['cores']} cores, load "
        f"{measured['load'][0]:.1f} before and {measured['load'][1]:.1f} after, one thread per "
        f"program; {machine['system']}, torch {machine['torch']}, Python {machine['python']}.\n"
    )
    unsure = [f"`{pair.program}`" for pair in pairs if not pair.is_sure]

    if unsure:
        where += (
            f"The quartiles of what is saved are more than {WITHIN:.0%} from its median: "
            f"{', '.join(unsure)}.\n"
        )
    if measured.get("missing"):
        names = ", ".join(f"`{name}`" for name in measured["missing"])
        where += f"Not measured yet: {names}.\n"
    if any(pair.median("cpu_share") < IDLE_SHARE for pair in pairs):
        where += (
            "The machine was busy, and times are longer where programs share caches and cores: "
            "these figures are provisional. Run `make truth` on an idle machine.\n"
        )

    return "\n".join(
        [
            _INTRODUCTION,
            count,
            _write_verdicts(pairs),
            *([_list_misses(misses)] if misses else []),
            where,
            _METHOD,
            _write_table(pairs),
        ]
    )


def _write_verdicts(pairs: Iterable[Pair]) -> str:
    """Write what a reader wants first: how much was predicted, and how much was saved."""
    lines = [
        ["program", "rule", "predicted", "measured", "saved ms", "prediction"],
        ["---"] * 6,
    ]
    for pair in pairs:
        measured, low, high = pair.shares
        ends = dict.fromkeys(f"{end:.0%}" for end in (low, high))
        lines.append(
            [
                f"`{pair.program}`",
                pair.rule,
                " to ".join(ends),
                f"{measured:.0%}",
                f"{pair.saved_ms:.2f}",
                pair.verdict,
            ]
        )
    return _join_rows(lines)


def _list_misses(misses: Iterable[Pair]) -> str:
    """Write a line for each prediction that is not right."""
    lines = []
    for pair in misses:
        ratios = pair.share_ratios
        is_low = ratios is not None and ratios[1] < 1
        how = "too low" if is_low else "too high"
        times = "the fix saves nothing" if ratios is None else f"{_range(ratios)} of what is saved"
        lines.append(f"- `{pair.program}` is predicted {how}: {times}.\n")
    return "".join(lines)


def _join_rows(lines: Iterable[Sequence[str]]) -> str:
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def _write_table(pairs: Iterable[Pair]) -> str:
    head = [
        "program",
        "rule",
        "runs",
        "problem ms",
        "fixed ms",
        "saved ms",
        "recorded ms",
        "predicted ms",
        "predicted / saved",
        "share predicted / measured",
        "basis",
        "on CPU",
        "date",
    ]
    lines = [head, ["---"] * len(head)]

    for pair in pairs:
        ratios, shares = pair.ratios, pair.share_ratios
        lines.append(
            [
                f"`{pair.program}`",
                pair.rule,
                f"{len(pair.each('problem_ms'))}, {len(pair.rounds)}",
                _spread(pair, "problem_ms"),
                _spread(pair, "fixed_ms"),
                _spread(pair, "saved_ms"),
                _spread(pair, "recorded_ms"),
                _predicted(pair),
                "-" if ratios is None else _range(ratios),
                "-" if shares is None else _range(shares),
                pair.basis,
                f"{pair.median('cpu_share'):.0%}",
                pair.date,
            ]
        )

    return _join_rows(lines)


def _spread(pair: Pair, name: str) -> str:
    return f"{pair.median(name):.2f} {_quartiles(pair.each(name))}"


def _quartiles(values: Sequence[float]) -> str:
    first, third = quartiles(values)
    return f"({first:.2f} to {third:.2f})"


def _predicted(pair: Pair) -> str:
    ends = pair.median("predicted_ms"), pair.median("predicted_max_ms")
    first, third = (
        quartiles(pair.each("predicted_ms"))[0],
        quartiles(pair.each("predicted_max_ms"))[1],
    )
    return f"{_range(ends)} ({first:.2f} to {third:.2f})"


def _range(ends: Iterable[float]) -> str:
    low, high = (f"{end:.2f}" for end in ends)
    return low if low == high else f"{low}-{high}"


def recorded() -> str:
    """Return the section on what is recorded."""
    return write_section(json.loads(MEASURED.read_text(encoding="utf-8")))
