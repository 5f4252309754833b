"""Pages of a listed origin read every answer, refusals above all; pages of others read none.

How one layer words it is `test_middleware`'s; here it is whether every way out of the house passes it.
Source: API.md §5 (CORS), the Fetch standard.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from executor.echo import EchoExecutor
from gateway.api import caller as caller_api
from gateway.guard import FrontBounds
from gateway.middleware.cors import EXPOSED
from policies.facts import Limits
from tests.gateway.inhouse import CHAT, PLAN, Answered, Caller, Inhouse, chat_body, inhouse
from tests.gateway.test_line import Hold

PAGE = "https://app.example.com"
BOUNDS = FrontBounds(body_bytes_max=4096, body_s=0.02, linger_s=0.01)
SCARCE = replace(PLAN, limits=Limits(rpm=2))
LEAVE = ("access-control-allow-origin", "access-control-expose-headers")


def page(home: Inhouse, origin: str = PAGE, name: str | None = "acme/alice", **more: str) -> Caller:
    return home.caller(name).with_headers(origin=origin, **more)


async def refused_by_wire(home: Inhouse, who: Caller, body: list[bytes]) -> Answered:
    """A request whose body is what a test says; nothing more comes where it is over."""
    sent: dict[str, object] = {}
    parts: list[bytes] = []

    async def receive() -> dict[str, object]:
        if body:
            return {"type": "http.request", "body": body.pop(0), "more_body": True}
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: dict[str, object]) -> None:
        sent.update(message)
        part = message.get("body", b"")
        assert isinstance(part, bytes)
        parts.append(part)

    headers = [(b"host", b"test"), (b"transfer-encoding", b"chunked"), *who.more]
    headers.append((b"authorization", f"Bearer {who.credential}".encode()))
    await home.public(
        {
            "type": "http",
            "http_version": "1.1",
            "method": "POST",
            "path": CHAT,
            "raw_path": CHAT.encode(),
            "query_string": b"",
            "headers": headers,
        },
        receive,
        send,  # type: ignore[arg-type]  # likewise
    )
    status, told = sent["status"], sent["headers"]
    assert isinstance(status, int)
    assert isinstance(told, list)
    return Answered(status, {k.decode(): v.decode() for k, v in told}, b"".join(parts))


async def _suspended(home: Inhouse, who: Caller) -> Answered:
    await home.operator().post("/v1/admin/tenants/acme/suspend", {"reason": "test"})
    return await who.chat()


async def _spent(home: Inhouse, who: Caller) -> Answered:
    await who.chat()
    await who.chat()
    return await who.chat()


async def _loading(home: Inhouse, who: Caller) -> Answered:
    home.echo._card = None
    return await who.chat()


async def _draining(home: Inhouse, who: Caller) -> Answered:
    home.switch["draining"] = True
    return await who.chat()


async def _full(home: Inhouse, who: Caller) -> Answered:
    home.house.door.places.most = 1
    hold = home.echo._gate
    assert isinstance(hold, Hold)
    running = who.start("POST", CHAT, chat_body())
    await hold.waiting.wait()
    answer = await who.chat()
    hold.opened.set()
    await running.end()
    return answer


async def _broken(home: Inhouse, who: Caller) -> Answered:
    return await who.get("/v1/me")  # what would answer it is taken away


@dataclass(frozen=True)
class Way:
    """One way in which a request is refused."""

    status: int
    go: Callable[[Inhouse, Caller], Awaitable[Answered]]
    headers: tuple[tuple[str, str], ...] = ()
    name: str | None = "acme/alice"
    code: str | None = None


WAYS = {
    "400": Way(400, lambda home, who: who.post(CHAT, b"{")),
    "400 credential in query": Way(400, lambda home, who: who.get("/v1/me", "api_key=x")),
    "400 host": Way(400, lambda home, who: replace(who, more=(*who.more, (b"host", b"b"))).chat()),
    "401": Way(401, lambda home, who: who.chat(), name=None),
    "403": Way(403, _suspended, code="tenant_suspended"),
    "404 route": Way(404, lambda home, who: who.get("/nowhere")),
    "404 path": Way(404, lambda home, who: who.get("/a//b")),
    "404 model": Way(404, lambda home, who: who.get("/v1/models/other"), code="model_not_found"),
    "405": Way(405, lambda home, who: who.get(CHAT)),
    "408": Way(408, lambda home, who: refused_by_wire(home, who, [b"{"])),
    "413 declared": Way(413, lambda home, who: who.chat("x"), (("content-length", "5000"),)),
    "413 chunked": Way(413, lambda home, who: refused_by_wire(home, who, [b"x" * 3000] * 2)),
    "415": Way(415, lambda home, who: who.chat(), (("content-encoding", "gzip"),)),
    "417": Way(417, lambda home, who: who.chat(), (("expect", "soon"),)),
    "429": Way(429, _spent, code="rate_limit_exceeded"),
    "500": Way(500, _broken, code="internal_error"),
    "503 loading": Way(503, _loading, code="model_loading"),
    "503 draining": Way(503, _draining, code="draining"),
    "503 full": Way(503, _full, code="overloaded"),
}


@pytest.mark.parametrize("name", WAYS)
@pytest.mark.parametrize("origin", (PAGE, "https://evil.example"))
def test_a_refusal_is_read_by_a_listed_origin_and_by_no_other(
    name: str, origin: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    way = WAYS[name]

    def broken(*_: object) -> None:
        raise RuntimeError

    async def story() -> Answered:
        options: dict[str, object] = {"bounds": BOUNDS, "cors_origins": [PAGE]}
        if way.go is _spent:
            options["plan"] = SCARCE
        if way.go is _full:
            options["echo"] = EchoExecutor(gate=Hold())
        if way.go is _broken:
            monkeypatch.setattr(caller_api, "standing_view", broken)
        async with inhouse(tmp_path, **options) as home:  # type: ignore[arg-type]
            who = page(home, origin, way.name)
            more = tuple((k.encode(), v.encode()) for k, v in way.headers)
            return await way.go(home, replace(who, more=(*who.more, *more)))

    answer = asyncio.run(story())
    assert answer.status == way.status, answer.body
    assert way.code is None or answer.error["code"] == way.code
    assert "Origin" in answer.headers.get("vary", "")
    if origin == PAGE:
        assert answer.headers[LEAVE[0]] == PAGE
        assert answer.headers[LEAVE[1]] == EXPOSED
    else:
        assert not any(each.startswith("access-control") for each in answer.headers)


def test_a_misdirected_request_is_readable_too_and_two_origins_are_none(tmp_path: Path) -> None:
    async def story() -> None:
        async with inhouse(tmp_path, cors_origins=[PAGE]) as home:
            elsewhere = await refused_by_host(home)
            assert (elsewhere.status, elsewhere.headers[LEAVE[0]]) == (421, PAGE)
            twice = page(home)
            twice = replace(twice, more=(*twice.more, (b"origin", b"https://evil.example")))
            answer = await twice.get("/v1/me")
            assert (answer.status, answer.error["code"]) == (400, "duplicate_header")
            assert LEAVE[0] not in answer.headers

    asyncio.run(story())


async def refused_by_host(home: Inhouse) -> Answered:
    inner = home.public

    async def misdirected(scope: object, receive: object, send: object) -> None:
        assert isinstance(scope, dict)
        headers = [(k, b"other.example" if k == b"host" else v) for k, v in scope["headers"]]
        await inner({**scope, "headers": headers}, receive, send)  # type: ignore[arg-type]

    return await replace(page(home), app=misdirected).get("/v1/me")


def test_a_stream_is_read_from_its_first_event_to_a_fault_in_it(tmp_path: Path) -> None:
    async def story() -> None:
        hold = Hold(1)
        async with inhouse(tmp_path, cors_origins=[PAGE], echo=EchoExecutor(gate=hold)) as home:
            exchange = page(home).start("POST", CHAT, chat_body(stream=True))
            await exchange.until(lambda each: bool(each.parts))
            await home.operator().post("/v1/admin/tenants/acme/suspend", {"reason": "test"})
            answer = await exchange.end()
            assert answer.headers[LEAVE[0]] == PAGE
            assert answer.headers[LEAVE[1]] == EXPOSED
            *_, fault, done = answer.events()
            assert (fault["error"]["code"], done) == ("authorization_revoked", "[DONE]")

    asyncio.run(story())


SENT = (
    *("authorization", "content-type", "idempotency-key", "x-api-key", "dpop", "user-agent"),
    *("x-stainless-os", "x-stainless-retry-count", "x-stainless-runtime-version"),
    *("x-stainless-helper-method", "x-stainless-timeout"),
    *("openai-organization", "openai-project", "anthropic-version", "anthropic-beta"),
    "anthropic-dangerous-direct-browser-access",
)


def test_a_preflight_allows_what_clients_send_before_anybody_is_known(tmp_path: Path) -> None:
    async def story() -> None:
        async with inhouse(tmp_path, cors_origins=[PAGE], bounds=BOUNDS) as home:
            home.switch["draining"] = True  # the request itself is told, and may then be read
            for path in (CHAT, "/v1/models", "/v1/me", "/nowhere"):
                asked = {"access_control_request_method": "POST"}
                asked["access_control_request_headers"] = ", ".join((*SENT, "x-evil", "cookie"))
                answer = await page(home, name=None, **asked).start("OPTIONS", path).end()
                assert (answer.status, answer.body) == (204, b"")
                assert answer.headers[LEAVE[0]] == PAGE
                allowed = answer.headers["access-control-allow-headers"].split(", ")
                assert allowed == list(SENT)
                assert answer.headers["vary"] == "Origin"

    asyncio.run(story())


@pytest.mark.parametrize(
    "origin",
    (
        *("https://evil.example", "null", "", "*", "https://app.example.com/", "app.example.com"),
        *("http://app.example.com", "https://app.example.com:443", "https://app.example.com:8443"),
        *("https://APP.example.com", "https://app.example.com.evil.example", "https://app.example"),
        *(f"{PAGE} https://evil.example", f"{PAGE},https://evil.example", f"https://evil/{PAGE}"),
    ),
)
def test_an_origin_is_matched_whole(origin: str, tmp_path: Path) -> None:
    async def story() -> None:
        async with inhouse(tmp_path, cors_origins=[PAGE]) as home:
            preflight = page(home, origin, None, access_control_request_method="POST")
            for answer in (
                await page(home, origin).get("/v1/me"),
                await preflight.start("OPTIONS", CHAT).end(),
            ):
                assert not any(each.startswith("access-control") for each in answer.headers)
                assert "Origin" in answer.headers["vary"]

    asyncio.run(story())


def test_administration_answers_no_page_whatever_is_listed(tmp_path: Path) -> None:
    async def story() -> None:
        async with inhouse(tmp_path, cors_origins=[PAGE]) as home:
            operator = home.operator().with_headers(
                origin=PAGE, access_control_request_method="POST"
            )
            for answer in (
                await operator.get("/v1/admin/status"),
                await operator.get("/v1/admin/nowhere"),
                await operator.start("OPTIONS", "/v1/admin/keys").end(),
                await replace(operator, credential=None).get("/v1/admin/status"),
            ):
                assert not any(each.startswith("access-control") for each in answer.headers)

    asyncio.run(story())


def test_every_header_that_answers_bear_is_exposed(tmp_path: Path) -> None:
    """But those of transport, which pages need not read, or may read anyway."""
    plain = re.compile(
        r"content-(type|length)|cache-control|vary|connection|x-accel-buffering|allow"
        r"|access-control-.*|x-content-type-options"
    )

    async def story() -> None:
        async with inhouse(tmp_path, cors_origins=[PAGE], plan=SCARCE) as home:
            key = {"idempotency_key": "a-key-of-a-page"}
            answers = [await page(home, **key).chat() for _ in range(2)]
            answers += [await page(home).chat(), await page(home, name=None).chat()]
            assert [each.status for each in answers] == [200, 200, 429, 401]
            named = {name for each in answers for name in each.headers if not plain.fullmatch(name)}
            assert "idempotent-replayed" in named
            assert named <= set(EXPOSED.split(", "))

    asyncio.run(story())
