"""How large a request may be: prompt, output, choices, and whether it could ever fit at all.

Refuses to know: how full any bucket is now (admission), what it costs (budget).
Source: API.md §1 (max_tokens), DESIGN.md ("can never fit" is 400 and names the limit).

What cannot be cut is refused: the prompt, and an output length that the client named beyond the
plan.  What the model has no room for is cut, and the answer ends with `length`, as clients expect.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from policies.facts import Ask, Limits
from policies.verdict import Allow, Deny, Reason


class Bound(StrEnum):
    """What set the output length where it was not the client's own number."""

    CONTEXT = "context"
    KV_MEMORY = "kv_memory"
    PLAN = "max_output_tokens"
    BUCKET = "output_tpm"


@dataclass(frozen=True, slots=True)
class Sized:
    """`max_output_tokens` for each of the choices.  `explicit`: the client named a number, so that
    it (or its cut) is reserved in full; `clamped_by` is None where that number stands."""

    max_output_tokens: int
    explicit: bool
    clamped_by: Bound | None = None


_NAMES = ("key", "user", "project", "tenant")


def size(
    ask: Ask, limits: Mapping[str, Limits], context_tokens: int, kv_tokens: int | None = None
) -> Allow[Sized] | Deny:
    """Cut the output to what can be, or say which limit the request can never meet.

    `limits` by scope; `kv_tokens` is all the KV memory there is (one choice must fit in it)."""
    assert ask.n >= 1
    assert ask.max_output_tokens is None or ask.max_output_tokens >= 1
    scopes = [(scope, limits[scope]) for scope in _NAMES if scope in limits]
    return (
        _too_many_choices(ask, scopes)
        or _prompt(ask, scopes, context_tokens, kv_tokens)
        or _buckets(ask, scopes)
        or _output(ask, scopes, context_tokens, kv_tokens)
    )


def _too_many_choices(ask: Ask, scopes: Iterable[tuple[str, Limits]]) -> Deny | None:
    for scope, limit in scopes:
        if limit.n is not None and ask.n > limit.n:
            return _deny(Reason.TOO_MANY_CHOICES, limit.n, ask.n, scope, "n", "n")
    return None


def _prompt(
    ask: Ask, scopes: Iterable[tuple[str, Limits]], context_tokens: int, kv_tokens: int | None
) -> Deny | None:
    need = ask.prompt_tokens + 1  # at least one token must come out
    if need > context_tokens:
        return Deny(Reason.CONTEXT_EXCEEDED, limit=context_tokens, asked=need, scope="model")
    if kv_tokens is not None and need > kv_tokens:
        return _deny(Reason.NEVER_FITS, kv_tokens, need, "model", "messages", "kv_memory")
    for scope, limit in scopes:
        most = limit.max_prompt_tokens
        if most is not None and ask.prompt_tokens > most:
            asked = ask.prompt_tokens
            return _deny(Reason.PROMPT_TOO_LONG, most, asked, scope, None, "max_prompt_tokens")
    return None


def _buckets(ask: Ask, scopes: Iterable[tuple[str, Limits]]) -> Deny | None:
    """Whatever the output: one request, its prompt, one token a choice and one seat."""
    for scope, limit in scopes:
        for name, most, need, param in (
            ("rpm", limit.rpm, 1, None),
            ("concurrent", limit.concurrent, 1, None),
            ("input_tpm", limit.input_tpm, ask.prompt_tokens, "messages"),
            ("output_tpm", limit.output_tpm, ask.n, "n"),
        ):
            if most is not None and need > most:
                return _deny(Reason.NEVER_FITS, most, need, scope, param, name)
    return None


def _output(
    ask: Ask, scopes: Iterable[tuple[str, Limits]], context_tokens: int, kv_tokens: int | None
) -> Allow[Sized] | Deny:
    asked = ask.max_output_tokens
    bounds = [(context_tokens - ask.prompt_tokens, Bound.CONTEXT)]
    if kv_tokens is not None:
        bounds.append((kv_tokens - ask.prompt_tokens, Bound.KV_MEMORY))
    room, room_bound = min(bounds, key=lambda bound: bound[0])
    for scope, limit in scopes:
        most = limit.max_output_tokens
        if most is None:
            continue
        if asked is not None and asked > most:
            return _deny(Reason.OUTPUT_TOO_LONG, most, asked, scope, None, "max_output_tokens")
        if most < 1:
            return _deny(Reason.NEVER_FITS, most, 1, scope, None, "max_output_tokens")
        bounds.append((most, Bound.PLAN))
    for scope, limit in scopes:
        most = limit.output_tpm
        if most is None:
            continue
        if asked is not None and (need := min(asked, room) * ask.n) > most:
            return _deny(Reason.NEVER_FITS, most, need, scope, "max_tokens", "output_tpm")
        bounds.append((most // ask.n, Bound.BUCKET))
    if asked is not None:
        clamped = room_bound if asked > room else None
        return Allow(Sized(min(asked, room), explicit=True, clamped_by=clamped))
    most, bound = min(bounds, key=lambda bound: bound[0])
    return Allow(Sized(most, explicit=False, clamped_by=bound))


def _deny(reason: Reason, limit: int, asked: int, scope: str, param: str | None, name: str) -> Deny:
    return Deny(reason, limit=limit, asked=asked, scope=scope, param=param, limit_name=name)
