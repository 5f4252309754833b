"""The `Idempotency-Key` of a request: what it is, what it belongs to, and what is said of it.

A key belongs to its tenant, its principal (issuer, user, and the API key where it is one) and its route.  Stored is
a keyed digest of all that, and one of what is asked in its canonical form, so that neither can be read or guessed
from the database.  The executor hears 16 bytes made of the same, by which it keeps the place of who was refused
for a backlog and comes again.

Refuses to know: what is stored under a key (`runs`), what a body means.
Source: draft-ietf-httpapi-idempotency-key-header-07; DESIGN.md, settled question 6; API.md §1 (errors).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from gateway import strict_json
from gateway.errors import ApiError, conflict, invalid, unavailable
from policies.facts import CredentialKind, Principal
from policies.idempotency import Verdict
from security.keyring import Keyring
from tenants.idempotency import Claim, Found

HEADER: Final = b"idempotency-key"
INLINE_BYTES_MAX: Final = 64 * 1024
"""Larger bodies are put into canonical form off the event loop."""
RUNNING_S: Final = 2
_KEY: Final = re.compile(rb"[\x21-\x7e]{1,255}")


def client_key(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """The guard let at most one in.  Raises ApiError 400."""
    for name, value in headers:
        if name == HEADER:
            if _KEY.fullmatch(value) is None:
                raise invalid(
                    "Idempotency-Key must have 1 to 255 visible ASCII characters, without spaces. Send "
                    "a random UUID, the same one for each try of one request.",
                    code="invalid_idempotency_key",
                )
            return value.decode("ascii")
    return None


def retry_key(
    of: Callable[[tuple[str, ...]], bytes], who: Principal, route: str, key: str | None
) -> bytes | None:
    if key is None:
        return None
    return of((who.tenant or "", who.issuer, who.user, route, key))


@dataclass(frozen=True, slots=True)
class Asked:
    """What is asked by a key.  `stream`: its answer can be read along while it is said."""

    claim: Claim
    stream: bool


@dataclass(frozen=True, slots=True)
class Digests:
    """Keyed, and meaningless without the root key."""

    _key: Callable[[Sequence[bytes]], bytes] = field(repr=False)
    _body: Callable[[Sequence[bytes]], bytes] = field(repr=False)

    @classmethod
    def of(cls, keyring: Keyring) -> Digests:
        return cls(keyring.idempotency("key"), keyring.idempotency("body"))

    def key(self, who: Principal, route: str, key: str) -> str:
        """`route`: with its method.  An absent tenant or API key is not an empty one."""
        credential = who.credential
        api_key = credential.id if credential.kind is CredentialKind.KEY else None
        parts = (who.tenant, who.issuer, who.user, api_key, route, key)
        return self._key([_present(part) for part in parts]).hex()

    def body(self, digest: str, target: bytes, body: bytes) -> bytes:
        """`target`: path and query.  Equal bodies under two keys have two digests."""
        return self._body([digest.encode(), target, body])


def _present(part: str | None) -> bytes:
    return b"-" if part is None else b"+" + part.encode()


async def canonical(body: bytes) -> tuple[bytes, bool]:
    """A body in its canonical form, and whether it asks for a stream.  What is no JSON stands for itself: it will be
    refused."""
    if len(body) <= INLINE_BYTES_MAX:
        return _canonical(body)
    return await asyncio.to_thread(_canonical, body)


def _canonical(body: bytes) -> tuple[bytes, bool]:
    if not body:
        return b"", False
    try:
        value = strict_json.loads(body)
        written = msgspec.json.encode(value, order="deterministic")
    except (ApiError, msgspec.MsgspecError, OverflowError, UnicodeError, RecursionError):
        return body, False
    return written, isinstance(value, dict) and value.get("stream") is True


# What a request hears that comes by a key and is not the first.


def refused(found: Found) -> ApiError:
    """Of every verdict but RUN and REPLAY."""
    match found.verdict:
        case Verdict.REUSED:
            return reused()
        case Verdict.RUNNING:
            return running()
        case Verdict.UNKNOWN:
            return unknown(found.request_id)
        case Verdict.FULL:
            return keys_full()
    return gone(found)


def reused() -> ApiError:
    return ApiError(
        422,
        "invalid_request_error",
        "idempotency_key_reuse",
        "This Idempotency-Key came with another request before. Send the same request by it, or this one by a new "
        "key.",
        headers={"x-should-retry": "false"},
    )


def running() -> ApiError:
    return ApiError(
        409,
        "conflict",
        "idempotency_in_flight",
        "A request by this Idempotency-Key is still running. Come again by the same key: its answer is then told.",
        headers={"retry-after": str(RUNNING_S)},
    )


def unknown(request_id: str) -> ApiError:
    return conflict(
        "idempotency_unknown",
        f"Whoever worked on this ended in the midst of it, as {request_id}, so whether it was done may be known to "
        "nobody. It is not done again by this key. Look (of a completion, /v1/requests/ with that id says what it "
        "cost), and send what is still wanted by a new key.",
    )


_WHY: Final = {
    "cut": "was cut short, and what was generated of it is charged",
    "oversize": "was too large to be kept",
    "full": "found no room among your tenant's kept answers",
    "changed": "was made from a text that has changed since",
    "secret": "held a secret, which is shown once and kept nowhere",
}


def gone(found: Found) -> ApiError:
    why = _WHY.get(found.why or "", "is not kept any more")
    return conflict(
        "idempotency_result_gone",
        f"This was done, as {found.request_id}, and is not done again by this key; its answer {why}. To do it again, send "
        "a new key.",
    )


def keys_full() -> ApiError:
    return ApiError(
        429,
        "rate_limit_error",
        "idempotency_keys_full",
        "Too many of your tenant's Idempotency-Keys are remembered. They are forgotten a day after their use; until then "
        "send requests without one.",
        headers={"retry-after": "60", "x-should-retry": "false"},
    )


def keys_down() -> ApiError:
    return unavailable(
        "Whether this Idempotency-Key was used could not be looked up, so nothing was done. Try again.",
        code="idempotency_down",
    )
