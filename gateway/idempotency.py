"""The `Idempotency-Key` of a request, and what is made of it.

Today it is good for one thing: a request that was refused for its tenant's own backlog and comes again by
its key, when it was told to, finds its place kept.  Who may do what is not decided by it, nothing is stored
under it, and equal keys with different bodies are two requests.

The executor hears 16 bytes made of the key and of all that it belongs to, so another tenant's, another
principal's or another endpoint's equal key is another.
Source: draft-ietf-httpapi-idempotency-key-header-07; DESIGN.md, settled question 6.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Final

from gateway.errors import invalid
from policies.facts import Principal

HEADER: Final = b"idempotency-key"
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
