"""The part of ``docs/truth.md`` on GPUs: predicted and measured savings, with hardware and date."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from examples.gpu.recording.rows import Rows, Run
from examples.gpu.recording.truth import WITHIN, Said, Truth

_HEAD: Final = """\
## On a GPU

Each program of `examples/gpu` has one known problem, and a fix (`--cured`).
`examples/gpu/record.py` runs both on a GPU, without profkit and under `profkit run`, and writes
this part: the predicted cost of the problem against the time that the fix saved in unprofiled runs.
Its sources are `rows.json` and the recordings in the folder `gpu` of `traces`, which are analyzed
again each time.
"""
_NOTHING: Final = """\
Nothing is recorded yet. `make gpu-test` on a machine with an NVIDIA GPU records all programs and
writes this part.
"""
_TIMES: Final = f"""\
### Predicted and measured savings

- **problem**, **fixed**: step time without profiling, as the program prints it: the wall time of many
  steps, from an idle device to an idle device, divided by their number; the smaller of two runs.
- **saved**: problem minus fixed. Only programs whose fix makes a step faster are in this table.
- **predicted**: the cost per step of the rule's finding, from the recording of the problem.
- **predicted / saved**: 1 is exact, above 1 is too high.
- **basis**: the basis of the prediction: `measured`, `replay`, `upper-bound` or `estimate`.
- **within {WITHIN:.0%}**: whether predicted / saved is from {1 - WITHIN:.2f} to {1 + WITHIN:.2f}. Required only of the basis
  `measured`: an upper bound may be higher, an estimate is a model's.
- **all findings**: the cost per step of all findings, overlaps counted once.
"""  # noqa: E501  (a sentence of the page)
_FINDINGS: Final = """\
### Findings

- **rule**: the rule that must report the problem; without a rule, what else shows it.
- **found**: whether the finding's first location is the line of the problem.
- **other findings**: other rules with findings on the problem. There should be none: each program
  has one problem, or `examples/gpu/expected.json` lists the other rule as correct.
- **fixed**: `no findings`, or the rules with findings on the fixed program, which are false alarms.
- **the recording**: findings about the recordings themselves, not about a program.
"""
_COSTS: Final = """\
### Step times under profkit

- **unprofiled**: as above, of the program with its problem.
- **monitored**: the same under `profkit run`, after its window of three recorded steps: memory is
  monitored in all steps.
- **recorded**: the window's length divided by its steps.
"""
_OVERHEAD: Final = """\
### Recording overhead

`benchmarks/capture_overhead.py` on the same machine: median step times of a small transformer, from
an idle device to an idle device; and the time from the end of a block to the file, compared with
`export_chrome_trace` of torch to a `.json.gz`.
"""


_NEEDS: Final = {
    "cuda": "a CUDA GPU",
    "compile": "a compiler for `torch.compile`",
    "gloo": "gloo",
    "nccl": "NCCL",
}
_NO_NEED: Final = "a CUDA GPU for its figures; the problem exists on a CPU too"


def page(truths: Sequence[Truth], rows: Rows) -> str:
    """Return the part; tables without a row are left out.

    Args:
        truths: All programs.
        rows: The runs, for their machine and the overhead of recording.
    """
    parts = [_HEAD]
    parts += [_machines(rows.runs.values())] if rows.runs else [_NOTHING]
    timed = [truth for truth in truths if truth.faulty or truth.cured]
    recorded = [truth for truth in truths if truth.said or truth.said_cured]
    for text, table, rows_of in (
        (_TIMES, _write_times, timed),
        (_FINDINGS, _found, recorded),
        (_COSTS, _write_costs, recorded),
    ):
        if rows_of:
            parts.append(f"{text}\n{table(rows_of)}")
    if rows.overhead:
        parts.append(f"{_OVERHEAD}\n{_overhead(rows.overhead)}")
    parts += list(_failures(rows.runs))
    parts += list(_owed(truths))
    return "\n".join(parts)


def _machines(runs: Iterable[Run]) -> str:
    seen: dict[str, set[str]] = {}
    for run in runs:
        facts = run.machine
        gpu = facts["gpu"] or "no GPU"
        driver = f"driver {facts['driver']}, CUDA {facts['cuda']}, " if facts["gpu"] else ""
        text = (
            f"{gpu}, {driver}torch {facts['torch']}, Python {facts['python']}, "
            f"{facts['system']}, {facts['cores']} cores"
        )
        seen.setdefault(text, set()).add(run.date)
    lines = [f"- {' and '.join(sorted(dates))}: {text}." for text, dates in sorted(seen.items())]
    return "Recorded on\n\n" + "\n".join(lines) + "\n"


def _write_times(truths: Sequence[Truth]) -> str:
    rows = []
    for truth in truths:
        if not truth.facts["saves"]:
            continue
        finding = truth.finding
        rows.append(
            [
                f"`{truth.name}`",
                _ms(truth.faulty.best_ms if truth.faulty else None),
                _ms(truth.cured.best_ms if truth.cured else None),
                _ms(truth.saved_ms),
                _ms(truth.predicted_ms),
                "-" if truth.ratio is None else f"{truth.ratio:.2f}",
                finding.cost.basis if finding and truth.predicted_ms is not None else "-",
                {None: "-", True: "yes", False: "**no**"}[truth.is_within],
                _ms(truth.said.claimed_ms if truth.said else None),
            ]
        )

    asked = [truth.is_within for truth in truths if truth.is_within is not None]
    head = [
        "program",
        "problem ms",
        "fixed ms",
        "saved ms",
        "predicted ms",
        "predicted / saved",
        "basis",
        f"within {WITHIN:.0%}",
        "all findings ms",
    ]
    count = f"{asked.count(True)} of {len(asked)} measured predictions are within {WITHIN:.0%}."
    return _table(head, rows) + (f"\n{count}\n" if asked else "")


def _found(truths: Sequence[Truth]) -> str:
    head = ["program", "problem", "rule", "found", "other findings", "fixed", "the recording"]
    rows = [
        [
            f"`{truth.name}`",
            f"line {truth.line}",
            truth.facts["rule"] or f"none yet; {truth.facts['shown'] or 'nothing'} shows it",
            _whether_found(truth),
            ", ".join(truth.others) or "none",
            _false_alarms(truth),
            ", ".join(sorted({*_health(truth.said), *_health(truth.said_cured)})) or "sound",
        ]
        for truth in truths
    ]
    return _table(head, rows)


def _health(said: Said | None) -> tuple[str, ...]:
    return said.health if said else ()


def _whether_found(truth: Truth) -> str:
    if truth.said is None:
        return "not recorded"
    if truth.facts["rule"] is None:
        return "-"
    finding = truth.finding
    if finding is None:
        return "**not found**"
    if truth.is_placed(finding):
        return "at its line"
    place = finding.locations[0].place if finding.locations else "no line"
    return f"**at {place}**"


def _false_alarms(truth: Truth) -> str:
    if truth.said_cured is None:
        return "not recorded"
    alarms = ", ".join(truth.false_alarms)
    return f"**{alarms}**" if alarms else "no findings"


def _write_costs(truths: Sequence[Truth]) -> str:
    head = [
        "program",
        "unprofiled ms",
        "monitored ms",
        "monitored / unprofiled",
        "recorded ms",
        "recorded / unprofiled",
    ]
    rows = []

    for truth in truths:
        bare = truth.faulty.best_ms if truth.faulty else None
        watched = truth.faulty.watched_ms if truth.faulty else None
        step = truth.said.step_ms if truth.said else None
        figures = [_ms(bare), _ms(watched), _ratio(watched, bare)]
        rows.append([f"`{truth.name}`", *figures, _ms(step), _ratio(step, bare)])

    return _table(head, rows)


def _overhead(figures: Mapping[str, Any]) -> str:
    none = figures["step_ms"]["no profiler"]
    rows = [[name, _ms(ms), f"{ms / none:.2f}"] for name, ms in figures["step_ms"].items()]
    to_file = figures["to_file_ms"]
    steps = _table(["recorded by", "step time ms", "x no profiler"], rows)
    files = [[name, _ms(ms), f"{ms / to_file['torch']:.2f}"] for name, ms in to_file.items()]
    return steps + "\n" + _table(["written by", "end of block to file ms", "x torch"], files)


def _failures(runs: Mapping[str, Run]) -> Iterator[str]:
    failed = {name: run.failure for name, run in runs.items() if run.failure}
    large = {name: run.too_large for name, run in runs.items() if run.too_large}
    if failed:
        listed = [f"- `{name}`: {_one_line(why)}" for name, why in sorted(failed.items())]
        yield "### Runs that failed\n\n" + "\n".join(listed) + "\n"
    if large:
        listed = [f"- `{name}`: {', '.join(files)}" for name, files in sorted(large.items())]
        yield "### Files that are too large\n\n" + "\n".join(listed) + "\n"


def _owed(truths: Sequence[Truth]) -> Iterator[str]:
    """Yield the programs that have no row, in a paragraph for each of the things that they need."""
    owed: dict[str, list[str]] = {}
    for truth in truths:
        if truth.faulty is None or truth.cured is None:
            owed.setdefault(_needs(truth), []).append(f"`{truth.name}`{_what(truth)}")
    if owed:
        paragraphs = [f"Needs {need}: {'; '.join(names)}.\n" for need, names in owed.items()]
        yield "### Not recorded yet\n\n" + "\n".join(paragraphs)


def _needs(truth: Truth) -> str:
    return ", ".join(_NEEDS[need] for need in truth.facts["needs"]) or _NO_NEED


def _what(truth: Truth) -> str:
    if truth.faulty is None and truth.cured is None:
        return ""
    return ", the problem" if truth.faulty is None else ", the fix"


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _ratio(value: float | None, bare: float | None) -> str:
    return "-" if value is None or not bare else f"{value / bare:.2f}"


def _one_line(text: str) -> str:
    """Return a program's output as one line of Markdown."""
    words = " ".join(text.split()).replace("`", "'")
    return f"`{words}`"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)
