import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import profkit


def modules_after(statement: str) -> set[str]:
    """Return the top-level names in ``sys.modules`` of a fresh Python that ran one statement."""
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
        ("import profkit.integrations.tensorboard.plugin", {"torch", "pandas", "jinja2"}),
    ],
)
def test_heavy_packages_are_imported_only_where_they_are_used(
    statement: str, unwanted: set[str]
) -> None:
    loaded = modules_after(statement)
    assert "profkit" in loaded
    assert not loaded & unwanted


def test_every_public_name_exists_and_is_listed() -> None:
    for name in profkit.__all__:
        assert getattr(profkit, name) is not None
    assert set(profkit.__all__) <= set(dir(profkit))


def test_an_unknown_name_raises_an_attribute_error_with_the_name() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        getattr(profkit, "no_such_name")  # noqa: B009  (the lookup itself is the test)


def test_every_package_imports_on_its_own_and_says_what_it_is() -> None:
    folder = Path(profkit.__file__).parent
    for path in sorted(folder.rglob("__init__.py")):
        name = ".".join(("profkit", *path.parent.relative_to(folder).parts))
        assert import_module(name).__doc__, f"{name} has no docstring"


@pytest.mark.parametrize("first", ["profkit.readers.open", "profkit.renderers.text", "profkit.api"])
def test_public_functions_are_callable_whatever_was_imported_before(first: str) -> None:
    names = ", ".join(f"profkit.{name}" for name in profkit.__all__ if name != "__version__")
    code = f"import {first}, profkit; print(all(callable(each) for each in ({names})))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "True\n"


def test_no_package_or_module_has_the_name_of_a_public_function() -> None:
    folder = Path(profkit.__file__).parent
    modules = {path.stem for path in folder.iterdir() if path.suffix == ".py" or path.is_dir()}
    assert not modules & set(profkit.__all__)
