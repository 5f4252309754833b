"""Every refusal in the OpenAI shape, and no reason without a sentence."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway import errors
from gateway.errors import ApiError, from_deny
from policies.verdict import Deny, Reason


def denied(reason: Reason, retry_after_ms: int | None = None) -> ApiError:
    return from_deny(
        Deny(reason, retry_after_ms=retry_after_ms, limit=7, asked=9, scope="tenant", param=None)
    )


@pytest.mark.parametrize("reason", Reason)
def test_no_reason_lacks_a_row(reason: Reason) -> None:
    why = denied(reason)
    body = json.loads(why.json())
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert isinstance(body["error"]["code"], str)
    assert why.reason == reason.value
    assert 400 <= why.status < 600
    assert why.status != 500
    assert "{" not in why.message
    assert "None" not in why.message
    assert why.message[0].isupper()
    assert why.message.endswith(".")


def test_a_row_without_a_reason_is_none() -> None:
    assert set(errors._ROWS) == set(Reason)


@given(st.sampled_from(Reason), st.none() | st.integers(-(10**6), 10**12))
def test_retry_after_is_whole_seconds_within_a_minute(reason: Reason, wait_ms: int | None) -> None:
    why = denied(reason, wait_ms)
    retry_after = why.headers.get("retry-after")
    if why.status == 429 and why.code != "insufficient_quota":
        assert retry_after is not None
    if retry_after is not None:
        assert retry_after.isascii()
        assert retry_after.isdecimal()
        assert 1 <= int(retry_after) <= 60
        if wait_ms is not None and 0 < wait_ms <= 60_000:
            assert int(retry_after) * 1000 >= wait_ms, "a caller would come back too early"
    if (precise := why.headers.get("retry-after-ms")) is not None:
        assert why.code == "rate_limit_exceeded", "what others' load moves is told in whole seconds"
        assert 1 <= int(precise) <= 60_000
    if wait_ms is not None and wait_ms > 60_000 and why.status == 429:
        assert why.headers["x-should-retry"] == "false", "no client waits so long"


def test_a_spent_budget_is_not_retried() -> None:
    why = denied(Reason.BUDGET_SPENT, 5000)
    assert (why.status, why.kind, why.code) == (429, "insufficient_quota", "insufficient_quota")
    assert why.headers["x-should-retry"] == "false"
    assert "retry-after" not in why.headers
    assert not why.retryable


@pytest.mark.parametrize("reason", [r for r in Reason if r.value.startswith("rate_")])
def test_a_spent_rate_is_retried(reason: Reason) -> None:
    why = denied(reason, 1500)
    assert (why.status, why.kind, why.code) == (429, "rate_limit_error", "rate_limit_exceeded")
    assert why.headers == {"retry-after": "2", "retry-after-ms": "1500"}
    assert why.retryable


@given(st.integers(-100, 10**6))
def test_an_unavailable_service_says_when(seconds: int) -> None:
    why = errors.unavailable("Later.", retry_after_s=seconds)
    assert 1 <= int(why.headers["retry-after"]) <= 60
    assert why.retryable


def test_one_body_for_all_authentication_failures() -> None:
    said = {errors.unauthenticated(reason).json() for reason in ("expired", "unknown", "revoked")}
    assert len(said) == 1
    why = errors.unauthenticated("expired")
    assert why.headers["www-authenticate"] == 'Bearer error="invalid_token"'
    assert why.reason == "expired"


@pytest.mark.parametrize("reason", Reason)
def test_every_refusal_has_a_kind_of_record(reason: Reason) -> None:
    why = denied(reason)
    expected = {
        400: "request.rejected",
        403: "authz.denied",
        404: "authz.denied",
        429: "quota.denied",
    }
    assert why.record_kind == expected.get(why.status, "request.refused")
