"""In which API's words a refusal is told: by the path that was asked for, whoever refuses.

OpenAI's everywhere (`ApiError.body`); Anthropic's on `/v1/messages` and below it, and on `/v1/models` for who says
by its `anthropic-version` that this is what it reads.  The administrators' are `api.problems`'.

Source: Anthropic's API (errors), API.md §1 (Messages), §2 (73).
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from gateway.errors import ApiError
from gateway.middleware.wire import Scope, values

_MESSAGES: Final = b"/v1/messages"
_MODELS: Final = b"/v1/models"
_KINDS: Final = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def speaks_anthropic(scope: Scope) -> bool:
    """Whoever asks reads Anthropic's answers."""
    path: bytes = scope.get("raw_path", b"")
    if path.startswith(_MESSAGES):
        return path == _MESSAGES or path.startswith(_MESSAGES + b"/")
    if path.startswith(_MODELS):
        return bool(values(scope["headers"], b"anthropic-version"))
    return False


def refusal(why: ApiError, scope: Scope, request_id: str) -> bytes:
    """The body of its answer."""
    return anthropic_error(why, request_id) if speaks_anthropic(scope) else why.json()


def anthropic_error(why: ApiError, request_id: str | None = None) -> bytes:
    """`code` and `param` are beside what Anthropic's clients look for."""
    body: dict[str, Any] = {
        "type": "error",
        "error": {
            "type": _kind(why),
            "message": why.message,
            "code": why.code,
            "param": why.param,
        },
    }
    if request_id is not None:
        body["request_id"] = request_id
    return msgspec.json.encode(body)


def _kind(why: ApiError) -> str:
    if why.code == "insufficient_quota":
        return "billing_error"
    return _KINDS.get(why.status, "invalid_request_error" if why.status < 500 else "api_error")
