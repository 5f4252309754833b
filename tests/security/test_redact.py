"""Nothing that a caller sent reaches a log line, however it is tried."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
import structlog
from hypothesis import given, settings
from hypothesis import strategies as st

from security import api_keys
from security.redact import describe, processors, redact, text
from tests.security.helpers import byte_source
from tests.security.kit import token

KEY = api_keys.mint(byte_source(1), b"p" * 32).secret
CANARY = "canary prompt: what is my diagnosis"


def line(event: object = "request.done", **fields: object) -> dict[str, Any]:
    entry: Any = {"event": event, **fields}
    for processor in processors():
        entry = processor(None, "info", entry)
    assert isinstance(entry, str)
    assert "\n" not in entry
    assert entry.isascii()
    found: dict[str, Any] = json.loads(entry)
    return found


def test_what_may_be_said_is_said() -> None:
    fields = {"request_id": "req_1", "tenant": "acme", "status": 200, "total_ms": 12.5, "output_tokens": 7, "stream": True, "reason": None}  # fmt: skip
    assert line(**fields) == {"event": "request.done", **fields}


@pytest.mark.parametrize("name", ("prompt", "text", "body", "messages", "content", "headers", "token", "secret", "x", "prompt_tokens", "body_bytes", "total_ms"))  # fmt: skip
@pytest.mark.parametrize(
    "value", (CANARY, CANARY.encode(), [CANARY], {"a": CANARY}, (CANARY,), {CANARY})
)
def test_an_unlisted_name_shows_a_type(name: str, value: object) -> None:
    assert line(**{name: value}) == {"event": "request.done", name: f"<{type(value).__name__}>"}


@pytest.mark.parametrize("value", ([CANARY], {"a": CANARY}, CANARY.encode(), object()))
def test_a_listed_name_shows_scalars_only(value: object) -> None:
    assert line(reason=value)["reason"] == f"<{type(value).__name__}>"


@pytest.mark.parametrize(
    "event", (CANARY, "Started server", "", "a" * 65, "a.b\n", "A", None, 7, b"a.b")
)
def test_an_event_is_a_name_not_a_sentence(event: object) -> None:
    assert line(event)["event"] == "unnamed"


def test_a_name_that_is_none_is_not_shown() -> None:
    assert line(**{CANARY: 1}) == {"event": "request.done", "unnamed": "<int>"}
    assert line(**{"a\n": CANARY}) == {"event": "request.done", "unnamed": "<str>"}


@pytest.mark.parametrize(
    "secret",
    (
        KEY,
        KEY[:12],
        token(),
        token().split(".")[0],
        token()[:30],
        f"Bearer {'x' * 10}",
        "basic dXNlcjpwYXNz",
        "sk-proj-abcdefgh12345",
        "hf_abcdefghijklmnop",
        "-----BEGIN PRIVATE KEY-----\nMC4CAQAw\n-----END",
        "postgresql://lockgate:hunter2@db/x",
        "a" * 40,
        "0123456789abcdef" * 4,
    ),
)
def test_what_looks_like_a_credential_is_masked_anywhere(secret: str) -> None:
    for value in (secret, f"path {secret}", f"a {secret} b", f"k={secret}&x"):
        shown = line(reason=value)["reason"]
        assert "<redacted>" in shown
        core = "hunter2" if "hunter2" in secret else secret.rsplit(" ", maxsplit=1)[-1][-12:]
        assert core not in shown


def test_l3_control_characters_are_escaped_onto_one_line() -> None:
    shown = line(tenant="a\r\nfake: line\x1b[31m\x00\x85\u2028\u202e\ud800")["tenant"]
    assert shown.isprintable()
    assert "\\r\\n" in shown
    assert "\\x1b" in shown


def test_ids_are_bounded() -> None:
    assert len(line(reason="ab " * 1000)["reason"]) <= 257
    assert len(line(reason="\x00" * 1000)["reason"]) <= 4 * 257
    assert len(line(**{f"f{i}": i for i in range(500)})) <= 48


def test_numbers_of_any_size() -> None:
    assert line(status=2**80)["status"] == "<int>"
    assert line(total_ms=float("inf"))["total_ms"] == float("inf")


def raise_chain() -> None:
    try:
        raise ValueError(CANARY)
    except ValueError as error:
        raise RuntimeError(f"with {KEY}") from error


def test_an_exception_shows_types_and_places_never_messages() -> None:
    with pytest.raises(RuntimeError) as caught:
        raise_chain()
    error = caught.value
    for exc_info in (error, (type(error), error, error.__traceback__)):
        shown = line(exc_info=exc_info)
        assert shown["exception"]["types"] == ["RuntimeError", "ValueError"]
        assert shown["exception"]["at"][-1].startswith("security/test_redact.py:")
        assert "canary" not in json.dumps(shown)
        assert "lg_" not in json.dumps(shown)
    assert line(error=error)["error"] == "RuntimeError"
    assert line(other=error)["other"] == "RuntimeError"


def test_the_exception_being_handled() -> None:
    try:
        raise_chain()
    except RuntimeError:
        assert line(exc_info=True)["exception"]["types"][0] == "RuntimeError"
    assert sys.exc_info()[1] is None
    for nothing in (True, False, None, (None, None, None), ("a", "b", None)):
        assert "exception" not in line(exc_info=nothing)


def test_a_circle_of_causes_ends() -> None:
    one, two = ValueError(), KeyError()
    one.__cause__, two.__cause__ = two, one
    assert len(describe(one)["types"]) == 8


def test_in_a_real_chain() -> None:
    out: list[str] = []

    class Sink:
        def msg(self, message: str) -> None:
            out.append(message)

        info = msg

    log = structlog.wrap_logger(
        Sink(), processors=[structlog.processors.add_log_level, *processors()]
    )
    log.info("auth.denied", reason="expired", prompt=CANARY, authorization=f"Bearer {KEY}")
    found = json.loads(out[0])
    assert found == {"event": "auth.denied", "level": "info", "reason": "expired", "prompt": "<str>", "authorization": "<str>"}  # fmt: skip


JSON_ISH = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(st.dictionaries(st.text(), JSON_ISH, max_size=5), JSON_ISH)
def test_fuzz_any_fields_give_one_line(fields: dict[str, Any], event: Any) -> None:
    line(event, **{name: value for name, value in fields.items() if name != "event"})
    redact(None, "info", {"exc_info": event})


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(st.text())
def test_fuzz_text_is_printable(value: str) -> None:
    assert text(value).isprintable()
