"""Whatever a client sends, the program goes on, and answers the next one."""

import json
import socket
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import profkit
from profkit.capture.live.listener import ProgramListener

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda values: st.lists(values, max_size=3) | st.dictionaries(st.text(max_size=5), values),
    max_leaves=5,
)
TOPICS = st.sampled_from(["record", "stacks", "figures", "identity", "stop"])
QUESTIONS = st.fixed_dictionaries(
    {"ask": TOPICS | JSON},
    optional={"after": JSON, "steps": JSON, "memory": JSON, "id": JSON, "stacks": JSON},
)
LINES = (QUESTIONS | JSON).map(lambda value: json.dumps(value).encode()) | st.binary(max_size=200)
TIMEOUT_S = 10.0


@pytest.fixture(scope="module")
def listening(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProgramListener]:
    opened = profkit.listen("job", dir=tmp_path_factory.mktemp("traces"))
    assert isinstance(opened, ProgramListener)
    yield opened
    opened.stop()


def ask(path: str, sent: bytes) -> bytes:
    """Send bytes, then a question that is known, and return all that comes until its answer."""
    received = b""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(TIMEOUT_S)
        client.connect(path)
        client.sendall(sent + b'\n{"ask": "identity"}\n')
        while b'"pid"' not in received:
            chunk = client.recv(1 << 16)
            assert chunk, received
            received += chunk
    return received


@given(st.lists(LINES, max_size=4))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_next_question_is_answered_whatever_was_sent_before(
    listening: ProgramListener, lines: list[bytes]
) -> None:
    for line in ask(listening._server.path, b"\n".join(lines)).splitlines():
        assert isinstance(json.loads(line), dict)


@pytest.mark.parametrize("sent", [b"[" * 100_000, b"\0" * 100_000, b'{"ask":' * 10_000])
def test_what_is_too_long_or_too_deep_ends_its_own_connection_alone(
    listening: ProgramListener, sent: bytes
) -> None:
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(TIMEOUT_S)
        client.connect(listening._server.path)
        try:
            client.sendall(sent)
            ended = client.recv(1 << 16)
        except (BrokenPipeError, ConnectionResetError):
            ended = b""
    assert ended == b""
    assert b'"pid"' in ask(listening._server.path, b"")
