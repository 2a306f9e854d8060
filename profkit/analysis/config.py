"""Reads ``[tool.profkit]`` of ``pyproject.toml``: rules, thresholds, peaks of devices, budgets."""

from collections.abc import Mapping, Sequence
from dataclasses import field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from profkit.analysis.options import DEFAULT_OPTIONS, AnalysisOptions
from profkit.dataclass import dataclass
from profkit.errors import UsageError
from profkit.folders import working_folder
from profkit.names import did_you_mean

if TYPE_CHECKING:
    from profkit.engine.detector import Rule

_FILE: Final = "pyproject.toml"
_TABLE: Final = "tool.profkit"
BUDGETS: Final = "budgets"
CACHE_BYTES: Final = "cache_bytes"
_KEYS: Final = ("select", "ignore", "thresholds", "peaks", CACHE_BYTES, BUDGETS)


@dataclass(frozen=True)
class Config:
    """The settings of a user; the defaults apply without a file.

    Attributes:
        options: Rules, thresholds and peaks.
        budgets: For ``profkit check``, the limit of each figure by name.
        cache_bytes: Maximum size of the cache of large recordings; None for the default.
        file: The file with the settings; empty without one.
    """

    options: AnalysisOptions = DEFAULT_OPTIONS
    budgets: Mapping[str, Any] = field(default_factory=dict)
    cache_bytes: int | None = None
    file: str = ""


def read_config(folder: Path | None = None) -> Config:
    """Read the nearest ``pyproject.toml`` with a table ``[tool.profkit]``, searching upwards.

    Args:
        folder: Where the search starts; by default the working directory.

    Raises:
        UsageError: The file cannot be read, or a key or value in the table is not valid.
    """
    folder = working_folder() if folder is None else folder
    for parent in (folder, *folder.parents):
        file = parent / _FILE
        if file.is_file() and (table := _table(file)) is not None:
            return _Reader(file).build_config(table)
    return Config()


def read_budgets(file: Path) -> Mapping[str, Any]:
    """Read the budgets of a TOML file: ``[tool.profkit.budgets]``, ``[budgets]``, or all of it.

    Raises:
        UsageError: The file cannot be read, or has none.
    """
    table = _toml(file)
    # pyproject.toml has them in its table; a file of budgets alone may do without.
    budgets = (_profkit(table) or {}).get(BUDGETS) if "tool" in table else table.get(BUDGETS, table)
    if not isinstance(budgets, dict) or not budgets:
        raise UsageError(f"{file} has no budgets.", f"Write them under [{_TABLE}.{BUDGETS}].")
    return budgets


def _table(file: Path) -> Any:  # noqa: ANN401  (any TOML value)
    return _profkit(_toml(file))


def _profkit(table: Mapping[str, Any]) -> Any:  # noqa: ANN401  (any TOML value)
    tool = table.get("tool", {})
    return tool.get("profkit") if isinstance(tool, dict) else None


def _toml(file: Path) -> dict[str, Any]:
    import tomllib

    try:
        table: dict[str, Any] = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise UsageError(f"{file} is not valid TOML: {error}.") from error
    except RecursionError as error:
        raise UsageError(f"{file} nests values too deeply to be read.") from error
    return table


class _Reader:
    """Validates the table of one file; every error names the file and the key."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def build_config(self, table: Any) -> Config:  # noqa: ANN401  (any TOML value)
        from profkit.engine.registry import rules

        all_rules = rules()
        self._check_keys(_TABLE, table, _KEYS)

        # Names and types come from the rules themselves, so that rules of plugins are checked too.
        thresholds = table.get("thresholds", {})
        key = f"{_TABLE}.thresholds"
        self._check_keys(key, thresholds, [rule.INFO.name for rule in all_rules], "rule")

        options = AnalysisOptions(
            select=self._check_names(f"{_TABLE}.select", table.get("select", []), all_rules),
            ignore=self._check_names(f"{_TABLE}.ignore", table.get("ignore", []), all_rules),
            thresholds={
                rule.INFO.name: self._check_thresholds(f"{key}.{rule.INFO.name}", thresholds, rule)
                for rule in all_rules
                if rule.INFO.name in thresholds
            },
            peaks=self._check_peaks(f"{_TABLE}.peaks", table.get("peaks", {})),
        )
        return Config(
            options,
            self._check_budgets(f"{_TABLE}.{BUDGETS}", table.get(BUDGETS, {})),
            self._check_bytes(f"{_TABLE}.{CACHE_BYTES}", table.get(CACHE_BYTES)),
            str(self._file),
        )

    def _check_budgets(self, key: str, table: object) -> dict[str, Any]:
        """Check the table of budgets, which ``profkit check`` reads."""
        if not isinstance(table, dict):
            raise self._error(key, "must be a table", f"Write [{key}].")
        return table

    def _check_bytes(self, key: str, value: object) -> int | None:
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            problem = f"must be a number of bytes, not {value!r}"
            raise self._error(key, problem, "0 turns the cache off.")
        return value

    def _check_peaks(self, key: str, tables: object) -> dict[str, dict[str, float]]:
        from profkit.arguments import is_number
        from profkit.index.compute.peaks import PEAK_FIGURES

        if not isinstance(tables, dict):
            raise self._error(key, "must be a table", f'Write [{key}."DEVICE NAME"].')

        for device, figures in tables.items():
            self._check_keys(f'{key}."{device}"', figures, PEAK_FIGURES, "figure")
            for name, value in figures.items():
                if not is_number(value) or not 0 < value < float("inf"):
                    problem = f"must be a number above 0, not {value!r}"
                    hint = (
                        "Data sheets state it, often with sparsity: profkit counts dense matrices."
                    )
                    raise self._error(f'{key}."{device}".{name}', problem, hint)
        return tables

    def _check_names(self, key: str, value: object, all_rules: Sequence["Rule"]) -> tuple[str, ...]:
        from profkit.engine.registry import matches

        if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
            raise self._error(key, "must be a list of strings", 'Write ["SYN", "item-sync"].')

        for name in value:
            if not name or not any(matches(rule.INFO, name) for rule in all_rules):
                names = [name for rule in all_rules for name in (rule.INFO.name, rule.INFO.id)]
                hint = did_you_mean(name, names) or "See `profkit rules`."
                raise self._error(key, f"names a rule that does not exist: {name!r}", hint)

        return tuple(value)

    def _check_thresholds(self, key: str, tables: dict[str, Any], rule: "Rule") -> dict[str, float]:
        from profkit.arguments import is_number

        defaults = {threshold.name: threshold.default for threshold in fields(rule.Thresholds)}
        table: dict[str, float] = tables[rule.INFO.name]
        self._check_keys(key, table, list(defaults), "threshold")
        for name, value in table.items():
            if not is_number(value):
                hint = f"Its default is {defaults[name]}."
                raise self._error(f"{key}.{name}", f"must be a number, not {value!r}", hint)
        return table

    def _check_keys(
        self, key: str, table: object, allowed: Sequence[str], what: str = "key"
    ) -> None:
        if not isinstance(table, dict):
            raise self._error(key, "must be a table", f"Write [{key}].")

        for name in table:
            if name not in allowed:
                hint = did_you_mean(name, allowed)
                if not hint and what != "rule":
                    hint = f"It can have {', '.join(allowed)}." if allowed else "It has none."
                hint = hint or "See `profkit rules`."
                raise self._error(key, f"has an unknown {what}: {name!r}", hint)

    def _error(self, key: str, problem: str, hint: str) -> UsageError:
        return UsageError(f"{self._file}: {key} {problem}.", hint.strip())
