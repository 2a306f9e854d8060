"""A line that retains a graph is rewritten only if its behaviour stays the same."""

import ast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profkit.engine.families.leaks.detach_fix import assigned_name, is_accumulation, without_graph


@pytest.mark.parametrize(
    ("code", "cured"),
    [
        ("losses.append(loss)", "losses.append(loss.item())"),
        ("self.losses.append(loss)  # kept", "self.losses.append(loss.item())"),
        ("losses.append(measure(net(x), y))", "losses.append(measure(net(x), y).item())"),
        ("queue.put(loss)", "queue.put(loss.item())"),
        ("total += loss", "total += loss.item()"),
        ("total = total + loss", "total = total + loss.item()"),
        ("total = loss + total", "total = loss.item() + total"),
        ("self.total = self.total + loss / n", "self.total = self.total + (loss / n).item()"),
        ("history[step] = loss", "history[step] = loss.item()"),
        ("self.last = loss", "self.last = loss.item()"),
    ],
)
def test_a_line_that_retains_a_scalar_gets_item(code: str, cured: str) -> None:
    assert without_graph(code, is_number=True) == cured


def test_a_tensor_is_detached() -> None:
    assert without_graph("outs.append(out)", is_number=False) == "outs.append(out.detach())"


@pytest.mark.parametrize(
    "code",
    [
        "loss = measure(output, y)",
        "output, hidden = network(x, hidden)",
        "losses.append(loss.item())",
        "losses.append(loss.detach())",
        "losses.append((step, loss))",
        "losses.append(loss, 3)",
        "losses.extend([loss])",
        "total += 1",
        "print(loss)",
        "for batch in loader:",
        "return loss",
        "",
        "\0",
        "a; b",
        "(" * 5000,
        "-" * 3000 + "x",
        "total = total + " + "x" * 200,
        "total += '''a\nb'''",
    ],
)
def test_other_lines_are_not_rewritten(code: str) -> None:
    assert without_graph(code, is_number=True) is None


def test_the_variable_that_a_line_assigns() -> None:
    assert assigned_name("loss = measure(output, y)") == "loss"
    assert assigned_name("self.loss = measure(output, y)") is None
    assert assigned_name("losses.append(loss)") is None


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("loss = (", "loss"),
        ("loss = measure(  # of both", "loss"),
        ("loss = first + \\", "loss"),
        ("loss = measure(output, y", None),
        ("weight=(", None),
        ("loss == (", None),
        ("self.loss = (", None),
        ("lambda = (", None),
    ],
)
def test_the_variable_of_a_statement_of_several_lines(code: str, name: str | None) -> None:
    assert assigned_name(code) == name


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("total += loss", True),
        ("total = total + loss", True),
        ("total *= loss", False),
        ("total = total * loss", False),
        ("total = other + loss", False),
        ("hidden = cell(x, hidden)", False),
    ],
)
def test_an_accumulation_adds_to_a_variable(code: str, *, expected: bool) -> None:
    assert is_accumulation(code) is expected


@given(st.text(max_size=80) | st.sampled_from(["x +", "lambda", "x = [", "é.append(λ)"]))
def test_any_text_gives_valid_python_or_nothing(code: str) -> None:
    made = assigned_name(code)
    assert made is None or isinstance(ast.parse(made, mode="eval"), ast.Expression)
    assert not is_accumulation(code) or "+" in code
    cured = without_graph(code, is_number=True)
    assert cured is None or ast.parse(cured).body
