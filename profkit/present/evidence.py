"""The evidence of a finding as labels and figures with their units."""

from collections.abc import Iterator
from typing import Final

from profkit.model.finding import EvidenceValue, Finding
from profkit.names import middle_cut, visible
from profkit.patterns import regex
from profkit.units import format_bytes, format_ns, format_share

_MAX_VALUES: Final = 12
_MAX_CHARACTERS: Final = 400
_UNIT: Final = regex(r"_(ns|bytes|share)$")
_QUANTITIES: Final = {"ns": "time", "bytes": "size", "share": "share"}
_LABELS: Final = {"events": "event_ids"}


def evidence_texts(finding: Finding) -> Iterator[tuple[str, str]]:
    """Yield each label with its figure, such as ``device idle`` and ``68.7 ms``, where known.

    Of a long list the first values are shown; the JSON report has all.
    """
    for key, value in finding.evidence.items():
        name = _UNIT.sub("", key)
        if name != key and name in finding.evidence:  # `loader_ns` with `loader`
            name = f"{name}_{_QUANTITIES[key.rpartition('_')[2]]}"
        label = _cut(_LABELS.get(name, name).replace("_", " ").removeprefix("n ")) or "value"
        if value is not None:
            yield label, _formatted(key, value)


def _formatted(key: str, value: EvidenceValue) -> str:
    if isinstance(value, str) or value is None or isinstance(value, bool):
        return _cut(str(value))
    if isinstance(value, int | float):
        if key.endswith("_ns"):
            return format_ns(value)
        if key.endswith("_bytes"):
            return format_bytes(value)
        return format_share(value) if key.endswith("_share") else f"{value:,}"

    shown = ", ".join(_formatted(key, item) for item in value[:_MAX_VALUES])
    n_more = len(value) - _MAX_VALUES
    return _cut(shown) + (f" and {n_more} more" if n_more > 0 else "")


def _cut(text: str) -> str:
    return middle_cut(visible(text), _MAX_CHARACTERS)
