"""Writes ``docs/truth.md``: the table of truth, with its hardware, its date and what it means."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from examples.gpu.recording.rows import Rows, Run
from examples.gpu.recording.truth import WITHIN, Said, Truth

_HEAD: Final = """\
# Truth

Each program of `examples/gpu` has one fault that is known, and a cure. `examples/gpu/record.py`
runs both on a GPU, bare and under `profkit run`, and writes this page: what profkit says of the
fault against what the cure saved when nobody was recording. It is written from `rows.json` and the
recordings in the folder `gpu` of `traces`; reports are made anew each time.
"""
_NOTHING: Final = """\
Nothing is recorded yet: it needs a machine with an NVIDIA GPU, where `make gpu-test` records all
programs and writes this page.
"""
_TIMES: Final = f"""\
## Predicted and measured savings

- **faulty**, **cured**: wall time of a step without profiling, as the program prints it: many steps,
  from an idle device to an idle device, divided by their number; the smaller of the bare runs.
- **saved**: faulty minus cured. Only programs whose cure makes a step faster are in this table.
- **predicted**: the cost of the rule's finding, a step, in the recording of the faulty program.
- **predicted / saved**: 1 is right, above 1 promises too much.
- **basis**: what kind of figure the prediction is: `measured`, `upper-bound` or `estimate`.
- **within {WITHIN:.0%}**: whether predicted / saved is from {1 - WITHIN:.2f} to {1 + WITHIN:.2f}. It is asked where the basis
  is `measured`: an upper bound may be higher, an estimate is a model's.
- **all findings**: what all findings together claim, a step, each nanosecond once.
"""  # noqa: E501  (a sentence of the page)
_FINDINGS: Final = """\
## What is found

- **rule**: the rule that must name the fault. Where there is none yet, what shows it all the same.
- **found**: whether the finding's first place is the line of the fault.
- **other findings**: rules that speak of the faulty program beside it. There should be none: each
  has one fault, or the other rule is listed in `examples/gpu/expected.json` as rightly speaking.
- **cured**: `silent`, or the rules that speak of the cured program, which are false alarms.
- **the recording**: what the reports say of the recordings themselves: no fault of a program.
"""
_COSTS: Final = """\
## What recording did to the steps

- **bare**: as above, of the faulty program.
- **watched**: the same figure under `profkit run`, whose window of three steps lies before it:
  memory is watched in all steps.
- **recorded**: the window's length divided by its steps.
"""
_OVERHEAD: Final = """\
## What recording costs

`benchmarks/capture_overhead.py` on the same machine: a step of a small transformer, each from an
idle device to an idle device, medians; and the time from the end of a block to the file, against
`export_chrome_trace` of torch to a `.json.gz`.
"""


_NO_ROW: Final = "No row yet.\n"
_NEEDS: Final = {
    "cuda": "a CUDA GPU",
    "compile": "a compiler for `torch.compile`",
    "gloo": "gloo",
    "nccl": "NCCL",
}
_NO_NEED: Final = "a CUDA GPU for figures that belong here; its fault exists on a CPU too"


def page(truths: Sequence[Truth], rows: Rows) -> str:
    """The whole page.

    Args:
        truths: All programs.
        rows: The runs, for their machine and what recording costs.
    """
    parts = [_HEAD]
    parts += [_machines(rows.runs.values())] if rows.runs else [_NOTHING]
    recorded = [truth for truth in truths if truth.faulty or truth.cured]
    for text, table in ((_TIMES, _times), (_FINDINGS, _found), (_COSTS, _costs)):
        parts.append(f"{text}\n{table(recorded) if recorded else _NO_ROW}")
    parts.append(f"{_OVERHEAD}\n{_overhead(rows.overhead) if rows.overhead else _NO_ROW}")
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


def _times(truths: Sequence[Truth]) -> str:
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
    head = ["program", "faulty ms", "cured ms", "saved ms", "predicted ms", "predicted / saved",
            "basis", f"within {WITHIN:.0%}", "all findings ms"]  # fmt: skip
    count = f"{asked.count(True)} of {len(asked)} measured predictions are within {WITHIN:.0%}."
    return _table(head, rows) + (f"\n{count}\n" if asked else "")


def _found(truths: Sequence[Truth]) -> str:
    head = ["program", "fault", "rule", "found", "other findings", "cured", "the recording"]
    rows = [
        [
            f"`{truth.name}`",
            f"line {truth.line}",
            truth.facts["rule"] or f"none yet; {truth.facts['shown'] or 'nothing'} shows it",
            _whether_found(truth),
            ", ".join(truth.others) or "none",
            _whether_silent(truth),
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


def _whether_silent(truth: Truth) -> str:
    if truth.said_cured is None:
        return "not recorded"
    alarms = ", ".join(truth.false_alarms)
    return f"**{alarms}**" if alarms else "silent"


def _costs(truths: Sequence[Truth]) -> str:
    head = ["program", "bare ms", "watched ms", "watched / bare", "recorded ms", "recorded / bare"]
    rows = []
    for truth in truths:
        bare = truth.faulty.best_ms if truth.faulty else None
        watched = truth.faulty.watched_ms if truth.faulty else None
        step = truth.said.step_ms if truth.said else None
        figures = [_ms(bare), _ms(watched), _times_as_long(watched, bare)]
        rows.append([f"`{truth.name}`", *figures, _ms(step), _times_as_long(step, bare)])
    return _table(head, rows)


def _overhead(figures: Mapping[str, Any]) -> str:
    none = figures["step_ms"]["no profiler"]
    rows = [[name, _ms(ms), f"{ms / none:.2f}"] for name, ms in figures["step_ms"].items()]
    to_file = figures["to_file_ms"]
    steps = _table(["recorded by", "a step ms", "x no profiler"], rows)
    files = [[name, _ms(ms), f"{ms / to_file['torch']:.2f}"] for name, ms in to_file.items()]
    return steps + "\n" + _table(["written by", "end of block to file ms", "x torch"], files)


def _failures(runs: Mapping[str, Run]) -> Iterator[str]:
    failed = {name: run.failure for name, run in runs.items() if run.failure}
    large = {name: run.too_large for name, run in runs.items() if run.too_large}
    if failed:
        listed = [f"- `{name}`: {_one_line(why)}" for name, why in sorted(failed.items())]
        yield "## Runs that failed\n\n" + "\n".join(listed) + "\n"
    if large:
        listed = [f"- `{name}`: {', '.join(files)}" for name, files in sorted(large.items())]
        yield "## Files that are too large to keep\n\n" + "\n".join(listed) + "\n"


def _owed(truths: Sequence[Truth]) -> Iterator[str]:
    owed = [
        f"- `{truth.name}`{_what(truth)}: needs {_needs(truth)}"
        for truth in truths
        if truth.faulty is None or truth.cured is None
    ]
    if owed:
        yield "## Not recorded yet\n\n" + "\n".join(owed) + "\n"


def _needs(truth: Truth) -> str:
    return ", ".join(_NEEDS[need] for need in truth.facts["needs"]) or _NO_NEED


def _what(truth: Truth) -> str:
    if truth.faulty is None and truth.cured is None:
        return ""
    return ", the fault" if truth.faulty is None else ", the cure"


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _times_as_long(value: float | None, bare: float | None) -> str:
    return "-" if value is None or not bare else f"{value / bare:.2f}"


def _one_line(text: str) -> str:
    """What a program wrote, as one line that Markdown leaves as it is."""
    words = " ".join(text.split()).replace("`", "'")
    return f"`{words}`"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)
