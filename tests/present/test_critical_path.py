"""How the critical path reads."""

from dataclasses import replace
from typing import get_args

import pytest

from profkit.model.critical_path import PathKind, PathKindName, PathLine
from profkit.model.location import Location
from profkit.present.critical_path import (
    entry_name,
    large_lines,
    main_kinds,
    main_name,
    main_share,
    main_word,
    path_label,
    path_title,
)
from tests.renderers.reports import MS, find_critical_path

NOWHERE = Location()
LINE = PathLine("operator", NOWHERE, 10 * MS, 5 * MS, 0.5, 20, 20, "aten::mm", 0.2)


def test_each_kind_has_a_name_in_the_report_and_a_label_of_its_own() -> None:
    names = [kind.report_name for kind in PathKind]
    assert names == [kind.name.lower().replace("_", "-") for kind in PathKind]
    assert set(names) == set(get_args(PathKindName))
    assert len({path_label(name) for name in names}) == len(names)


def test_the_main_kinds_are_the_three_longest_above_a_hundredth() -> None:
    path = find_critical_path(
        2, {"kernel": 600, "operator": 300, "copy": 60, "sync": 35, "gap": 5}, NOWHERE
    )
    assert main_kinds(path) == "kernels 60%, operators 30%, copies and fills 6.0%"
    assert main_kinds(path, everything=True).endswith(
        "copies and fills 6.0%, syncs 3.5%, gaps 0.5%"
    )
    assert [line.kind for line in large_lines(path)] == ["kernel", "operator", "copy", "sync"]
    assert path_title(path) == "Critical path per step (shares of 500 ns)"
    assert (
        path_title(replace(path, n_steps=0, per_step_ns=None))
        == "Critical path of the whole recording (shares of 1.00 µs)"
    )


@pytest.mark.parametrize(
    ("kind", "name", "shown"),
    [
        ("kernel", "void at::native::vec<4>(int)", "vec<…>"),
        ("gap", "void at::native::vec<4>(int)", "before vec<…>"),
        ("launch-latency", "gemm", "before gemm"),
        ("unrecorded", "cudaStreamSynchronize", "during cudaStreamSynchronize"),
        ("unrecorded", "", ""),
        ("python", "", "outside operators"),
        ("runtime", "hipFree", "hipFree"),
        ("data-wait", "enumerate(DataLoader)#_Iter.__next__", "_Iter.__next__"),
        ("operator", "a\nb", "a\\nb"),
        ("python", "<built-in function zoom_shift>", "zoom_shift()"),
        ("data-wait", "<built-in method div of Tensor object at 0x7f00>", "Tensor.div()"),
        (
            "python",
            "<built-in method run_backward of torch._C._EngineBase object at 0x7f00>",
            "_EngineBase.run_backward()",
        ),
    ],
)
def test_a_name_says_what_happens(kind: PathKindName, name: str, shown: str) -> None:
    assert entry_name(kind, name) == shown


def test_a_name_that_is_nearly_all_of_its_line_has_no_share() -> None:
    assert (main_name(LINE), main_share(LINE)) == ("aten::mm", "20%")
    assert main_share(replace(LINE, main_share=0.48)) == ""


def test_the_function_of_a_source_line_is_not_named_twice() -> None:
    where = Location("net.py", 3, "forward", precision="function")
    line = replace(LINE, kind="python", location=where, main_name="forward (net.py:3)")
    assert main_name(line) == ""
    assert main_name(replace(line, main_name="relu (net.py:9)")) == "relu (net.py:9)"


@pytest.mark.parametrize(
    ("share", "word"), [(0.055, "longest"), (0.249, "longest"), (0.25, "mostly"), (0.49, "")]
)
def test_a_line_is_mostly_what_takes_at_least_half_of_it(share: float, word: str) -> None:
    assert main_word(replace(LINE, main_share=share)) == word
