"""The front in one place: what a request's head must be, and the stack of layers around an app.

`check_head` is pure: a request's head and the rules in, the one true path out, or an ApiError.  It
decides on the raw path, and hands the router a path that it has read itself: no percent-encoding,
no dot segment, no doubled slash, no parameter survives, so no two ways of writing reach one route.
Refuses to know: who asks, what routes exist (one exception: model names may hold a slash).
Source: SECURITY.md §0, §4 (W4, W5, W11, J19), §5 (Host poisoning, CVE-2026-48710), DESIGN.md 11.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from urllib.parse import unquote_to_bytes

from gateway.door import Door
from gateway.errors import ApiError, invalid, not_found
from gateway.middleware.body import BodyBounds, read_body
from gateway.middleware.cors import Cors
from gateway.middleware.errors import Errors
from gateway.middleware.linger import Linger
from gateway.middleware.live import Live, Places
from gateway.middleware.request_id import RequestId
from gateway.middleware.security_headers import SecurityHeaders
from gateway.middleware.send_deadline import SendDeadline
from gateway.middleware.turn import Turn
from gateway.middleware.wire import ASGIApp, ClientGone, Header, Receive, Scope, Send

__all__ = ["ClientGone", "FrontBounds", "Guard", "check_head", "front", "read_body"]

SINGLETONS = (
    b"authorization",
    b"content-encoding",
    b"content-length",
    b"content-type",
    b"dpop",
    b"expect",
    b"host",
    b"idempotency-key",
    b"origin",
    b"transfer-encoding",
    b"x-api-key",
)
MODELS = "/v1/models/"
_SEGMENT = r"[A-Za-z0-9._~!$&'()*+,=:@-]+"
_PATH = re.compile(rf"/|(?:/(?!\.{{1,2}}(?:/|$)){_SEGMENT})+")
_MODEL_RAW = re.compile(r"(?:[A-Za-z0-9._~!$&'()*+,=:@/-]|%[0-9A-Fa-f]{2})+")
_MODEL_PART = re.compile(r"(?!\.{1,2}$)[^\x00-\x20\x7f-\x9f/\\%;?#]+")
_HOST = re.compile(r"([a-z0-9](?:[a-z0-9.-]{0,252})|\[[0-9a-f:.]{2,45}\])(:[0-9]{1,5})?")
_QUERY_TOKEN = re.compile(rb"(?:^|&)(?:access_token|api_key|api-key|token)=", re.IGNORECASE)


def check_head(
    *,
    http_version: str,
    raw_path: bytes,
    query: bytes,
    headers: Iterable[Header],
    hosts: Collection[str],
) -> str:
    """The path to route on.  `hosts` are lower case; one with a port allows that port only."""
    if http_version != "1.1":
        raise ApiError(
            505, "invalid_request_error", "http_version_not_supported", "Only HTTP/1.1 is served."
        )
    single = _singletons(headers)
    _check_host(single.get(b"host"), hosts)
    path = route_path(raw_path)
    coding = single.get(b"content-encoding", b"identity").lower()
    if coding != b"identity":
        raise ApiError(
            415,
            "invalid_request_error",
            "content_encoding_not_supported",
            "Compressed bodies are not accepted; send the body as it is, without Content-Encoding.",
        )
    if single.get(b"expect", b"100-continue").lower() != b"100-continue":
        raise ApiError(
            417,
            "invalid_request_error",
            "expectation_failed",
            "The only expectation met is 'Expect: 100-continue'.",
        )
    if _QUERY_TOKEN.search(query):
        raise invalid(
            "A credential in the URL ends up in logs and is not accepted; send it as "
            "'Authorization: Bearer …'.",
            code="credential_in_query",
        )
    return path


def route_path(raw_path: bytes) -> str:
    """Raw path → path, or 404.  Only a model's name may be percent-encoded."""
    try:
        raw = raw_path.decode("ascii")
    except UnicodeDecodeError:
        raise not_found() from None
    if _PATH.fullmatch(raw):
        return raw
    if raw.startswith(MODELS) and (name := _model_name(raw.removeprefix(MODELS))) is not None:
        return MODELS + name
    raise not_found()


def _model_name(raw: str) -> str | None:
    """`org%2Fname` → `org/name`.  Decoded once; what would still need decoding, or would mean
    another path, is no name."""
    if _MODEL_RAW.fullmatch(raw) is None:
        return None
    try:
        name = unquote_to_bytes(raw).decode("utf-8")
    except UnicodeDecodeError:
        return None
    parts = name.split("/")
    return name if all(_MODEL_PART.fullmatch(part) for part in parts) else None


def _singletons(headers: Iterable[Header]) -> Mapping[bytes, bytes]:
    found: dict[bytes, bytes] = {}
    for name, value in headers:
        if name not in SINGLETONS:
            continue
        if name in found:
            said = name.decode("ascii").title()
            raise invalid(f"{said} stands more than once; send it once.", code="duplicate_header")
        found[name] = value
    return found


def _check_host(value: bytes | None, hosts: Collection[str]) -> None:
    match = _HOST.fullmatch(value.decode("latin-1").lower()) if value is not None else None
    if match is None:
        raise invalid("The Host header is not 'name' or 'name:port'.", code="invalid_host")
    name, port = match[1], match[2] or ""
    if name not in hosts and name + port not in hosts:
        raise ApiError(
            421,
            "invalid_request_error",
            "misdirected_request",
            "This server does not answer for that host. Use the address you were given, or have "
            "the name added to [listen] hosts.",
        )


@dataclass(frozen=True, slots=True)
class Guard:
    """Let through only requests whose head reads one way, with `scope["path"]` as we read it."""

    app: ASGIApp
    hosts: Collection[str]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        path = check_head(
            http_version=scope["http_version"],
            raw_path=scope["raw_path"],
            query=scope["query_string"],
            headers=scope["headers"],
            hosts=self.hosts,
        )
        await self.app({**scope, "path": path, "root_path": ""}, receive, send)


@dataclass(frozen=True, slots=True)
class FrontBounds:
    live_max: int = 1024
    body_bytes_max: int = 4 * 1024 * 1024
    body_s: float = 30.0
    send_s: float = 30.0
    linger_s: float = 2.0


def front(
    app: ASGIApp,
    *,
    hosts: Collection[str],
    origins: Collection[str],
    mint: Callable[[], str],
    report: Callable[[str, Exception], None],
    stalled: Callable[[str], None],
    bounds: FrontBounds | None = None,
    door: Door | None = None,
) -> ASGIApp:
    """`app` behind the whole front, for one listener.  Read up, it is a request's way in.  `door`: of the
    listener whose requests wait for their turn.

    What answers stands inside Linger, since any answer may be early; what raises ApiError stands
    inside Errors; what stamps answers stands outside both.  `app` must not be `Starlette` itself,
    whose outermost layer would answer 500 for our exceptions: a `Router` is right."""
    bounds = bounds or FrontBounds()
    allowed = frozenset(host.lower() for host in hosts)
    assert allowed  # settings refuse an empty list; without one nobody could be answered
    layered: ASGIApp = Guard(app, allowed)
    layered = BodyBounds(layered, bounds.body_bytes_max, bounds.body_s)
    if door is not None:
        layered = Turn(layered, door)
    layered = Live(layered, Places(bounds.live_max) if door is None else door.places)
    layered = Errors(layered, report)
    layered = Cors(layered, frozenset(origins))
    layered = Linger(layered, bounds.linger_s)
    layered = SecurityHeaders(layered)
    layered = RequestId(layered, mint)
    return SendDeadline(layered, bounds.send_s, stalled)
