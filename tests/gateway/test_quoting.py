"""Nothing that came in grows an error message or drives a terminal: bodies, headers, queries, paths, files."""

from __future__ import annotations

import asyncio
import json
import tomllib
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
import pytest

from gateway import strict_json
from gateway.api.administration.budgets import BudgetAsk
from gateway.api.administration.operations import NewKeyAsk, RevokeAsk
from gateway.api.schema_chat import ChatRequest, parse_chat
from gateway.api.schema_completions import CompletionRequest, parse_completion
from gateway.cli.show import clean
from gateway.errors import ApiError
from gateway.quoting import WORD_CHARS_MAX, fit
from gateway.settings.decode import decode
from gateway.settings.faults import SettingsError
from gateway.settings.load import parse
from gateway.settings.rules import CHECKS
from gateway.settings.shape import File, Listen
from security.redact import redact, render
from tests.gateway.inhouse import Answered, Inhouse, inhouse

LONG = "\x1b[2J\u202e\n\x07" + "x" * 5_000
ANSWER_BYTES_MAX = 8_192
EXAMPLE = Path(__file__).parents[2] / "deploy" / "lockgate.example.toml"
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


@pytest.mark.parametrize(
    ("text", "shown"),
    (
        ("plain – ünïcode", "plain – ünïcode"),  # noqa: RUF001 — a dash
        ("a\tb\r\nc", "a b  c"),
        ("\x1b[31m\x00\u202e\ud800", "�[31m���"),
        ("y" * WORD_CHARS_MAX, "y" * WORD_CHARS_MAX),
        ("y" * (WORD_CHARS_MAX + 1), "y" * WORD_CHARS_MAX + "…"),
    ),
)
def test_what_is_quoted_is_short_and_printable(text: str, shown: str) -> None:
    assert fit(text) == shown
    error = ApiError(400, "k", "c", text * 1_000, param=text * 1_000)
    assert error.message.isprintable()
    assert (error.param or "").isprintable()
    assert len(error.json()) < ANSWER_BYTES_MAX


def test_a_person_is_shown_lines() -> None:
    assert clean("one\ntwo\x1b") == "one\ntwo�"


# Requests


def is_modest(raw: bytes, asked: object) -> None:
    """The body of a refusal."""
    assert len(raw) < ANSWER_BYTES_MAX, asked
    told = json.loads(raw)
    said = told.get("error", told)
    for name in ("message", "detail", "param", "code", "title"):
        text = said.get(name) or ""
        assert text.isprintable(), (asked, name)
        assert text.count("x") <= 256, (asked, name)  # the longest name that is read at all


VALUES: tuple[Any, ...] = (LONG, [LONG], {LONG: LONG}, {"type": LONG}, [{"role": LONG, LONG: 1}])
OF_CHAT = {"model": "echo", "messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
OF_TEXT = {"model": "echo", "prompt": "x", "max_tokens": 1}


def bodies(kind: type[msgspec.Struct], good: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """One field wrong at a time, and one field that there is not."""
    for name in (*kind.__struct_encode_fields__, LONG):
        for value in VALUES:
            yield good | {name: value}


@pytest.mark.parametrize(
    ("read", "kind", "good"),
    (
        (parse_chat, ChatRequest, OF_CHAT),
        (parse_completion, CompletionRequest, OF_TEXT),
        *((None, kind, {}) for kind in (NewKeyAsk, BudgetAsk, RevokeAsk)),
    ),
)
def test_no_refusal_of_a_body_echoes_more_than_a_word(
    read: Callable[..., object] | None, kind: type[msgspec.Struct], good: dict[str, Any]
) -> None:
    refusals = 0
    for body in bodies(kind, good):
        try:
            if read is None:
                strict_json.decode(json.dumps(body).encode(), kind)
            else:
                read(body, vocab_size=100)
        except ApiError as why:
            is_modest(why.json(), [name[:20] for name in body])
            refusals += 1
    assert refusals >= len(kind.__struct_fields__)


@pytest.mark.parametrize(
    "raw",
    (
        LONG.encode(),
        b'{"a":' + b"9" * 5_000,
        b'{"k\\u001b' + b"x" * 5_000 + b'":1,"k\\u001b' + b"x" * 5_000 + b'":2}',
        b'"' + LONG.encode() + b'"',
    ),
)
def test_no_refusal_of_json_does(raw: bytes) -> None:
    with pytest.raises(ApiError) as refusal:
        strict_json.decode(raw, NewKeyAsk)
    is_modest(refusal.value.json(), raw[:9])


def test_no_endpoint_answers_at_length_nor_logs_so(tmp_path: Path) -> None:
    async def run() -> None:
        async with inhouse(tmp_path) as home:
            async for asked, answer in _asked(home):
                if answer.status >= 400:
                    is_modest(answer.body, asked)
                assert answer.status < 500, asked
                assert sum(map(len, answer.headers.values())) < 2_048, asked
                assert all(value.isprintable() for value in answer.headers.values()), asked
            for fields in home.logged:
                line = render(None, "", redact(None, "", dict(fields)))
                assert line.isprintable()
                assert len(line) < 4_096
            assert all(len(json.dumps(record)) < 4_096 for record in home.audited())

    asyncio.run(run())


async def _asked(home: Inhouse) -> AsyncIterator[tuple[object, Answered]]:
    """Bodies, queries, ids in paths, headers."""
    operator, caller = home.operator(), home.caller()
    word, odd = "x" * 5_000, quote(LONG)
    yield "model", await caller.post(CHAT, OF_CHAT | {"model": LONG})
    yield "tier", await caller.post(TEXT, OF_TEXT | {"service_tier": LONG})
    yield "tenant", await operator.post("/v1/admin/keys", {"tenant": LONG, "user": "u"})
    yield (
        "class",
        await operator.post(
            "/v1/admin/keys", {"tenant": "acme", "user": "u", "service_class": word}
        ),
    )
    yield (
        "scope",
        await operator.post(
            "/v1/admin/budgets",
            {"tenant": "acme", "usd": "1", "scope": "x" * 256, "window": "y" * 256},
        ),
    )
    for path in ("queue", "promises", "keys", "budgets", "usage", "check"):
        yield path, await operator.get(f"/v1/admin/{path}", f"tenant={odd}")
        yield path, await operator.get(f"/v1/admin/{path}", f"{odd}=1")
    yield "by", await operator.get("/v1/admin/promises", f"by={odd}")
    yield "from", await operator.get("/v1/admin/usage", f"from={odd}")
    yield "twice", await operator.get("/v1/admin/usage", "by=1&by=2")
    for path in (f"requests/{word}", f"tenants/{word}", word):
        yield path[:9], await operator.get(f"/v1/admin/{path}")
    for path in (f"keys/{word}/revoke", f"tenants/{word}/suspend"):
        yield path[:9], await operator.post(f"/v1/admin/{path}", {})
    for path in (f"models/{word}", f"models/{odd}", f"requests/{word}", word):
        yield path[:9], await caller.get(f"/v1/{path}")
    yield "method", await caller.start(word.upper(), CHAT).end()
    for name in ("host", "content_encoding", "expect", "authorization", "x_api_key"):
        yield name, await caller.with_headers(**{name: LONG}).post(CHAT, {})
    yield "credential", await home.caller(None).with_headers(authorization=LONG).post(CHAT, {})


# Configurations


def test_no_fault_of_a_configuration_is_longer_than_some_lines() -> None:
    text = EXAMPLE.read_text()
    everything = _replaced(tomllib.loads(text))
    stand_ins: dict[str, Any] = {
        "listen": Listen(hosts=("localhost",)),
        **dict.fromkeys(("models", "prices", "issuers"), ()),
        "plans": {},
        "tenants": {},
    }
    draft = decode(everything, File, CHECKS, **stand_ins)
    assert len(draft.faults) > 100
    told = SettingsError("f", draft.faults)
    for line in str(told).splitlines()[1:]:
        assert line.strip().isprintable()
        assert len(line) < 2_048
    with pytest.raises(SettingsError) as no_toml:
        parse("a = " + "x" * 5_000 + "\x1b", "f")
    assert len(str(no_toml.value)) < 1_024


def _replaced(data: Any) -> Any:
    if isinstance(data, dict):
        return {key: _replaced(inner) for key, inner in data.items()} | {LONG: 1, "x" * 5_000: LONG}
    return [_replaced(inner) for inner in data] if isinstance(data, list) else LONG
