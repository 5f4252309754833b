"""Each layer alone, against a server made of two queues."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import msgspec
import pytest

from gateway.errors import ApiError, invalid, shutting_down, unauthenticated
from gateway.middleware.body import BodyBounds, read_body
from gateway.middleware.cors import Cors, allowed_headers
from gateway.middleware.errors import Errors
from gateway.middleware.linger import Linger
from gateway.middleware.live import Live, Places
from gateway.middleware.request_id import RequestId
from gateway.middleware.security_headers import SecurityHeaders
from gateway.middleware.send_deadline import SendDeadline
from gateway.middleware.wire import (
    ASGIApp,
    ClientGone,
    Header,
    Message,
    Receive,
    Scope,
    Send,
    respond,
)
from tests.gateway.raw_http import fronted, until

END: Message = {"type": "http.request", "body": b"", "more_body": False}
GONE: Message = {"type": "http.disconnect"}


def part(body: bytes, *, more: bool = True) -> Message:
    return {"type": "http.request", "body": body, "more_body": more}


class Server:
    """`incoming` is given out in order, then nothing comes; what is sent is kept."""

    def __init__(
        self,
        *incoming: Message,
        headers: Sequence[Header] = (),
        method: str = "POST",
        raw_path: bytes = b"/v1/x",
    ) -> None:
        self.sent: list[Message] = []
        self.queue: asyncio.Queue[Message] = asyncio.Queue()
        for message in incoming:
            self.queue.put_nowait(message)
        self.scope: Scope = {
            "type": "http",
            "http_version": "1.1",
            "method": method,
            "path": raw_path.decode("latin-1"),
            "raw_path": raw_path,
            "query_string": b"",
            "headers": [(b"host", b"localhost"), *headers],
        }

    async def receive(self) -> Message:
        return await self.queue.get()

    async def send(self, message: Message) -> None:
        self.sent.append(message)

    async def serve(self, app: ASGIApp) -> None:
        await app(self.scope, self.receive, self.send)

    @property
    def status(self) -> int:
        status: int = self.sent[0]["status"]
        return status

    @property
    def headers(self) -> dict[bytes, bytes]:
        names = [name for name, _ in self.sent[0]["headers"]]
        assert len(names) == len(set(names))
        return dict(self.sent[0]["headers"])

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent[1:])


def run(scene: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(10):
            await scene()
        assert len(asyncio.all_tasks()) == 1  # no layer leaves a task behind

    asyncio.run(bounded())


def raising(fault: BaseException) -> ASGIApp:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        raise fault

    return app


async def ok(scope: Scope, receive: Receive, send: Send) -> None:
    await respond(send, 200, [], b"ok")


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    await respond(send, 200, [], await read_body(receive, limit=100))


# errors


def errors_of(app: ASGIApp) -> tuple[Server, list[tuple[str, Exception]]]:
    server, told = Server(), list[tuple[str, Exception]]()
    server.scope["state"] = {"request_id": "req_1"}
    layer = Errors(app, lambda request_id, fault: told.append((request_id, fault)))
    run(lambda: server.serve(layer))
    return server, told


def test_an_api_error_is_answered_as_it_says() -> None:
    server, told = errors_of(raising(unauthenticated()))
    assert server.status == 401
    assert server.headers[b"x-should-retry"] == b"false"
    assert server.headers[b"content-length"] == str(len(server.body)).encode()
    assert msgspec.json.decode(server.body) == unauthenticated().body()
    assert told == []


def test_an_unforeseen_exception_is_a_500_that_tells_the_caller_nothing() -> None:
    fault = RuntimeError("the secret prompt")
    server, told = errors_of(raising(fault))
    assert server.status == 500
    assert server.headers[b"connection"] == b"close"
    assert b"secret" not in server.body
    assert b"RuntimeError" not in server.body
    assert told == [("req_1", fault)]


def test_a_lone_exception_is_taken_out_of_its_groups() -> None:
    grouped = ExceptionGroup("a", [ExceptionGroup("b", [invalid("no")])])
    assert errors_of(raising(grouped))[0].status == 400
    assert errors_of(raising(ExceptionGroup("a", [invalid("no"), ValueError()])))[0].status == 500


def test_an_answer_that_began_is_left_unfinished() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise invalid("too late")

    server, told = errors_of(app)
    assert [message["type"] for message in server.sent] == ["http.response.start"]
    assert len(told) == 1


def test_nobody_is_answered_who_has_gone() -> None:
    server, told = errors_of(raising(ClientGone()))
    assert (server.sent, told) == ([], [])


def test_cancellation_is_no_error() -> None:
    with pytest.raises(asyncio.CancelledError):
        errors_of(raising(asyncio.CancelledError()))


@pytest.mark.parametrize("begun", (False, True))
def test_who_is_cancelled_before_its_answer_began_is_told_why(begun: bool) -> None:
    server = Server()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if begun:
            await send({"type": "http.response.start", "status": 200, "headers": []})
        await asyncio.Event().wait()

    async def scene() -> None:
        task = asyncio.create_task(server.serve(Errors(app, lambda *_: None)))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled()

    run(scene)
    assert server.status == (200 if begun else 503)
    assert begun or msgspec.json.decode(server.body) == shutting_down().body()
    assert len(server.sent) == (1 if begun else 2)


# request ids and headers


@pytest.mark.parametrize(
    ("sent", "kept"),
    (
        ([], None),
        ([b"abc-1"], "abc-1"),
        ([b"a" * 128], "a" * 128),
        ([b"a" * 129], None),
        ([b"a", b"b"], None),
        ([b"a b"], None),
        ([b"a\x1b[31m"], None),
        ([b"\xff"], None),
        ([b""], None),
    ),
)
def test_a_request_id_is_minted_and_the_callers_is_only_kept(
    sent: list[bytes], kept: str | None
) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        state = {"request_id": "req_7", "client_request_id": kept, "trace_id": None}
        assert scope["state"] == state
        await respond(send, 200, [(b"X-Request-Id", b"forged")], b"")

    server = Server(headers=[(b"x-request-id", value) for value in sent])
    run(lambda: server.serve(RequestId(app, lambda: "req_7")))
    assert server.headers[b"x-request-id"] == b"req_7"
    assert b"X-Request-Id" not in server.headers


@pytest.mark.parametrize(
    ("own", "expected"),
    (
        ([], b"no-store"),
        ([(b"cache-control", b"public")], b"no-store"),
        (
            [
                (b"content-type", b"text/event-stream; charset=utf-8"),
                (b"cache-control", b"no-cache, no-transform"),
            ],
            b"no-cache, no-transform",
        ),
    ),
)
def test_only_event_streams_say_themselves_how_they_are_cached(
    own: list[Header], expected: bytes
) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await respond(send, 200, own, b"")

    server = Server()
    run(lambda: server.serve(SecurityHeaders(app)))
    assert server.headers[b"cache-control"] == expected
    assert server.headers[b"x-content-type-options"] == b"nosniff"


# cors

ORIGIN = (b"origin", b"https://app.example.com")
PREFLIGHT = (b"access-control-request-method", b"POST")


def cors(
    *headers: Header, method: str = "POST", origins: Sequence[str] = ("https://app.example.com",)
) -> Server:
    server = Server(headers=headers, method=method)
    run(lambda: server.serve(Cors(ok, frozenset(origins))))
    return server


def test_a_listed_origin_may_read_answers_and_their_headers() -> None:
    server = cors(ORIGIN)
    assert server.body == b"ok"
    assert server.headers[b"access-control-allow-origin"] == ORIGIN[1]
    assert server.headers[b"vary"] == b"Origin"
    assert b"x-ratelimit-remaining-tokens" in server.headers[b"access-control-expose-headers"]
    assert b"access-control-allow-credentials" not in server.headers


def test_a_preflight_is_answered_with_the_names_it_may_send() -> None:
    asked = (
        b"access-control-request-headers",
        b"authorization, Content-Type,x-stainless-os,x-stainless-retry-count, x-evil, cookie",
    )
    server = cors(ORIGIN, PREFLIGHT, asked, method="OPTIONS")
    assert (server.status, server.body) == (204, b"")
    assert server.headers[b"access-control-allow-headers"] == (
        b"authorization, content-type, x-stainless-os, x-stainless-retry-count"
    )


@pytest.mark.parametrize(
    "origin",
    (
        b"https://evil.com",
        b"https://app.example.com.evil.com",
        b"https://app.example.com:443",
        b"http://app.example.com",
        b"null",
        b"https://APP.example.com",
        b"",
    ),
)
def test_another_origin_is_answered_without_leave(origin: bytes) -> None:
    for server in (
        cors((b"origin", origin)),
        cors((b"origin", origin), PREFLIGHT, method="OPTIONS"),
    ):
        assert server.body == b"ok"  # the app's answer, which has no route for OPTIONS
        assert server.headers[b"vary"] == b"Origin"
        assert not any(name.startswith(b"access-control") for name in server.headers)


def test_no_origin_is_allowed_by_default() -> None:
    server = cors(ORIGIN, PREFLIGHT, method="OPTIONS", origins=())
    assert set(server.headers) == {b"content-length"}


def test_asked_names_are_bounded() -> None:
    assert allowed_headers(",".join(f"x-stainless-{n}" for n in range(1000))).count(",") == 63
    assert allowed_headers("x-stainless-, x-stainless-a b, x-stainless-\xe9") == ""


# how many


def test_handlers_are_counted_and_given_back() -> None:
    async def scene() -> None:
        hold = asyncio.Event()

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            await hold.wait()
            raise ValueError

        live = Live(app, Places(2))
        held = [asyncio.create_task(Server().serve(live)) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(ApiError) as caught:
            await Server().serve(live)
        assert (caught.value.status, dict(caught.value.headers)) == (503, {"retry-after": "1"})
        probe = asyncio.create_task(Server(raw_path=b"/health").serve(live))
        held[0].cancel()
        hold.set()
        await asyncio.wait({*held, probe})
        assert isinstance(probe.exception(), ValueError)
        assert isinstance(held[1].exception(), ValueError)
        assert live.places.live == 0

    run(scene)


# bodies


def body_error(server: Server, *, limit: int = 5, body_s: float = 5.0) -> ApiError:
    with pytest.raises(ApiError) as caught:
        run(lambda: server.serve(BodyBounds(echo, limit, body_s)))
    return caught.value


def test_a_body_is_read_whole() -> None:
    server = Server(part(b"ab"), part(b""), part(b"cde"), END)
    run(lambda: server.serve(BodyBounds(echo, 5, 5.0)))
    assert server.body == b"abcde"


def test_a_declared_length_over_the_limit_is_refused_before_the_app() -> None:
    server = Server(headers=[(b"content-length", b"6")])
    error = body_error(server)
    assert (error.status, error.code) == (413, "request_too_large")


def test_a_chunked_body_is_refused_at_the_limit() -> None:
    server = Server(part(b"abc"), part(b"def"), part(b"g"))
    assert body_error(server).status == 413
    assert server.queue.qsize() == 1


def test_a_body_that_drips_is_refused_at_the_total_deadline() -> None:
    async def drip(server: Server) -> None:
        while True:
            server.queue.put_nowait(part(b""))
            await asyncio.sleep(0.01)

    async def scene() -> None:
        server = Server()
        dripping = asyncio.create_task(drip(server))
        with pytest.raises(ApiError) as caught:
            await server.serve(BodyBounds(echo, 5, 0.05))
        assert (caught.value.status, caught.value.code) == (408, "body_too_slow")
        dripping.cancel()
        await asyncio.wait({dripping})

    run(scene)


def test_the_deadline_ends_with_the_body() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await read_body(receive, limit=5)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(receive(), 0.03)

    run(lambda: Server(END).serve(BodyBounds(app, 5, 0.01)))


def test_reading_a_body_has_a_limit_and_notices_the_caller_leaving() -> None:
    async def scene() -> None:
        with pytest.raises(ClientGone):
            await read_body(Server(part(b"a"), GONE).receive, limit=5)
        with pytest.raises(ApiError, match="larger than 5 bytes"):
            await read_body(Server(part(b"abc"), part(b"def", more=False)).receive, limit=5)

    run(scene)


# early answers

LENGTH = (b"content-length", b"10")


def test_an_answer_after_the_body_is_left_alone() -> None:
    server = Server(part(b"ab"), END, headers=[LENGTH])
    run(lambda: server.serve(Linger(echo, 1.0)))
    assert b"connection" not in server.headers
    assert len(server.sent) == 2


@pytest.mark.parametrize("headers", ([], [(b"content-length", b"0")]))
def test_a_request_without_a_body_is_left_alone(headers: list[Header]) -> None:
    server = Server(headers=headers)
    run(lambda: server.serve(Linger(ok, 1.0)))
    assert b"connection" not in server.headers


def test_an_unread_body_that_is_all_there_costs_nothing() -> None:
    server = Server(part(b"0123456789"), END, headers=[LENGTH])
    run(lambda: server.serve(Linger(ok, 1.0)))
    assert b"connection" not in server.headers
    assert server.queue.empty()


def test_an_early_answer_closes_and_reads_the_rest_away() -> None:
    async def scene() -> None:
        server = Server(part(b"01"), headers=[(b"transfer-encoding", b"chunked")])
        serving = asyncio.create_task(server.serve(Linger(ok, 5.0)))
        await until(lambda: len(server.sent) == 2)
        assert server.headers[b"connection"] == b"close"
        assert server.body == b"ok"  # the caller has it all, and the end waits for the body's
        assert server.sent[-1]["more_body"] is True
        for message in [*[part(b"x" * 1000)] * 50, END]:
            server.queue.put_nowait(message)
        await serving
        assert server.sent[-1] == {"type": "http.response.body", "body": b"", "more_body": False}
        server.queue.put_nowait(GONE)
        await asyncio.sleep(0.01)

    run(scene)


def test_a_caller_who_never_ends_is_not_waited_for_long() -> None:
    async def scene() -> None:
        server = Server(headers=[LENGTH])
        await server.serve(Linger(ok, 0.01))
        assert server.sent[-1]["more_body"] is False
        server.queue.put_nowait(GONE)
        await asyncio.sleep(0.01)

    run(scene)


def test_a_handler_that_answers_early_still_learns_of_the_disconnect() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        assert await receive() == GONE

    async def scene() -> None:
        server = Server(headers=[LENGTH])
        serving = asyncio.create_task(server.serve(Linger(app, 0.01)))
        await until(lambda: bool(server.sent))
        server.queue.put_nowait(part(b"0"))
        server.queue.put_nowait(GONE)
        await serving

    run(scene)


# sends


def test_a_send_that_stalls_cancels_its_handler_once_and_it_unwinds() -> None:
    told: list[str] = []
    unwound: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": 200, "headers": []})
        except asyncio.CancelledError:
            await asyncio.sleep(0)  # unwinding may take its time: cancellation comes once
            with pytest.raises(ClientGone):
                await send({"type": "http.response.body"})
            unwound.append("settled")
            raise

    async def never(message: Message) -> None:
        await asyncio.Event().wait()

    async def scene() -> None:
        server = Server()
        server.scope["state"] = {"request_id": "req_1"}
        layer = SendDeadline(app, 0.01, told.append)
        await layer(server.scope, server.receive, never)
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0

    run(scene)
    assert (told, unwound) == (["req_1"], ["settled"])


def test_a_stall_seen_by_a_handlers_own_task_ends_the_handler_too() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(receive_for_ever(receive))
            group.create_task(respond_in_task(send))

    async def receive_for_ever(receive: Receive) -> None:
        await receive()

    async def respond_in_task(send: Send) -> None:
        await respond(send, 200, [], b"")

    async def never(message: Message) -> None:
        await asyncio.Event().wait()

    async def scene() -> None:
        server = Server()
        await SendDeadline(app, 0.01, lambda _: None)(server.scope, server.receive, never)

    run(scene)


def test_other_timeouts_and_cancellations_pass_through() -> None:
    async def scene() -> None:
        layer = SendDeadline(raising(TimeoutError()), 5.0, lambda _: None)
        with pytest.raises(TimeoutError):
            await Server().serve(layer)
        layer = SendDeadline(raising(asyncio.CancelledError()), 5.0, lambda _: None)
        with pytest.raises(asyncio.CancelledError):
            await Server().serve(layer)

    run(scene)


# the stack


def test_every_layer_waves_foreign_scopes_through() -> None:
    seen: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(scope["type"])

    server = Server()
    server.scope = {"type": "lifespan"}
    run(lambda: server.serve(fronted(app, origins=["https://a.example"])))
    assert seen == ["lifespan"]


def test_every_refusal_bears_the_stamps_of_an_answer() -> None:
    server = Server(headers=[ORIGIN], raw_path=b"/v1//x")
    run(lambda: server.serve(fronted(ok, origins=["https://app.example.com"])))
    assert server.status == 404
    assert server.headers[b"x-request-id"] == b"req_1"
    assert server.headers[b"cache-control"] == b"no-store"
    assert server.headers[b"access-control-allow-origin"] == ORIGIN[1]


TRACE = b"4bf92f3577b34da6a3ce929d0e0e4736"


@pytest.mark.parametrize(
    ("sent", "kept"),
    (
        ([b"00-%b-00f067aa0ba902b7-01" % TRACE], TRACE.decode()),
        ([b"00-%b-00f067aa0ba902b7-00" % TRACE], TRACE.decode()),
        ([b"cc-%b-00f067aa0ba902b7-01-what-comes-later" % TRACE], TRACE.decode()),
        ([b"00-%b-00f067aa0ba902b7-01-more" % TRACE], None),
        ([b"cc-%b-00f067aa0ba902b7-01more" % TRACE], None),
        ([b"ff-%b-00f067aa0ba902b7-01" % TRACE], None),
        ([b"00-%b-00f067aa0ba902b7-01" % TRACE.upper()], None),
        ([b"00-%b-00f067aa0ba902b7-01" % (b"0" * 32)], None),
        ([b"00-%b-%b-01" % (TRACE, b"0" * 16)], None),
        ([b"00-%b-00f067aa0ba902b7-01" % TRACE] * 2, None),
        ([b"alice"], None),
        ([b""], None),
        ([], None),
    ),
)
def test_of_a_callers_trace_only_its_id_is_kept(sent: list[bytes], kept: str | None) -> None:
    """The examples of W3C Trace Context §3.2, and what is none."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["state"]["trace_id"] == kept
        await respond(send, 200, [], b"")

    server = Server(headers=[(b"traceparent", value) for value in sent])
    run(lambda: server.serve(RequestId(app, lambda: "req_7")))
