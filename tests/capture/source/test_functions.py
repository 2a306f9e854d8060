"""Lines of operators without a call, from the calls around them and the function's source."""

import textwrap
from pathlib import Path

import pytest

from profkit.capture.recording.functions import Function, find_lines_between, function_at

LOOP = """\
def train(model, loader):
    total = 0
    for x in loader:
        loss = model(x)
        if loss > 100:
            print("big")
        small = x[x > 0]
        total += float(loss)
        scaled = loss * 2
        again = loss * 3
        loss.backward()
    return total + 1
"""


@pytest.fixture
def train(tmp_path: Path) -> Function:
    file = tmp_path / "train.py"
    file.write_text(textwrap.dedent(LOOP))
    return function_at(str(file), 1, "train")


def test_a_comparison_and_its_truth_test_are_on_the_line_of_the_if(
    train: Function,
) -> None:
    assert find_lines_between(train, 4, 6, ["aten::gt", "aten::is_nonzero"]) == [5, 5]


def test_operators_in_order_have_their_own_lines(train: Function) -> None:
    ops = ["aten::gt", "aten::is_nonzero", "aten::gt", "aten::index", "aten::item"]
    assert find_lines_between(train, 4, 11, ops) == [5, 5, 7, 7, 8]


def test_one_product_with_two_possible_lines_has_no_line(train: Function) -> None:
    assert find_lines_between(train, 4, 11, ["aten::mul"]) == [None]


def test_two_products_in_order_have_their_lines(train: Function) -> None:
    assert find_lines_between(train, 4, 11, ["aten::mul", "aten::mul"]) == [9, 10]


def test_after_the_last_call_of_a_loop_the_next_iteration_is_possible(train: Function) -> None:
    assert find_lines_between(train, 11, 4, ["aten::item"]) == [None]
    assert find_lines_between(train, 11, 4, []) == []


def test_an_operator_of_unknown_syntax_has_a_line_only_if_one_is_possible(
    train: Function,
) -> None:
    assert find_lines_between(train, 4, 4, ["aten::strange"]) == [None]
    assert find_lines_between(train, 11, None, ["aten::add_"]) == [None]


def test_a_loop_without_calls_gives_only_its_certain_lines(
    tmp_path: Path,
) -> None:
    file = tmp_path / "loop.py"
    file.write_text(
        "def run(x, n):\n"
        "    x.zero_()\n"
        "    for i in n:\n"
        "        x = x + 1\n"
        "    y = x + 2\n"
        "    return y.sum()\n"
    )
    function = function_at(str(file), 1, "run")
    assert find_lines_between(function, 2, 6, ["aten::add"] * 3) == [4, 4, None]


def test_operators_after_the_last_call_of_a_with_block_run_before_its_exit(tmp_path: Path) -> None:
    file = tmp_path / "block.py"
    file.write_text(
        "def run(model, x, profile):\n"
        "    if x.dim() > 1:\n"
        "        x = x + 1\n"
        "    with profile():\n"
        "        y = model(x)\n"
        "        z = float(y)\n"
    )
    function = function_at(str(file), 1, "run")
    # Python calls __exit__ from line 4, the line of the with.
    assert find_lines_between(function, 5, 4, ["aten::item"]) == [6]


def test_a_function_without_source_has_no_points() -> None:
    function = function_at("/nowhere/at/all.py", 7, "f")
    assert function == Function(7)
    assert find_lines_between(function, 8, 9, ["aten::add"]) == [None]


def test_a_source_that_is_not_python_has_no_points(tmp_path: Path) -> None:
    file = tmp_path / "broken.py"
    file.write_text("def f(:\n")
    assert function_at(str(file), 1, "f").points == ()


def test_decorated_nested_and_lambda_functions_are_found_by_their_own_lines(
    tmp_path: Path,
) -> None:
    file = tmp_path / "many.py"
    file.write_text(
        "import functools\n"
        "@functools.cache\n"
        "def outer(x):\n"
        "    def inner(y):\n"
        "        return -y\n"
        "    return inner(x) + 1\n"
        "f = lambda v: v * 2\n"
    )

    outer = function_at(str(file), 2, "outer")
    assert (outer.line, [p.line for p in outer.points]) == (3, [6])
    assert [p.line for p in function_at(str(file), 4, "inner").points] == [5]
    assert [p.line for p in function_at(str(file), 7, "<lambda>").points] == [7]
    assert function_at(str(file), 1, "<module>").line == 1
