"""``[tool.profkit]`` of pyproject.toml chooses rules and thresholds; errors name file and key."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from profkit.analysis.config import Config, read_config
from profkit.cli.main import main
from profkit.errors import UsageError
from profkit.testing import TraceBuilder

Write = Callable[[str], Path]
HIGH_THRESHOLD = "[tool.profkit.thresholds.starved-by-loader]\nmin_step_share = 1.0\n"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the working directory, in a folder of its own, with a trace that has two findings."""
    folder = tmp_path / "project" / "src"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    b = TraceBuilder()
    for _ in range(6):
        with b.step():
            b.load(900_000)
            b.launch("aten::mm", kernel="gemm", host_ns=9_000, device_ns=400_000)
            b.item()
            b.advance(300_000)
    b.write(folder / "t.json")
    return folder


@pytest.fixture
def write(project: Path) -> Write:
    def _write(text: str) -> Path:
        file = project.parent / "pyproject.toml"
        file.write_text(text, encoding="utf-8")
        return file

    return _write


def found(capsys: pytest.CaptureFixture[str], *options: str) -> list[str]:
    assert main(["analyze", "t.json", "--format", "json", *options]) == 0
    findings = json.loads(capsys.readouterr().out)["findings"]
    return sorted(finding["name"] for finding in findings)


BOTH = ["item-sync", "starved-by-loader"]


@pytest.mark.usefixtures("project")
def test_without_a_file_all_rules_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert found(capsys) == BOTH
    assert read_config(Path("/")) == Config()


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ('[tool.profkit]\nselect = ["item-sync"]', ["item-sync"]),
        ('[tool.profkit]\nselect = ["SYN", "DAT"]\nignore = ["SYN001"]', ["starved-by-loader"]),
        ('[tool.profkit]\nignore = ["item-sync"]', ["starved-by-loader"]),
        ("[tool.profkit]", BOTH),
        ("[tool.other]\nselect = 3", BOTH),
        (HIGH_THRESHOLD, ["item-sync"]),
    ],
)
def test_the_file_chooses_rules_and_thresholds(
    text: str, names: list[str], write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    write(text)
    assert found(capsys) == names


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ((), ["item-sync"]),
        (("--select", "item-sync"), ["item-sync"]),
        (("--ignore", "MEM"), BOTH),
        (("--select", "SYN,DAT", "--ignore", "item-sync"), ["starved-by-loader"]),
    ],
)
def test_options_of_the_command_line_win(
    options: tuple[str, ...], names: list[str], write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    write('[tool.profkit]\nselect = ["starved-by-loader", "item-sync"]\nignore = ["DAT"]')
    assert found(capsys, *options) == names


def test_ignoring_all_that_is_selected_is_a_usage_error(
    write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    write('[tool.profkit]\nselect = ["starved-by-loader"]\nignore = ["DAT"]')
    assert main(["analyze", "t.json"]) == 2
    assert "All selected rules are ignored." in capsys.readouterr().err


def test_the_nearest_file_with_the_table_is_read(
    project: Path, write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    write('[tool.profkit]\nselect = ["item-sync"]')
    (project / "pyproject.toml").write_text("[project]\nname = 'x'")
    assert found(capsys) == ["item-sync"]
    (project / "pyproject.toml").write_text("[tool.profkit]\nselect = ['starved-by-loader']")
    assert found(capsys) == ["starved-by-loader"]


def test_diff_view_and_export_read_the_file(
    project: Path, write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    write('[tool.profkit]\nignore = ["item-sync"]\n' + HIGH_THRESHOLD)
    assert main(["export", "t.json", "--to", "json", "-o", "r.json"]) == 0
    assert json.loads((project / "r.json").read_text())["findings"] == []
    assert main(["view", "t.json", "--no-open", "-o", "r.html"]) == 0
    assert "starved-by-loader" not in (project / "r.html").read_text()
    TraceBuilder().write(project / "empty.json")
    capsys.readouterr()
    assert main(["diff", "empty.json", "t.json", "--format", "json"]) == 0
    changes = json.loads(capsys.readouterr().out)["changes"]
    assert not [change for change in changes if change["kind"] == "finding"]


def test_run_reads_the_file_before_it_starts_the_program(
    project: Path, write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    write("[tool.profkit]\nselect = 'SYN'")
    (project / "program.py").write_text("open('started', 'w')")
    assert main(["run", "program.py"]) == 2
    assert not (project / "started").exists()
    assert "tool.profkit.select must be a list of strings" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("[tool.profkit]\nselct = []", "tool.profkit has an unknown key: 'selct'.",
         "Did you mean 'select'?"),
        ("[tool.profkit]\nselect = 'SYN'", "tool.profkit.select must be a list of strings.",
         'Write ["SYN", "item-sync"].'),
        ("[tool.profkit]\nignore = [3]", "tool.profkit.ignore must be a list of strings.",
         'Write ["SYN", "item-sync"].'),
        ("[tool.profkit]\nignore = ['item-sink']",
         "tool.profkit.ignore names a rule that does not exist: 'item-sink'.",
         "Did you mean 'item-sync'"),
        ("[tool.profkit.thresholds.item-sink]",
         "tool.profkit.thresholds has an unknown rule: 'item-sink'.", "Did you mean 'item-sync'"),
        ("[tool.profkit.thresholds.zzzzzzzz]",
         "tool.profkit.thresholds has an unknown rule: 'zzzzzzzz'.", "See `profkit rules`."),
        ("[tool.profkit.thresholds.starved-by-loader]\nmin_step_shar = 1",
         "tool.profkit.thresholds.starved-by-loader has an unknown threshold: 'min_step_shar'.",
         "Did you mean 'min_step_share'"),
        ("[tool.profkit.thresholds.starved-by-loader]\nmin_step_share = 'x'",
         "tool.profkit.thresholds.starved-by-loader.min_step_share must be a number, not 'x'.",
         "Its default is "),
        ("[tool.profkit.thresholds.starved-by-loader]\nmin_step_share = true",
         "tool.profkit.thresholds.starved-by-loader.min_step_share must be a number, not True.",
         "Its default is "),
        ("[tool.profkit]\nthresholds = 3", "tool.profkit.thresholds must be a table.",
         "Write [tool.profkit.thresholds]."),
        ("[tool.profkit]\npeaks = 3", "tool.profkit.peaks must be a table.",
         'Write [tool.profkit.peaks."DEVICE NAME"].'),
        ("[tool.profkit.peaks]\n'NVIDIA L4' = 121",
         'tool.profkit.peaks."NVIDIA L4" must be a table.', "Write "),
        ("[tool.profkit.peaks.'NVIDIA L4']\nfloat16_tflop = 121",
         "tool.profkit.peaks.\"NVIDIA L4\" has an unknown figure: 'float16_tflop'.",
         "Did you mean 'float16_tflops'"),
        ("[tool.profkit.peaks.'NVIDIA L4']\nfloat16_tflops = 0",
         'tool.profkit.peaks."NVIDIA L4".float16_tflops must be a number above 0, not 0.',
         "Data sheets"),
        ("[tool.profkit.peaks.'NVIDIA L4']\nbandwidth_gb_per_s = true",
         'tool.profkit.peaks."NVIDIA L4".bandwidth_gb_per_s must be a number above 0, not True.',
         "Data sheets"),
        ("[tool]\nprofkit = 3", "tool.profkit must be a table.", "Write [tool.profkit]."),
    ],
)  # fmt: skip
def test_an_invalid_value_is_an_error_that_names_file_and_key(
    text: str, message: str, hint: str, write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(text)
    assert main(["analyze", "t.json"]) == 2
    shown = capsys.readouterr().err
    assert f"profkit: {file}: {message}\n" in shown
    assert f"  hint: {hint}" in shown


def test_the_file_states_peaks_of_devices(
    project: Path, write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    b = TraceBuilder(device_names=("NVIDIA L4",), shapes=True)
    dims, types = [[1024, 1024], [1024, 1024]], ["c10::Half", "c10::Half"]
    b.launch("aten::mm", kernel="gemm", host_ns=9_000, device_ns=50_000, dims=dims, types=types)
    b.write(project / "l4.json")
    write("[tool.profkit.peaks.'NVIDIA L4']\nfloat16_tflops = 121")
    assert main(["analyze", "l4.json", "--format", "json"]) == 0
    (op,) = json.loads(capsys.readouterr().out)["summary"]["top_ops"]
    assert op["throughput"]["flops_share"] == pytest.approx(2**31 / 50e-6 / 121e12)
    assert op["throughput"]["bandwidth_share"] is None
    for command in (["export", "l4.json", "--to", "md"], ["diff", "l4.json", "l4.json"]):
        assert main(command) == 0


def test_invalid_toml_is_an_error_that_names_the_file(
    write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write("[tool.profkit\n")
    assert main(["analyze", "t.json"]) == 2
    assert f"profkit: {file} is not valid TOML: " in capsys.readouterr().err


def test_values_that_are_nested_too_deeply_are_an_error_that_names_the_file(
    write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(f"x = {'[' * 2000}")
    assert main(["analyze", "t.json"]) == 2
    assert f"profkit: {file} nests values too deeply to be read." in capsys.readouterr().err


def test_the_library_does_not_read_the_file(project: Path, write: Write) -> None:
    import profkit

    write("[tool.profkit]\nselect = 'invalid'")
    with pytest.raises(UsageError):
        read_config()
    assert len(profkit.analyze(project / "t.json").findings) == 2
