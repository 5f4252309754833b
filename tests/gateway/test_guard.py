"""What a head must be: the pure decision, and that nothing else reaches an app."""

from __future__ import annotations

import asyncio

import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, Router

from gateway.errors import ApiError
from gateway.guard import Guard, check_head, route_path
from gateway.middleware.wire import Header, Message, Receive, Scope, Send

HOSTS = frozenset({"llm.example.com", "admin.example.com:8081", "127.0.0.1", "[::1]"})


def head(
    *headers: Header,
    host: bytes = b"llm.example.com",
    path: bytes = b"/v1/x",
    query: bytes = b"",
    version: str = "1.1",
) -> str:
    return check_head(
        http_version=version,
        raw_path=path,
        query=query,
        headers=[(b"host", host), *headers],
        hosts=HOSTS,
    )


def refusal(*headers: Header, **kwargs: bytes) -> tuple[int, str | None]:
    with pytest.raises(ApiError) as caught:
        head(*headers, **kwargs)  # type: ignore[arg-type]  # a version is no concern here
    return caught.value.status, caught.value.code


@pytest.mark.parametrize(
    "host",
    (
        b"llm.example.com",
        b"LLM.Example.COM",
        b"llm.example.com:443",
        b"llm.example.com:8080",
        b"admin.example.com:8081",
        b"127.0.0.1:8080",
        b"[::1]",
        b"[::1]:8080",
    ),
)
def test_listed_hosts_pass_with_any_port_or_the_one_listed(host: bytes) -> None:
    assert head(host=host) == "/v1/x"


@pytest.mark.parametrize(
    ("host", "status"),
    (
        (b"evil.com", 421),
        (b"llm.example.com.evil.com", 421),
        (b"xllm.example.com", 421),
        (b"llm.example.com.", 421),
        (b"admin.example.com", 421),
        (b"admin.example.com:8082", 421),
        (b"[::2]", 421),
        (b"", 400),
        (b"llm.example.com/health", 400),
        (b"llm.example.com?x", 400),
        (b"llm.example.com#x", 400),
        (b"user@llm.example.com", 400),
        (b"llm.example.com\\x", 400),
        (b"llm.example.com:", 400),
        (b"llm.example.com:80:80", 400),
        (b"llm.example.com:808080", 400),
        (b"llm.example.com:x", 400),
        (b"llm.example.com, llm.example.com", 400),
        (b"llm.example.com llm.example.com", 400),
        (b"llm%2eexample.com", 400),
        (b"llm_example.com", 400),
        (b"\xe1llm.example.com", 400),
        (b"::1", 400),
        (b"[::1", 400),
        (b"*", 400),
        (b"." * 300, 400),
        (b"a" * 300, 400),
    ),
)
def test_other_hosts_never_reach_routing(host: bytes, status: int) -> None:
    assert refusal(host=host)[0] == status


def test_without_a_host_or_with_two_nothing_passes() -> None:
    with pytest.raises(ApiError):
        check_head(http_version="1.1", raw_path=b"/", query=b"", headers=[], hosts=HOSTS)
    assert refusal((b"host", b"llm.example.com")) == (400, "duplicate_header")


@pytest.mark.parametrize(
    "path",
    (
        "/",
        "/v1/chat/completions",
        "/v1/models/org/name",
        "/v1/models/llama3:8b",
        "/v1/requests/req_1",
        "/a.b/...",
        "/~x/@y,z",
        "/v1/modelsx",
    ),
)
def test_plain_paths_are_themselves(path: str) -> None:
    assert route_path(path.encode()) == path


@pytest.mark.parametrize(
    ("raw", "path"),
    (
        (b"/v1/models/org%2Fname", "/v1/models/org/name"),
        (b"/v1/models/org%2fname%3A8b", "/v1/models/org/name:8b"),
        (b"/v1/models/n%C3%A4me", "/v1/models/näme"),
    ),
)
def test_only_a_models_name_is_decoded(raw: bytes, path: str) -> None:
    assert route_path(raw) == path


@pytest.mark.parametrize(
    "raw",
    (
        b"",
        b"v1",
        b"*",
        b"//",
        b"//evil/v1",
        b"/v1//chat",
        b"/v1/",
        b"/v1/chat/completions/",
        b"/v1/../admin",
        b"/v1/..",
        b"/..",
        b"/.",
        b"/./v1",
        b"/v1/./x",
        b"/v1/chat%2fcompletions",
        b"/v1/chat%2Fcompletions",
        b"/v1%2fmodels/x",
        b"/v1/mod%65ls/x",
        b"/v1/chat;x/completions",
        b"/v1/chat/completions;x",
        b"/v1/x%00",
        b"/v1/x%",
        b"/v1/x%2",
        b"/v1/%2e%2e/admin",
        b"/%2e/x",
        b"/v1\\chat",
        b"/v1/x\x00",
        b"/v1/x y",
        b"/v1/\xc3\xa9",
        b'/v1/"x"',
        b"/v1/models/",
        b"/v1/models/../admin",
        b"/v1/models/%2e%2e%2fadmin",
        b"/v1/models/a%2F..%2Fb",
        b"/v1/models/a%2F%2Fb",
        b"/v1/models/a//b",
        b"/v1/models/%2Fa",
        b"/v1/models/a%2F",
        b"/v1/models/a%252Fb",
        b"/v1/models/a%00",
        b"/v1/models/a%0d%0a",
        b"/v1/models/a%20b",
        b"/v1/models/a%3Bx",
        b"/v1/models/a%3Fx",
        b"/v1/models/a%23x",
        b"/v1/models/a%5Cb",
        b"/v1/models/a%7F",
        b"/v1/models/a%C2%80",
        b"/v1/models/a%ff",
        b"/v1/models/a%C0%AF",
        b"/v1/models/a;x",
        b"/v1/models/a%",
        b"/v1/models/a%zz",
        b"/v1/models/%2e",
    ),
)
def test_every_other_spelling_is_404_by_its_raw_path(raw: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        route_path(raw)
    assert (caught.value.status, caught.value.code) == (404, "not_found")


@pytest.mark.parametrize(
    "name",
    (
        b"authorization",
        b"x-api-key",
        b"content-type",
        b"content-length",
        b"content-encoding",
        b"idempotency-key",
        b"origin",
        b"expect",
    ),
)
def test_what_may_stand_once_stands_once(name: bytes) -> None:
    value = {b"content-encoding": b"identity", b"expect": b"100-continue"}.get(name, b"1")
    assert head((name, value)) == "/v1/x"
    assert refusal((name, value), (name, value)) == (400, "duplicate_header")
    assert refusal((name, value), (b"x", b"y"), (name, b"2")) == (400, "duplicate_header")


def test_what_may_stand_twice_may() -> None:
    assert head((b"accept", b"a"), (b"accept", b"b"), (b"cookie", b"c"), (b"cookie", b"d"))


@pytest.mark.parametrize("coding", (b"gzip", b"br", b"GZIP", b"identity, gzip", b"zstd", b"", b"x"))
def test_compressed_bodies_are_not_inflated(coding: bytes) -> None:
    assert refusal((b"content-encoding", coding)) == (415, "content_encoding_not_supported")


def test_identity_is_no_compression() -> None:
    assert head((b"content-encoding", b"Identity"))


def test_expectations() -> None:
    assert head((b"expect", b"100-Continue"))
    assert refusal((b"expect", b"200-ok")) == (417, "expectation_failed")


@pytest.mark.parametrize(
    "query", (b"access_token=x", b"a=1&access_token=x", b"Access_Token=x", b"api_key=x", b"token=")
)
def test_credentials_in_the_url_are_refused(query: bytes) -> None:
    assert refusal(query=query) == (400, "credential_in_query")
    assert head(query=b"max_tokens=5&next_token_id=x&after=token")


def test_other_versions_of_http_are_refused() -> None:
    for version in ("1.0", "2", "3"):
        with pytest.raises(ApiError) as caught:
            head(version=version)
        assert caught.value.status == 505


def test_a_starlette_router_behind_the_guard_sees_our_reading_of_the_path() -> None:
    async def model(request: Request) -> Response:
        return JSONResponse({"id": request.path_params["id"]})

    router = Router([Route("/v1/models/{id:path}", model)], redirect_slashes=False)
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    scope: Scope = {
        "type": "http",
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": "/v1/models/org/name",
        "raw_path": b"/v1/models/org%2Fname",
        "root_path": "/v1",  # a proxy's claim changes nothing
        "query_string": b"",
        "headers": [(b"host", b"llm.example.com")],
    }
    asyncio.run(Guard(router, HOSTS)(scope, receive, send))
    assert sent[1]["body"] == b'{"id":"org/name"}'


def test_foreign_scopes_are_waved_through() -> None:
    seen: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(scope["type"])

    async def never() -> Message:
        raise AssertionError

    async def nothing(message: Message) -> None:
        raise AssertionError

    asyncio.run(Guard(app, HOSTS)({"type": "lifespan"}, never, nothing))
    assert seen == ["lifespan"]
