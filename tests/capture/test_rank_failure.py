"""Why a program ended early, and which rank of a job has caused it."""

import json
import subprocess
import sys
from dataclasses import asdict

import pytest

from profkit.capture.run.rank_failure import Failure, failure_of_exception, find_causes

GLOO = "[gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:5033."


def raised(error: BaseException) -> BaseException:
    with pytest.raises(type(error)) as caught:
        raise error
    return caught.value


def test_an_exception_is_told_with_its_first_line_and_the_line_of_the_program() -> None:
    failure = failure_of_exception(raised(ValueError("bad batch\nof 3")), 7)
    assert failure is not None
    assert (failure.exception, failure.message, failure.at_ns) == ("ValueError", "bad batch", 7)
    assert failure.text == f"raised ValueError: bad batch ({__file__}:{failure.line})"
    assert failure_of_exception(KeyboardInterrupt(), 7) == Failure(7, "KeyboardInterrupt")


def test_torch_is_not_imported_for_the_line() -> None:
    code = (
        "import sys\nfrom profkit.capture.run.rank_failure import failure_of_exception\n"
        "try:\n    int('x')\nexcept ValueError as error:\n"
        "    print(failure_of_exception(error, 7).line, 'torch' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert run.stdout == "4 False\n"


def test_an_exception_whose_text_fails_has_a_type() -> None:
    class BrokenError(Exception):
        def __str__(self) -> str:
            raise KeyError

    failure = failure_of_exception(BrokenError(), 7)
    assert failure is not None
    assert failure.text == "raised BrokenError"


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (None, None),
        (0, None),
        (False, None),
        (3, "exited with code 3"),
        ("no data", "exited with code 1: no data"),
    ],
)
def test_an_exit_with_a_code_is_a_failure(code: object, text: str | None) -> None:
    failure = failure_of_exception(SystemExit(code), 7)
    assert (failure and failure.text) == text
    assert failure_of_exception(None, 7) is None


def test_a_failure_is_read_as_it_was_written() -> None:
    failure = Failure(7, "ValueError", "x", "a.py", 3, after=(1, 2))
    assert Failure.parse(json.loads(json.dumps(asdict(failure)))) == failure
    for text in ("{}", "[]", "3", '{"after": 1}', '{"after": [], "at_ns": 1, "new": 2}'):
        with pytest.raises((TypeError, KeyError)):
            Failure.parse(json.loads(text))


BUG = Failure(20, "ValueError", "bad batch")


@pytest.mark.parametrize(
    ("failures", "died", "causes"),
    [
        ({}, [], ([], [])),
        # The other rank's collective fails, before or after the launcher's SIGTERM.
        ({0: Failure(10, "RuntimeError", GLOO), 1: BUG}, [], ([1], [])),
        ({0: Failure(30, signal="SIGTERM"), 1: BUG}, [], ([1], [])),
        ({0: Failure(30, "DistBackendError", "timed out", after=(1,)), 1: BUG}, [], ([1], [])),
        # A rank that does not end is killed by the launcher in the end.
        ({1: BUG}, [0], ([1], [])),
        # A rank was killed, and the other ones fail because of it.
        ({0: Failure(30, "RuntimeError", GLOO, after=(1,))}, [1], ([], [1])),
        ({0: Failure(30, signal="SIGTERM")}, [1], ([], [1])),
        ({0: Failure(30, "ValueError", "x"), 1: BUG}, [], ([1, 0], [])),
        ({0: Failure(30, signal="SIGTERM"), 1: Failure(20, signal="SIGTERM")}, [], ([1], [])),
        # Its peer has ended well, which is no failure.
        ({0: Failure(30, "RuntimeError", GLOO)}, [], ([0], [])),
    ],
)
def test_the_cause_is_the_failure_that_nothing_explains(
    failures: dict[int, Failure], died: list[int], causes: tuple[list[int], list[int]]
) -> None:
    assert find_causes(failures, died) == causes
