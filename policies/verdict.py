"""How a policy answers: `Allow`, or `Deny` with a reason from a closed set.

A policy never raises for the caller's fault and never words an HTTP answer: `gateway/errors.py`
turns each `Reason` into a status, a code and a sentence, and a test proves that none is missing.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

T = TypeVar("T")


class Reason(StrEnum):
    # access
    NO_TENANT = "no_tenant"  # an operator's credential on the data plane
    TENANT_SUSPENDED = "tenant_suspended"
    TENANT_UNKNOWN = "tenant_unknown"
    MODEL_NOT_FOUND = "model_not_found"  # absent and forbidden look the same
    CLASS_FORBIDDEN = "class_forbidden"
    FORBIDDEN = "forbidden"
    POLICY_ERROR = "policy_error"  # a policy that fails denies
    POLICY_STALE = "policy_stale"  # what is known of permissions is too old to go by
    DOCUMENT_NOT_FOUND = "document_not_found"  # absent, expired and forbidden look the same
    TEMPLATE_NOT_FOUND = "template_not_found"
    # limits
    PROMPT_TOO_LONG = "prompt_too_long"  # the plan's max_prompt_tokens
    CONTEXT_EXCEEDED = "context_exceeded"  # the model's context
    OUTPUT_TOO_LONG = "output_too_long"  # the plan's max_output_tokens, explicitly asked for
    TOO_MANY_CHOICES = "too_many_choices"
    NEVER_FITS = "never_fits"  # more than a whole bucket, or than the KV memory
    # tempo
    RATE_REQUESTS = "rate_requests"
    RATE_INPUT_TOKENS = "rate_input_tokens"
    RATE_OUTPUT_TOKENS = "rate_output_tokens"
    CONCURRENCY = "concurrency"
    # money
    BUDGET_SPENT = "budget_spent"
    UNPRICED = "unpriced"


@dataclass(frozen=True, slots=True)
class Allow(Generic[T]):
    value: T


@dataclass(frozen=True, slots=True)
class Deny:
    """`limit` and `asked` are numbers that the caller may see (their own); `scope` names whose limit
    it was (`key`, `user`, `project`, `tag`, `tenant`, `model`), and `account` which of several of one scope;
    `param` the request field at fault; `limit_name` the plan's field that holds the limit (`rpm`,
    `output_tpm`, …)."""

    reason: Reason
    retry_after_ms: int | None = None
    limit: int | None = None
    asked: int | None = None
    scope: str | None = None
    param: str | None = None
    limit_name: str | None = None
    account: str | None = None
