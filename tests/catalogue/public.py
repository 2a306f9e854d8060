"""What users and their programs rely on, one line each, as this checkout has it.

``public.txt`` is the record, and docs/stability.md says what it promises. A change that is meant is
recorded by ``python -m tests.catalogue.public``.
"""

import ast
import inspect
import json
import re
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Final

import click

import profkit
import profkit.testing
from profkit import errors, rule
from profkit.analysis import config
from profkit.budgets.figures import FIGURES, FINDINGS
from profkit.capture.process import doctor
from profkit.cli import _exit_codes
from profkit.cli.main import group
from profkit.engine.registry import rules
from profkit.present.renderer import renderers
from profkit.renderers import json_report

RECORD: Final = Path(__file__).with_suffix(".txt")
SCHEMA: Final = Path(json_report.__file__).parent / "report.schema.json"
CALLBACKS: Final = ("accelerate", "huggingface", "ignite", "lightning")


def list_public() -> list[str]:
    """Return all lines, sorted within each kind."""
    kinds: tuple[Callable[[], Iterator[str]], ...] = (
        _list_names,
        _list_commands,
        _list_exit_codes,
        _list_settings,
        _list_rules,
        _list_formats,
        _list_fields,
    )
    return [line for kind in kinds for line in sorted(kind())]


def _list_names() -> Iterator[str]:
    for name in profkit.__all__:
        value = getattr(profkit, name)
        signature = write_signature(value) if callable(value) else ""
        yield f"name profkit.{name}{signature}"
    yield from (f"name profkit.rule.{name}" for name in rule.__all__)
    yield from (f"name profkit.testing.{name}" for name in profkit.testing.__all__)
    for module in CALLBACKS:
        # Importing it would import its trainer, which takes ten seconds.
        file = Path(profkit.__file__).parent / "integrations" / f"{module}.py"
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and node.name.startswith("Profkit"):
                yield f"name profkit.integrations.{module}.{node.name}"


def write_signature(function: Callable[..., object]) -> str:
    """Return parameters and defaults; how types are spelled depends on the version of Python."""
    signature = inspect.signature(function)
    bare = [
        parameter.replace(annotation=inspect.Parameter.empty)
        for parameter in signature.parameters.values()
    ]
    return str(signature.replace(parameters=bare, return_annotation=inspect.Signature.empty))


def _list_commands() -> Iterator[str]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                names = " ".join((*parameter.opts, *parameter.secondary_opts))
                kind = "" if parameter.is_flag else f" {write_kind(parameter.type)}"
                yield f"command {name} {names}{kind}"
            else:
                yield f"command {name} {parameter.human_readable_name}"


def write_kind(kind: click.ParamType) -> str:
    """Return what an option takes: its choices, or the name of its type."""
    return "|".join(map(str, kind.choices)) if isinstance(kind, click.Choice) else kind.name


def _list_exit_codes() -> Iterator[str]:
    for kind in vars(errors).values():
        if isinstance(kind, type) and issubclass(kind, errors.ProfkitError):
            yield f"exit {kind.exit_code} {kind.__name__}"
    # The table at the top of the module that exits.
    for code, meaning in re.findall(r"^ {4}(\d+) +(.+)$", _exit_codes.__doc__ or "", re.MULTILINE):
        yield f"exit {code} {meaning}"


def _list_settings() -> Iterator[str]:
    yield from (f"setting {key}" for key in config._KEYS)
    yield from (f"setting budgets.{figure.name}" for figure in FIGURES)
    yield f"setting budgets.{FINDINGS}"
    yield from (f"variable {name}" for name in doctor.KNOWN_VARIABLES)
    for detector in rules():
        for name in inspect.signature(detector.Thresholds).parameters:
            yield f"setting thresholds.{detector.INFO.name}.{name}"


def _list_rules() -> Iterator[str]:
    yield from (f"rule {detector.INFO.id} {detector.INFO.name}" for detector in rules())


def _list_formats() -> Iterator[str]:
    yield from (f"format {renderer.INFO.name}" for renderer in renderers())
    for point in set(entry_points(name="profkit")):
        yield f"plugin {point.group} {point.name}"


def _list_fields() -> Iterator[str]:
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    for name, kind in {"Report": schema, **schema["$defs"]}.items():
        for field, value in kind["properties"].items():
            mark = "" if field in kind["required"] else "?"
            yield f"json {name}.{field}{mark} {write_type(value)}"


def write_type(schema: Mapping[str, Any]) -> str:
    """Return the type of a value in one line: ``[Finding]``, ``integer|null``, ``{string}``."""
    if "anyOf" in schema:
        return "|".join(map(write_type, schema["anyOf"]))
    if "enum" in schema:
        return "|".join(json.dumps(value) for value in schema["enum"])
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if schema["type"] == "array":
        return f"[{write_type(schema['items'])}]"
    if schema["type"] == "object":
        return f"{{{write_type(schema['additionalProperties'])}}}"
    return str(schema["type"])


if __name__ == "__main__":
    RECORD.write_text("".join(f"{line}\n" for line in list_public()), encoding="utf-8")
