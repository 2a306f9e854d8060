"""Tables that number the texts of a trace."""

from profkit.model.events import MISSING
from profkit.readers.kineto import interning
from profkit.readers.kineto.interning import InputTable, InternTable, RawTable, plain_name


def number(table: InputTable, *texts: bytes) -> tuple[int, ...]:
    return table.numbers[table[b"\0".join(texts)]]


def test_the_inputs_of_an_operator_have_the_numbers_of_their_texts() -> None:
    names = InternTable(plain_name)
    table = InputTable(RawTable(names))
    assert number(table, b"[[2]]", b"", b'["float"]') == (0, MISSING, 1)
    assert number(table, b'["float"]', b"[[3]]", b"[[2]]") == (1, 2, 0)
    assert names.texts == ["[[2]]", '["float"]', "[[3]]"]


def test_inputs_that_hardly_repeat_are_forgotten_and_keep_their_numbers() -> None:
    names = InternTable(plain_name)
    table = InputTable(RawTable(names))
    n_inputs = interning._MAX_INPUTS + 1
    first = [number(table, b"%d" % i, b"", b"") for i in range(n_inputs)]

    table.limit_size()
    assert not table
    assert [number(table, b"%d" % i, b"", b"") for i in range(n_inputs)] == first
    assert len(names.texts) == n_inputs
