import subprocess
import sys
from importlib import import_module

import pytest

import profkit


def modules_after(statement: str) -> set[str]:
    """The top-level names in ``sys.modules`` of a fresh Python that ran one statement."""
    code = f"{statement}; import sys; print(*{{name.partition('.')[0] for name in sys.modules}})"
    return set(subprocess.check_output([sys.executable, "-c", code], text=True).split())


@pytest.mark.parametrize(
    ("statement", "unwanted"),
    [
        ("import profkit", {"torch", "pandas", "numpy", "click", "rich", "msgspec"}),
        ("import profkit.api; import profkit.readers.open", {"torch", "pandas", "click", "rich"}),
        ("import profkit; profkit.trace, profkit.memory, profkit.no_leak", {"torch"}),
        ("import profkit; profkit.no_sync(), profkit.allow_sync('why')", {"torch"}),
        ("import profkit.cli.main", {"torch", "pandas", "numpy", "rich"}),
        ("from profkit.engine.registry import rules; rules()", {"torch", "pandas", "click"}),
        ("import profkit.integrations.tensorboard.plugin", {"torch", "pandas", "jinja2", "plotly"}),
    ],
)
def test_what_is_heavy_is_imported_only_where_it_is_used(
    statement: str, unwanted: set[str]
) -> None:
    loaded = modules_after(statement)
    assert "profkit" in loaded
    assert not loaded & unwanted


def test_every_public_name_is_there_and_listed() -> None:
    for name in profkit.__all__:
        assert getattr(profkit, name) is not None
    assert set(profkit.__all__) <= set(dir(profkit))


def test_an_unknown_name_is_an_attribute_error_that_names_it() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        getattr(profkit, "no_such_name")  # noqa: B009  (the lookup itself is the test)


def test_every_room_imports_on_its_own() -> None:
    rooms = ("model", "load", "index", "engine", "detectors", "render", "integrations", "cli")
    for room in (*rooms, "testing"):
        assert import_module(f"profkit.{room}").__doc__, f"profkit.{room} does not say what it is"


@pytest.mark.parametrize(
    "first", ["profkit.renderers.text", "profkit.readers.open", "profkit.api", "profkit.engine"]
)
def test_public_functions_can_be_called_whatever_was_imported_before(first: str) -> None:
    names = "profkit.load, profkit.render, profkit.analyze, profkit.load, profkit.render"
    code = f"import {first}, profkit; print(all(callable(each) for each in ({names})))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "True\n"


def test_a_room_with_the_name_of_a_function_is_still_a_room() -> None:
    import profkit.renderers.text as text_room

    opening = import_module("profkit.readers.open")
    assert text_room.INFO.name == "text"
    assert vars(profkit)["load"].open is opening
    with pytest.raises(opening.MissingFileError, match="no/such/file"):
        profkit.load("no/such/file")
