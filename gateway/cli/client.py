"""The one road from a command to a server's admin listener: JSON out, JSON in, or a `Refusal`.

Errors arrive as problem+json (RFC 9457) and leave as one sentence.  Refuses to follow redirects (the
token would go along), to use a proxy for this machine, and to read answers without bound.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import httpx2
import msgspec

from gateway.cli.show import Refusal, clean

ANSWER_BYTES_MAX = 64 << 20
KNOWN_BYTES_MAX = 1 << 20
TIMEOUT_S = 30.0
LONG_S = 900.0
"""For what reads a whole month."""
OPERATOR = "operator"
DEMO_USER = "acme/alice"
TYPE = "urn:lockgate:"
"""What a problem's `type` begins with; its code follows."""
_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})


class Known(msgspec.Struct, frozen=True):
    """`dev.json`: how to reach a development server, and tokens by name."""

    base_url: str
    admin_url: str
    tokens: dict[str, str]


class Problem(msgspec.Struct, frozen=True):
    """RFC 9457, as far as a person reads it."""

    type: str | None = None
    title: str | None = None
    detail: str | None = None


@dataclass(frozen=True, slots=True)
class Server:
    """`transport`: tests put a fake one here."""

    url: str
    token: str = field(repr=False)
    transport: httpx2.BaseTransport | None = None

    def get(
        self, path: str, params: Mapping[str, Any] | None = None, *, timeout_s: float = TIMEOUT_S
    ) -> Any:
        return self._ask("GET", path, params, None, timeout_s)

    def post(self, path: str, body: Mapping[str, Any], *, timeout_s: float = TIMEOUT_S) -> Any:
        given = {name: value for name, value in body.items() if value is not None}
        return self._ask("POST", path, None, given, timeout_s)

    def download(
        self, path: str, params: Mapping[str, Any], take: Callable[[bytes], object]
    ) -> None:
        """An answer of any length, handed on as it comes.  Refusal where it broke off."""
        asked = {name: value for name, value in params.items() if value is not None}
        with self.open(LONG_S) as client:
            try:
                with client.stream("GET", path, params=asked) as answer:
                    if not answer.is_success:
                        raw = _bounded(answer)
                        raise refused(answer.status_code, raw, answer.headers.get("x-request-id"))
                    for chunk in answer.iter_bytes():
                        take(chunk)
            except httpx2.HTTPError as error:
                raise unreachable(self.url, error, "--admin-url") from None

    def put(self, path: str, body: Mapping[str, Any]) -> Any:
        return self._ask("PUT", path, None, body)

    def delete(self, path: str) -> Any:
        return self._ask("DELETE", path, None, None)

    def patch(self, path: str, body: Mapping[str, Any]) -> Any:
        given = {name: value for name, value in body.items() if value is not None}
        return self._ask("PATCH", path, None, given)

    def open(self, timeout_s: float = TIMEOUT_S) -> httpx2.Client:
        """For whoever streams.  The caller closes it."""
        host = host_of(self.url)
        if not self.token.isascii() or not self.token.isprintable() or " " in self.token:
            raise Refusal("The token holds characters that no token has. Copy it again.")
        return httpx2.Client(
            base_url=self.url,
            headers={"authorization": f"Bearer {self.token}", "accept": "application/json"},
            timeout=timeout_s,
            transport=self.transport,
            trust_env=host not in _LOOPBACK,
            follow_redirects=False,
        )

    def _ask(
        self,
        method: str,
        path: str,
        params: Mapping[str, Any] | None,
        body: Mapping[str, Any] | None,
        timeout_s: float = TIMEOUT_S,
    ) -> Any:
        asked = {name: value for name, value in (params or {}).items() if value is not None}
        content = None if body is None else msgspec.json.encode(body)
        headers = {} if body is None else {"content-type": "application/json"}
        with self.open(timeout_s) as client:
            try:
                with client.stream(
                    method, path, params=asked, content=content, headers=headers
                ) as answer:
                    raw = _bounded(answer)
            except httpx2.HTTPError as error:
                raise unreachable(self.url, error, "--admin-url") from None
        if not answer.is_success:
            refusal = refused(answer.status_code, raw, answer.headers.get("x-request-id"))
            if (wait_s := number_of(answer, "retry-after")) is not None:
                refusal.facts["retry_after_s"] = wait_s
            raise refusal
        if answer.status_code == 204:
            return {}
        try:
            return msgspec.json.decode(raw)
        except (msgspec.DecodeError, RecursionError):
            raise Refusal(
                f"{self.url} answered, but not as Lockgate's administration does. "
                "Is --admin-url the admin listener?"
            ) from None


def connect(
    admin_url: str | None, token: str | None, state_dir: Path, *, name: str = OPERATOR
) -> Server:
    """What was given, and for the rest what the development server in `state_dir` left."""
    require_given(token)
    if admin_url and token:
        return Server(admin_url, token)
    known = read_known(state_dir, "--admin-url and --token")
    if not token and admin_url and admin_url.rstrip("/") != known.admin_url.rstrip("/"):
        raise Refusal(
            f"{clean(admin_url)} is not the development server of {state_dir}; its tokens are not sent "
            "elsewhere. Give --token."
        )
    return Server(admin_url or known.admin_url, token or token_named(known, name, state_dir))


def require_given(token: str | None) -> None:
    """An empty token is a variable that was not set, and no wish to act as somebody else."""
    if token is not None and not token.strip():
        raise Refusal("--token is empty. Is a variable not set? Give a token, or leave it out.")


def token_named(known: Known, name: str, state_dir: Path) -> str:
    if name not in known.tokens:
        names = ", ".join(sorted(known.tokens)) or "none"
        raise Refusal(f"{state_dir}/dev.json has no token {name!r}. It has: {names}.")
    return known.tokens[name]


def read_known(state_dir: Path, instead: str) -> Known:
    path = state_dir / "dev.json"
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        with os.fdopen(fd, "rb") as file:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise IsADirectoryError
            raw = file.read(KNOWN_BYTES_MAX)
        return msgspec.json.decode(raw, type=Known)
    except FileNotFoundError:
        raise Refusal(
            f"No server is known here: {path} does not exist. Start one with 'lockgate serve', name its "
            f"state directory with --state-dir, or give {instead}."
        ) from None
    except OSError as error:
        raise Refusal(f"{path} cannot be read: {error.strerror}. Give {instead}.") from None
    except msgspec.DecodeError:
        raise Refusal(f"{path} is damaged. Restart the server, or give {instead}.") from None


def host_of(url: str) -> str:
    """Raises Refusal for what is no server's address."""
    try:
        parts = urlsplit(url)
        host = parts.hostname if parts.scheme in {"http", "https"} and parts.port != 0 else None
    except ValueError:
        host = None
    if not host:
        raise Refusal(
            f"{clean(url)} is not a server's address. Expected http://HOST:PORT or https://…."
        )
    return host


def is_loopback(url: str) -> bool:
    return host_of(url) in _LOOPBACK


def segment(name: str) -> str:
    """A name as one segment of a path, whatever it holds."""
    return quote(name, safe="")


def unreachable(url: str, error: httpx2.HTTPError, option: str) -> Refusal:
    if isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout):
        return Refusal(
            f"No server answers at {clean(url)}. Start one with 'lockgate serve', or correct {option}."
        )
    if isinstance(error, httpx2.TimeoutException):
        return Refusal(
            f"{clean(url)} did not answer in time. It may be overloaded; its log says more."
        )
    return Refusal(
        f"The connection to {clean(url)} broke ({type(error).__name__}). Is it the right port?"
    )


def refused(status: int, raw: bytes, request_id: str | None) -> Refusal:
    """One sentence for a status.  The server's own words come along where it is allowed to speak."""
    problem = _problem(raw)
    said = clean(words) if (words := problem.detail or problem.title) else None
    text = {
        401: "The server did not accept the token. Give a current one with --token. A development "
        "server writes fresh ones to dev.json at each start.",
        403: f"This token may not do that{_colon(said)} Use one with the role it takes.",
        404: said or "The server knows no such thing. Check the spelling.",
        429: f"Too many requests{_colon(said)} Wait a moment.",
    }.get(status)
    if text is None and 300 <= status < 400:
        text = "The server wants to send us elsewhere, which is refused. Correct --admin-url."
    if text is None and status >= 500:
        text = f"The server could not do it{_colon(said)} Its log says more" + (
            f" (request {clean(request_id)})." if request_id else "."
        )
    refusal = Refusal(text or said or f"The server refused with status {status}.", status=status)
    if problem.type is not None and problem.type.startswith(TYPE):
        refusal.facts["code"] = clean(problem.type.removeprefix(TYPE))
    return refusal


def number_of(answer: httpx2.Response, name: str) -> int | None:
    """A header that is a plain number; None where it is absent or none."""
    value = answer.headers.get(name, "")
    return int(value) if value.isascii() and value.isdigit() and len(value) < 16 else None


def _problem(raw: bytes) -> Problem:
    try:
        return msgspec.json.decode(raw, type=Problem)
    except (msgspec.DecodeError, RecursionError):
        return Problem()


def _colon(said: str | None) -> str:
    return f": {said.rstrip('.')}." if said else "."


def _bounded(answer: httpx2.Response) -> bytes:
    raw = bytearray()
    for chunk in answer.iter_bytes():
        raw += chunk
        if len(raw) > ANSWER_BYTES_MAX:
            raise Refusal("The answer is larger than 64 MiB. Ask for less, such as fewer days.")
    return bytes(raw)
