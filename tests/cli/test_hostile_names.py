"""Names from a file cannot affect the terminal."""

from pathlib import Path

import pytest

from profkit.cli.main import main
from profkit.testing import TraceBuilder

OP = "aten::\x1b[31mmm"
KERNEL = "</script>\x1b]0;x\x07"


@pytest.mark.parametrize("form", ["text", "json", "md"])
def test_escapes_and_markup_in_names_are_escaped(
    form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    b = TraceBuilder()
    for _ in range(3):
        with b.step():
            b.launch(OP, kernel=KERNEL, host_ns=9_000, device_ns=50_000)
            b.synchronize()
    assert main(["analyze", str(b.write(tmp_path / "t.json")), "--format", form]) == 0
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert "\x07" not in shown
    assert "script" in shown
    if form == "md":
        assert shown.count("</script>") == shown.count("`</script>")
