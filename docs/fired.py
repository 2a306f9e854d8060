"""What has made each rule fire: recordings of other people, and programs that are here.

``docs/fired.json`` lists the recordings of other people, which are not part of the repository;
where they are, a test compares it with their reports, and ``python docs/fired.py FOLDER`` writes it
from those below a folder. Programs are in the tables of the examples, which their tests hold.
"""

import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from profkit.api import analyze
from profkit.engine.registry import rules
from profkit.errors import ProfkitError

ROOT: Final = Path(__file__).parents[1]
RECORDED: Final = Path(__file__).with_name("fired.json")
_INTRODUCTION: Final = (
    "Each rule is tested on events that were built for it. This table lists what it has found "
    "besides: recordings that other people published, and programs of this repository that run on "
    "a CPU, of which tests hold each to its finding and the fixed one to none. Programs for a GPU "
    "are those that make it fire there; [truth](../../truth.md) says which were recorded."
)
_HEAD: Final = (
    "| Rule | Recordings of other people | Programs on a CPU | Programs for a GPU | Why none |\n"
    "|---|---|---|---|---|"
)
_MAX_NAMED: Final = 3
_NO_RECORDINGS: Final = frozenset({".jsonl", ".md"})


def find_programs() -> dict[str, list[str]]:
    """Find the programs that run on a CPU and make each rule fire, by the rule's id."""
    leaks = _read("examples/leaks/expected.json")["leaks"]
    by_rule: dict[str, list[str]] = defaultdict(list)
    for name, facts in _read("traces/programs.json").items():
        for key in ("rule", "watched_rule"):
            if facts.get(key):
                by_rule[facts[key]].append(f"examples/{name}.py")
    for folder in ("host", "ranks"):
        for name, facts in _read(f"examples/{folder}/expected.json").items():
            by_rule[_id_of(facts["rule"])].append(f"examples/{folder}/{name}.py")
    for name, facts in leaks.items():
        for rule in (*facts["rules"], *facts.get("also", ())):
            by_rule[_id_of(rule)].append(f"examples/leaks/{name}.py")
    for rule, path in _read(RECORDED)["tests"].items():
        by_rule[rule].append(path)
    return by_rule


def find_gpu_programs() -> dict[str, list[str]]:
    """Find the programs for a GPU that make each rule fire, by the rule's id."""
    by_rule: dict[str, list[str]] = defaultdict(list)
    for name, facts in _read("examples/gpu/expected.json").items():
        if facts["rule"]:
            by_rule[_id_of(facts["rule"])].append(name)
    return by_rule


def build_page() -> str:
    """Return the page of what has made each rule fire."""
    recordings, programs = _read(RECORDED)["recordings"], find_programs()
    gpu_programs = find_gpu_programs()
    rows = ["# What has made each rule fire", _INTRODUCTION, _HEAD]
    for rule in rules():
        info = rule.INFO
        cells = (
            _list_names(recordings.get(info.id, [])),
            _list_names(_link(path) for path in programs.get(info.id, [])),
            _list_names(f"`{name}`" for name in gpu_programs.get(info.id, [])),
        )
        reason = "" if any(cells) else info.no_example
        name = f"[{info.id}]({info.id}-{info.name}.md) {info.name}"
        rows[-1] += "\n| " + " | ".join((name, *cells, reason)) + " |"
    return "\n\n".join(rows)


def find_recorded(folder: Path) -> dict[str, list[str]]:
    """Find the recordings below a folder that each rule reports, by the rule's id."""
    by_rule: dict[str, list[str]] = defaultdict(list)
    for path, fired in _analyze_all(folder):
        for rule in fired:
            by_rule[rule].append(_name_of(path))
    return {rule: sorted(names) for rule, names in sorted(by_rule.items())}


def _analyze_all(folder: Path) -> Iterator[tuple[Path, set[str]]]:
    """Analyze each recording below a folder, and each folder of ranks."""
    ranks = [path for path in sorted((folder / "ranks").glob("*")) if path.is_dir()]
    single = [
        path
        for part in ("traces", "snapshots")
        for path in sorted((folder / part).iterdir())
        if path.suffix not in _NO_RECORDINGS
    ]
    for path in (*single, *ranks):
        try:
            report = analyze(path)
        except ProfkitError:
            continue
        yield path, {finding.rule for finding in (*report.findings, *report.health)}


def _name_of(path: Path) -> str:
    return path.name.removesuffix(".gz").removesuffix(".json").removesuffix(".pickle")


def _list_names(names: Iterable[str]) -> str:
    named = list(names)
    more = f" and {len(named) - _MAX_NAMED} more" if len(named) > _MAX_NAMED else ""
    return ", ".join(named[:_MAX_NAMED]) + more


def _link(path: str) -> str:
    return f"[{Path(path).stem}](../../../{path})"


def _id_of(name: str) -> str:
    (info,) = (rule.INFO for rule in rules() if name in {rule.INFO.id, rule.INFO.name})
    return info.id


def _read(path: str | Path) -> Mapping[str, Any]:
    content: dict[str, Any] = json.loads((ROOT / path).read_text(encoding="utf-8"))
    return content


def main() -> None:
    """Write the list of other people's recordings, from those below a folder."""
    content = {**_read(RECORDED), "recordings": find_recorded(Path(sys.argv[1]))}
    RECORDED.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
