"""The rate-limit headers of an answer: the caller's most constrained bucket of each kind.

Source: API.md §5 (header names; `reset` like `6m0s`).  Only the caller's own buckets (DESIGN.md, 5).
"""

from __future__ import annotations

from tenants.tempo import Headroom


def rate_headers(headroom: Headroom | None) -> dict[str, str]:
    if headroom is None:
        return {}
    headers: dict[str, str] = {}
    for kind, window in (("requests", headroom.requests), ("tokens", headroom.tokens)):
        if window is not None:
            headers[f"x-ratelimit-limit-{kind}"] = str(window.limit)
            headers[f"x-ratelimit-remaining-{kind}"] = str(window.remaining)
            headers[f"x-ratelimit-reset-{kind}"] = duration(window.reset_ms)
    return headers


def duration(ms: int) -> str:
    """`20ms`, `1.5s`, `6m0s`, as OpenAI writes them."""
    if ms < 1000:
        return f"{ms}ms"
    minutes, rest_ms = divmod(ms, 60_000)
    seconds = f"{rest_ms / 1000:g}s"
    return f"{minutes}m{seconds}" if minutes else seconds
