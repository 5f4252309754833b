"""Every refusal that a caller can see, in the OpenAI shape, and the one table that words them.

`ApiError` is the only exception that crosses from the line to HTTP.  `from_deny` turns a policy's
`Deny` into one; `tests/gateway/test_errors.py` proves that no `Reason` lacks a row.
Source: API.md §1 (errors), SECURITY.md §4 (one body for all authentication failures).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import msgspec

from gateway.quoting import SENTENCE_CHARS_MAX, fit
from policies.tags import spelt
from policies.verdict import Deny, Reason
from tenants.scopes import TAG, tag_of

PARAM_CHARS_MAX = 128
NO_HEADERS: Mapping[str, str] = MappingProxyType({})
_BEARER: Mapping[str, str] = MappingProxyType({"www-authenticate": 'Bearer error="invalid_token"'})


class ApiError(Exception):
    """`message` says what was wrong, what was expected and what to do; never a secret, never text
    of a prompt, and of what came in only a short part.  `reason` is for the audit log and metrics where it may say more than `code`."""

    def __init__(
        self,
        status: int,
        kind: str,
        code: str | None,
        message: str,
        *,
        param: str | None = None,
        headers: Mapping[str, str] = NO_HEADERS,
        reason: str | None = None,
    ) -> None:
        message = fit(message, SENTENCE_CHARS_MAX)
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.code = code
        self.message = message
        self.param = None if param is None else fit(param, PARAM_CHARS_MAX)
        self.headers = headers
        self.reason = reason or code or kind

    @property
    def retryable(self) -> bool:
        return self.status in {408, 409, 503} or (
            self.status == 429 and self.code != "insufficient_quota"
        )

    @property
    def retry_after_ms(self) -> int | None:
        seconds = self.headers.get("retry-after")
        return None if seconds is None else int(seconds) * 1000

    @property
    def record_kind(self) -> str:
        """The kind of its audit record (SECURITY.md §4)."""
        if self.status in {401, 403, 404}:
            return "authz.denied"
        if self.status == 429:
            return "quota.denied"
        return "request.rejected" if self.status < 500 else "request.refused"

    def body(self) -> dict[str, object]:
        return {
            "error": {
                "message": self.message,
                "type": self.kind,
                "param": self.param,
                "code": self.code,
            }
        }

    def json(self) -> bytes:
        return msgspec.json.encode(self.body())


def invalid(message: str, *, param: str | None = None, code: str | None = None) -> ApiError:
    """400, the caller's request is at fault."""
    return ApiError(400, "invalid_request_error", code or "invalid_request", message, param=param)


def unauthenticated(
    reason: str = "invalid_token", challenge: Mapping[str, str] = _BEARER
) -> ApiError:
    """401, one body for all reasons; `reason` is for the audit log only."""
    return ApiError(
        401,
        "authentication_error",
        "invalid_api_key",
        "The credential was not accepted. Send a current token or key as 'Authorization: Bearer …'.",
        headers={**challenge, "x-should-retry": "false"},
        reason=reason,
    )


def not_found(message: str = "There is no such resource.", *, code: str = "not_found") -> ApiError:
    return ApiError(404, "invalid_request_error", code, message)


def conflict(code: str, message: str, *, param: str | None = None) -> ApiError:
    """409, as things stand now: the same request again would meet the same."""
    return ApiError(
        409, "conflict", code, message, param=param, headers={"x-should-retry": "false"}
    )


def unavailable(message: str, *, code: str = "overloaded", retry_after_s: int = 1) -> ApiError:
    """503, ours to mend; retryable."""
    return ApiError(
        503,
        "overloaded_error",
        code,
        message,
        headers={"retry-after": str(min(60, max(1, retry_after_s)))},
    )


def shutting_down() -> ApiError:
    return unavailable("This server is shutting down. Try again.", code="draining")


@dataclass(frozen=True, slots=True)
class _Row:
    status: int
    kind: str
    code: str
    says: str
    param: str | None = None


_BAD = "invalid_request_error"
_RATE = "rate_limit_error"
_PERM = "permission_error"

_ROWS: Mapping[Reason, _Row] = MappingProxyType(
    {
        Reason.NO_TENANT: _Row(
            403, _PERM, "no_tenant", "This credential belongs to no tenant and cannot ask a model."
        ),
        Reason.TENANT_SUSPENDED: _Row(
            403, _PERM, "tenant_suspended", "This tenant is suspended. Ask your operator."
        ),
        Reason.TENANT_UNKNOWN: _Row(
            403, _PERM, "tenant_unknown", "This tenant is not configured here. Ask your operator."
        ),
        Reason.MODEL_NOT_FOUND: _Row(
            404,
            _BAD,
            "model_not_found",
            "The model does not exist or you may not use it. GET /v1/models lists yours.",
            "model",
        ),
        Reason.CLASS_FORBIDDEN: _Row(
            403, _PERM, "class_forbidden", "Your plan does not include this service class."
        ),
        Reason.FORBIDDEN: _Row(403, _PERM, "forbidden", "Your role does not allow this."),
        Reason.POLICY_ERROR: _Row(
            403, _PERM, "forbidden", "Access could not be decided and is therefore denied."
        ),
        Reason.POLICY_STALE: _Row(
            503,
            "overloaded_error",
            "policy_unavailable",
            "Who may read what is not known well enough right now. Try again.",
        ),
        Reason.DOCUMENT_NOT_FOUND: _Row(
            404,
            _BAD,
            "document_not_found",
            "A document does not exist or you may not read it. GET /v1/documents lists yours.",
            "messages",
        ),
        Reason.TEMPLATE_NOT_FOUND: _Row(
            404,
            _BAD,
            "template_not_found",
            "There is no such template or version. GET /v1/templates lists what there is.",
            "prompt",
        ),
        Reason.PROMPT_TOO_LONG: _Row(
            400,
            _BAD,
            "prompt_too_long",
            "The prompt is {asked} tokens; your plan allows {limit} (max_prompt_tokens).",
            "messages",
        ),
        Reason.CONTEXT_EXCEEDED: _Row(
            400,
            _BAD,
            "context_length_exceeded",
            "This request needs {asked} tokens of context; the model has {limit}. Shorten the prompt.",
            "messages",
        ),
        Reason.OUTPUT_TOO_LONG: _Row(
            400,
            _BAD,
            "max_tokens_too_large",
            "You asked for {asked} output tokens; your plan allows {limit} (max_output_tokens).",
            "max_tokens",
        ),
        Reason.TOO_MANY_CHOICES: _Row(
            400,
            _BAD,
            "too_many_choices",
            "You asked for {asked} answers at once, one for each prompt and choice; your plan allows "
            "{limit} (n).",
            "n",
        ),
        Reason.NEVER_FITS: _Row(
            400,
            _BAD,
            "never_fits",
            "This request needs {asked} at once and the {scope}'s {name} is {limit}: it can never run. "
            "Ask for less.",
        ),
        Reason.RATE_REQUESTS: _Row(
            429,
            _RATE,
            "rate_limit_exceeded",
            "Too many requests: the {scope} limit is {limit} a minute.",
        ),
        Reason.RATE_INPUT_TOKENS: _Row(
            429,
            _RATE,
            "rate_limit_exceeded",
            "Too many input tokens: the {scope} limit is {limit} a minute.",
        ),
        Reason.RATE_OUTPUT_TOKENS: _Row(
            429,
            _RATE,
            "rate_limit_exceeded",
            "Too many output tokens: the {scope} limit is {limit} a minute; max_tokens counts in full "
            "until the answer ends.",
        ),
        Reason.CONCURRENCY: _Row(
            429,
            _RATE,
            "concurrency_exceeded",
            "Too many requests at once: the {scope} limit is {limit}.",
        ),
        Reason.BUDGET_SPENT: _Row(
            429,
            "insufficient_quota",
            "insufficient_quota",
            "The {scope} budget does not cover this request. Ask for fewer tokens, wait for the next "
            "window, or have the budget raised.",
        ),
        Reason.UNPRICED: _Row(
            503, "overloaded_error", "unpriced_model", "This model has no price and is not served."
        ),
    }
)


def from_deny(deny: Deny) -> ApiError:
    """The HTTP answer for a policy's denial.  Retry-After is whole seconds within 1–60."""
    row = _ROWS[deny.reason]
    headers: dict[str, str] = {}
    if row.code == "insufficient_quota":
        headers["x-should-retry"] = "false"
    elif row.status == 429 or (row.status == 503 and deny.retry_after_ms is not None):
        wait_ms = max(0, deny.retry_after_ms or 1000)
        headers["retry-after"] = str(min(60, max(1, -(-wait_ms // 1000))))
        if (
            row.code == "rate_limit_exceeded"
        ):  # the caller's own bucket: what a queue says is rounded
            headers["retry-after-ms"] = str(min(60_000, max(1, wait_ms)))
        if wait_ms > 60_000:
            headers["x-should-retry"] = "false"
    message = row.says.format(
        asked=deny.asked,
        limit=deny.limit,
        scope=_whose(deny),
        name=deny.limit_name or "limit",
    )
    return ApiError(
        row.status,
        row.kind,
        row.code,
        message,
        param=deny.param or row.param,
        headers=headers,
        reason=deny.reason.value,
    )


def _whose(deny: Deny) -> str:
    """Of several of one scope, which: a tag that binds is of the caller's own credential."""
    if deny.scope == TAG and deny.account is not None:
        return "tag " + fit(spelt(*tag_of(deny.account)[1:]))
    return deny.scope or "plan"
