"""Any head, any bytes, any JSON text, any credential, any frame: a value, or the one refusal that is documented.

A few examples in every run, the same everywhere; many under `slow`.  What a search has found stands as an
example of its own.  Beside it: `test_wire_guard_fuzz` (bytes against h11), `test_api_fuzz` (bodies against a house).
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from executor import wire
from executor.wire import WireError
from gateway import strict_json
from gateway.door import Door
from gateway.errors import ApiError
from gateway.gate import Gate
from gateway.guard import check_head
from gateway.wire_guard import Limits, Pass, WireGuard
from policies.shedding import TERMS
from security import api_keys, authenticate, tokens
from security.failures import AuthDenied, AuthFailure
from tests.gateway.test_schema_requests import chat, completion
from tests.gateway.test_wire_guard_fuzz import streams

T = TypeVar("T")
OFTEN = settings(
    max_examples=40, deadline=None, derandomize=True, database=None,
    suppress_health_check=list(HealthCheck),
)  # fmt: skip
AT_LENGTH = settings(OFTEN, max_examples=1000, derandomize=False)
SECONDS_MAX = 2.0
"""For one example, on a machine that is busy with others: what is quadratic takes longer."""


def outcome(do: Callable[[], T]) -> tuple[T | None, ApiError | None]:
    """What came of it: a value or a refusal."""
    try:
        return do(), None
    except ApiError as why:
        return None, why


def timed(do: Callable[[], object]) -> None:
    begun_s = time.process_time()
    do()
    assert time.process_time() - begun_s < SECONDS_MAX


# Heads

ODD = st.sampled_from(
    (b"", b"/", b"//", b".", b"..", b"%2f", b"%2e", b"%00", b";x", b"?", b"#", b"@", b"\\", b"\xff")
)
PIECES = st.sampled_from((b"v1", b"models", b"chat", b"completions", b"admin", b"health", b"a"))
PATHS = st.lists(st.one_of(PIECES, ODD, st.binary(max_size=4)), max_size=6).map(
    lambda parts: b"/" + b"/".join(parts)
)
NAMES = st.sampled_from(
    (b"host", b"authorization", b"content-length", b"content-encoding", b"expect", b"x-api-key",
     b"transfer-encoding", b"idempotency-key", b"origin", b"content-type", b"x")
)  # fmt: skip
VALUES = st.sampled_from(
    (b"test", b"test:80", b"TEST", b"test/x", b"a@test", b"gzip", b"identity", b"100-continue", b"")
) | st.binary(max_size=12)
HEADS = st.tuples(
    PATHS | st.binary(max_size=40),
    st.sampled_from((b"", b"a=b", b"access_token=x", b"&API-KEY=")) | st.binary(max_size=20),
    st.lists(st.tuples(NAMES, VALUES), max_size=5),
    st.sampled_from(("1.1", "1.0", "2", "")),
)


def a_head_is_one_path_or_refused(
    head: tuple[bytes, bytes, list[tuple[bytes, bytes]], str], *, host: bool
) -> None:
    raw, query, headers, version = head
    given_headers = [(b"host", b"test"), *headers] if host else headers
    path, why = outcome(
        lambda: check_head(
            http_version=version, raw_path=raw, query=query, headers=given_headers, hosts=["test"]
        )
    )
    if why is not None:
        assert why.status in {400, 404, 415, 417, 421, 505}
        why.json()
        return
    assert path is not None
    assert path.startswith("/")
    assert "//" not in path
    assert not {".", ".."} & set(path.split("/"))
    assert not set(path) & set("%;?#\\\x00")
    for name in (b"host", b"authorization", b"content-length"):
        assert sum(found == name for found, _ in given_headers) <= 1


@OFTEN
@given(HEADS, st.booleans())
@example((b"/v1/models/%2e%2e%2fadmin", b"", [], "1.1"), True)
@example((b"/v1/models/a%2500", b"", [], "1.1"), True)
def test_a_head(head: tuple[bytes, bytes, list[tuple[bytes, bytes]], str], host: bool) -> None:
    timed(lambda: a_head_is_one_path_or_refused(head, host=host))


@pytest.mark.slow
@AT_LENGTH
@given(HEADS, st.booleans())
def test_a_head_at_length(
    head: tuple[bytes, bytes, list[tuple[bytes, bytes]], str], host: bool
) -> None:
    timed(lambda: a_head_is_one_path_or_refused(head, host=host))


# The door, for whatever the byte guard lets pass


def the_door_answers_or_lets_pass(stream: bytes) -> None:
    gate = Gate(lambda: 0.0, TERMS)
    gate.waiting = TERMS.waiting  # nobody more may
    door = Door(
        mint=lambda: "req_x", gate=gate, origins=["https://a"], draw=random.Random(1).random
    )
    for verdict in WireGuard(Limits()).feed(stream):
        if isinstance(verdict, Pass) and verdict.starts:
            found = door(verdict.data, whole=verdict.ends)
            if found is not None:
                assert found.answer.startswith(b"HTTP/1.1 503 ")
                head, _, body = found.answer.partition(b"\r\n\r\n")
                assert head.count(b"\r\n") == head.count(b"\n")
                assert (b"connection: close" in head) is not found.stays
                assert not body or msgspec.json.decode(body)["error"]["code"] == "overloaded"
                assert found.stays or not verdict.ends


@OFTEN
@given(streams() | st.binary(max_size=200))
@example(b"GET / HTTP/1.1\r\nHost: a\r\norigin: https://a\r\norigin: x\r\n\r\n")
@example(b"GET / HTTP/1.1\r\nHost: a\r\nAuthorization:\r\nContent-Length: 1\r\n\r\n")
def test_the_door(stream: bytes) -> None:
    timed(lambda: the_door_answers_or_lets_pass(stream))


@pytest.mark.slow
@AT_LENGTH
@given(streams() | st.binary(max_size=200))
def test_the_door_at_length(stream: bytes) -> None:
    timed(lambda: the_door_answers_or_lets_pass(stream))


# JSON, and requests made of it

BITS = st.sampled_from(
    (b"{", b"}", b"[", b"]", b'"', b",", b":", b"\\u", b"\\ud800", b"d800", b"\\", b"1", b"-", b"e",
     b"9" * 400, b"1e400", b"NaN", b"Infinity", b"true", b"null", b" ", b"\n", b"\xef\xbb\xbf",
     b"\xff", b"\xed\xa0\x80", b"\x00", b'"a":', b'{"a":1,"a":2}', b"[" * 70, b'{"":' * 70)
)  # fmt: skip
TEXTS = st.lists(BITS, max_size=14).map(b"".join) | st.binary(max_size=60)


def a_text_is_a_value_or_a_400(raw: bytes) -> None:
    value, why = outcome(lambda: strict_json.loads(raw))
    if why is not None:
        assert why.status == 400
        why.json()
        return
    assert strict_json.loads(msgspec.json.encode(value)) == value


@OFTEN
@given(TEXTS)
@example(b'{"a":' * 10_000)
@example(b"[" * 65 + b"]" * 65)
@example(b'"\\ud800"')
@example(b"1" * 5000)
@example(b'"' + b"\\" * 100_001)
def test_a_text(raw: bytes) -> None:
    timed(lambda: a_text_is_a_value_or_a_400(raw))


@pytest.mark.slow
@AT_LENGTH
@given(TEXTS)
def test_a_text_at_length(raw: bytes) -> None:
    timed(lambda: a_text_is_a_value_or_a_400(raw))


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)
FIELDS = (
    "model", "messages", "prompt", "n", "best_of", "stop", "logprobs", "top_logprobs", "logit_bias",
    "stream", "stream_options", "tools", "tool_choice", "response_format", "max_tokens", "seed",
    "metadata", "user", "service_tier", "stop_token_ids", "chat_template_kwargs", "temperature",
)  # fmt: skip


def a_request_is_read_or_refused(fields: dict[str, object]) -> None:
    for call in (chat, completion):
        _, why = outcome(lambda call=call: call(**fields))  # type: ignore[misc]
        assert why is None or (why.status == 400 and why.json())


@pytest.mark.slow
@AT_LENGTH
@given(st.dictionaries(st.sampled_from(FIELDS), ANYTHING, max_size=5))
def test_a_request_at_length(fields: dict[str, object]) -> None:
    timed(lambda: a_request_is_read_or_refused(fields))


# Credentials

LETTERS = "eyJ.AQ-_=lg\x00{} é"
CREDENTIALS = st.text(LETTERS, max_size=80) | st.text(max_size=40)


def a_credential_is_denied(raw: str) -> None:
    for parse in (tokens.preparse, api_keys.parse):
        for text in (raw, "lg_" + raw, "eyJ" + raw):
            with pytest.raises(AuthDenied):
                parse(text)
    data = raw.encode("utf-8", "surrogatepass")
    for headers in (
        [(b"authorization", data)],
        [(b"authorization", b"Bearer " + data)],
        [(b"x-api-key", data), (b"authorization", b"Bearer " + data)],
    ):
        try:
            found = authenticate.credential(headers, data)
        except AuthFailure:
            continue
        assert found


@OFTEN
@given(CREDENTIALS)
@example("." * 100_000)
@example("lg_" + "a" * 100_000)
@example("eyJ" * 30_000)
def test_a_credential(raw: str) -> None:
    timed(lambda: a_credential_is_denied(raw))


@pytest.mark.slow
@AT_LENGTH
@given(CREDENTIALS)
def test_a_credential_at_length(raw: str) -> None:
    timed(lambda: a_credential_is_denied(raw))


# Frames between the processes

TAGS = st.sampled_from(("submit", "abort", "ready", "report", "look", "purge", ""))
FRAMES = st.binary(max_size=120) | st.builds(
    lambda tag, fields: msgspec.msgpack.encode({"type": tag, **fields}),
    TAGS,
    st.dictionaries(
        st.sampled_from(("request", "prompt", "card", "tenant", "number", "workload")),
        st.none()
        | st.integers(-(2**63), 2**63 - 1)
        | st.text(max_size=4)
        | st.lists(st.integers(-1, 9)),
    ),
)


@pytest.mark.slow
@AT_LENGTH
@given(FRAMES)
def test_a_frame_at_length(body: bytes) -> None:
    for decode in (wire.decode_command, wire.decode_message):
        try:
            decode(body)
        except WireError:
            continue
