import re
import subprocess
import sys
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest

import profkit

ROOT = Path(__file__).parents[2]
PACKED = {".py", ".json", ".typed", ".j2", ".js", ".css", ".html"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (path,) = folder.glob("*.whl")
    return zipfile.ZipFile(path)


@pytest.fixture(scope="module")
def metadata(wheel: zipfile.ZipFile) -> Message:
    text = wheel.read(f"profkit-{profkit.__version__}.dist-info/METADATA").decode()
    return Parser().parsestr(text)


def test_the_wheel_contains_every_module_and_data_file(wheel: zipfile.ZipFile) -> None:
    shipped = set(wheel.namelist())
    ours = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "profkit").rglob("*")
        if path.suffix in PACKED and "__pycache__" not in path.parts
    }
    assert ours <= shipped
    assert "profkit/py.typed" in ours
    assert {name.rpartition(".")[2] for name in ours} == {name[1:] for name in PACKED}


def test_the_wheel_contains_nothing_but_the_package(wheel: zipfile.ZipFile) -> None:
    tops = {name.partition("/")[0] for name in wheel.namelist()}
    assert tops == {"profkit", f"profkit-{profkit.__version__}.dist-info"}


def test_the_wheel_has_version_license_and_command(
    wheel: zipfile.ZipFile, metadata: Message
) -> None:
    info = f"profkit-{profkit.__version__}.dist-info"
    assert metadata["Version"] == profkit.__version__
    assert metadata["License-Expression"] == "Apache-2.0"
    assert f"{info}/licenses/LICENSE" in wheel.namelist()
    entry_points = wheel.read(f"{info}/entry_points.txt")
    assert b"profkit = profkit.cli.main:main" in entry_points
    assert b"[pytest11]\nprofkit = profkit.integrations.pytest.plugin\n" in entry_points


def test_the_description_on_an_index_leads_to_no_file_and_to_no_address_that_is_not_there(
    metadata: Message,
) -> None:
    description = str(metadata.get_payload())
    assert description.startswith("# profkit\n")
    assert "`profkit analyze FILE`" in description, "what was a link is text"
    assert not re.search(r"\]\(|!\[|https?:", description)
    assert not metadata.get_all("Project-URL")


def test_every_direct_dependency_is_pinned_exactly(metadata: Message) -> None:
    pins = (ROOT / "requirements" / "dev.txt").read_text().splitlines()
    assert not [pin for pin in pins if pin and "==" not in pin]
    pinned = {pin.partition("==")[0] for pin in pins}
    listed = metadata.get_all("Requires-Dist") or []
    # Only `make fuzz` and `make test-programs` ask for these.
    apart = re.compile("extra == '(fuzz|programs)'")
    required = [requirement for requirement in listed if not apart.search(requirement)]
    names = {re.split(r"[\[<>=;! ]", requirement)[0] for requirement in required}
    assert {"torch", "msgspec", "ruff", "scikit-learn"} <= names
    assert names - {"profkit"} <= pinned
    assert "torch==2.13.0" in pins


def test_no_pin_is_a_build_for_one_kind_of_device() -> None:
    pins = (ROOT / "requirements" / "dev.txt").read_text()
    assert not [word for word in ("nvidia", "cuda", "triton", "+cpu") if word in pins]
