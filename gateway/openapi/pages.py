"""How the document is served: as it is, and as a page of our own that reads it.

    GET /openapi.json      GET /docs      GET /docs/docs.js      GET /docs/docs.css

On the admin listener always, on the public one only where `listen.docs` says so (DESIGN.md, settled 11; SECURITY.md
W15).  Neither asks who reads: they say what any client's documentation says.  Nothing comes from elsewhere, and the
page's policy lets nothing in.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from starlette.types import Receive, Scope, Send

from gateway.api.wire import json_bytes
from gateway.openapi.document import document
from gateway.streaming import respond

STATIC: Final = Path(__file__).parent.parent / "console" / "static"
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)


@dataclass(frozen=True, slots=True)
class Page:
    body: bytes
    kind: str

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = {"content-type": self.kind, "content-security-policy": POLICY}
        await respond(send, 200, self.body, headers)


@functools.cache
def pages() -> dict[str, Page]:
    """By path.  Made once for a process."""
    return {
        "/openapi.json": Page(json_bytes(document()), "application/json"),
        "/docs": Page((STATIC / "docs.html").read_bytes(), "text/html; charset=utf-8"),
        "/docs/docs.js": Page((STATIC / "docs.js").read_bytes(), "text/javascript; charset=utf-8"),
        "/docs/docs.css": Page((STATIC / "docs.css").read_bytes(), "text/css; charset=utf-8"),
    }
