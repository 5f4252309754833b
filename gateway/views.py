"""What administration and callers are shown, as plain objects ready for JSON.

Pure translations, and the few reads that need several parts of the house.  Owners see rounded
stages and price; device time and its cost are the operator's (DESIGN.md, settled question 5).
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal

from gateway.errors import ApiError, invalid
from gateway.house import House
from gateway.lifecycle import standing_of, usable_models
from gateway.service_classes import terms_view
from policies import access
from policies.facts import Credential, CredentialKind, Limits, Principal
from policies.price import Charge, Meter, in_usd
from security.authenticate import KEY_ISSUER
from tenants.book import Balance, Explanation, mode_of
from tenants.directory import BudgetTarget, KeyRecord
from tenants.scopes import account_of, budget_accounts, dimensions, scope_limits

NANO = Decimal(10) ** 9
UNSPENT = "It holds at each issuer by itself, and at none has a user of this name spent anything under it."
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
UNRECORDED = {"HELD": "running", "VOIDED": "not_started"}
"""What became of a request that left no word of its own; else the server stopped under it."""


def nano_usd(amount: str) -> int:
    """Of a decimal string with at most nine places, which the schema has checked."""
    return int(Decimal(amount) * NANO)


def when(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")


def instant_ms(text: str | None, name: str, default: int) -> int:
    """`2026-11-01` or an ISO 8601 instant; without a zone it is UTC.  Raises ApiError 400."""
    if text is None:
        return default
    try:
        at = datetime.fromisoformat(text)
    except ValueError as why:
        raise invalid(
            f"'{name}' is not a day like 2026-11-01 nor an instant like 2026-11-01T12:00:00Z.",
            param=name,
        ) from why
    at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    return (at - EPOCH) // timedelta(milliseconds=1)


def imagined(
    tenant: str, user: str | None, project: str | None, issuer: str, tags: Mapping[str, str]
) -> Principal:
    """A principal that nobody signed in as, to see what it could do."""
    nobody = Credential(CredentialKind.TOKEN, None)
    return Principal(tenant, project, user or "-", issuer, nobody, tags=tuple(sorted(tags.items())))


async def standing_view(house: House, who: Principal) -> dict[str, object]:
    """Who this is, what they may use, their limits, and what is left of each."""
    if who.tenant is None:
        return {**_identity(who), "models": [], "classes": [], "limits": {}, "budgets": []}
    standing = standing_of(house, who)
    service_class = access.class_of(who, standing, None)
    dims = dimensions(who, "-", service_class)
    headroom = await house.tempo.headroom(dims.tenant, scope_limits(standing, dims))
    balances = await house.book.balances(budget_accounts(standing, dims))
    return {
        **_identity(who),
        "models": [each.name for each in usable_models(house, who)],
        "classes": list(standing.classes),
        "service_class": service_class,
        "class_terms": {
            name: terms_view(house.classes.named[name])
            for name in standing.classes
            if name in house.classes.named
        },
        "limits": {scope: limits_view(limits) for scope, limits in standing.limits.items()},
        "left": {
            kind: None
            if window is None
            else {
                "limit": window.limit,
                "remaining": window.remaining,
                "reset_ms": window.reset_ms,
            }
            for kind, window in (("requests", headroom.requests), ("tokens", headroom.tokens))
        },
        "budgets": [balance_view(balance) for balance in balances],
    }


def _identity(who: Principal) -> dict[str, object]:
    return {
        "object": "me",
        "tenant": who.tenant,
        "project": who.project,
        "user": who.user,
        "issuer": who.issuer,
        "groups": sorted(who.groups),
        "roles": sorted(who.roles),
        "tags": dict(who.tags),
        "credential": {
            "kind": who.credential.kind,
            "id": who.credential.id,
            "expires_at": who.credential.expires_at_s,
        },
    }


def limits_view(limits: Limits) -> dict[str, int]:
    named = {name: getattr(limits, name) for name in Limits.__dataclass_fields__}
    return {name: value for name, value in named.items() if value is not None}


def balance_view(balance: Balance) -> dict[str, object]:
    return {
        "scope": balance.scope,
        "id": balance.id,
        "window": balance.window,
        "hard": balance.hard,
        "mode": balance.mode,
        "till": balance.till,
        "limit_usd": in_usd(balance.limit_nano_usd),
        "topped_up_usd": in_usd(balance.topped_up_nano_usd),
        "spent_usd": in_usd(balance.spent_nano_usd),
        "held_usd": in_usd(balance.held_nano_usd),
        "remaining_usd": in_usd(balance.remaining_nano_usd),
        "resets_at": None if balance.resets_at_s is None else when(balance.resets_at_s * 1000),
    }


def explanation_view(found: Explanation, *, operator: bool) -> dict[str, object]:
    """Four stages, tokens, price; for operators device time and what was wasted as well.  Raises ApiError 410."""
    if found.purged:
        raise ApiError(
            410,
            "invalid_request_error",
            "request_purged",
            "How this request went was kept for its time and is not known any more. What it cost stands in the "
            "reports: 'lockgate usage report --by request', for its day.",
        )
    dims, record = found.dims, found.record
    view: dict[str, object] = {
        "request_id": found.request_id,
        "tenant": dims.tenant,
        "project": dims.project,
        "user": dims.user,
        "model": dims.model,
        "service_class": dims.service_class,
        "tags": [tag._asdict() for tag in found.tags],
        "state": (found.state or "none").lower(),
        "estimated": found.estimated,
        "reserved_usd": in_usd(found.reserved_nano_usd),
        "refunded_usd": in_usd(found.refunded_nano_usd),
        "price_usd": None if found.charge is None else in_usd(found.charge.total_nano_usd),
        "price_lines": []
        if found.charge is None
        else [
            {
                "meter": line.meter,
                "tokens": line.tokens,
                "usd_per_million": in_usd(line.unit_price),
                "usd": in_usd(line.nano_usd),
            }
            for line in found.charge.lines
        ],
    }
    if record is None:
        outcome = UNRECORDED.get(found.state or "", "interrupted")
        return {**view, "outcome": outcome, "stages": [], "tokens": {}}
    spans_ns = (
        ("admitted", record.admitted_ns),
        ("queued", record.queued_ns),
        ("prefill", record.prefill_ns),
        ("decode", record.decode_ns),
    )
    view |= {
        "route": record.route,
        "received_at": when(record.received_at_ms),
        "outcome": record.outcome,
        "reason": record.reason,
        "finish_reason": record.finish_reason,
        "stages": _stages(record.received_at_ms, spans_ns, exact=operator),
        "total_ms": rounded_ms(record.total_ns, exact=operator),
        "tokens": {
            "input": record.prompt_tokens,
            "cached_input": _tokens_of(found.charge, Meter.CACHED_INPUT),
            "output": record.output_tokens,
            "generated": record.generated_tokens,
            "delivered": record.delivered_tokens,
        },
    }
    if operator:
        view |= {
            "cost_ms": record.device_ns / 1e6,
            "overhead_ms": record.faulted_ns / 1e6,
            "recomputed_ms": record.recomputed_ns / 1e6,
            "preemptions": record.preemptions,
        }
    return view


def _tokens_of(charge: Charge | None, meter: Meter) -> int:
    return 0 if charge is None else sum(x.tokens for x in charge.lines if x.meter is meter)


def _stages(
    received_at_ms: int, spans_ns: Sequence[tuple[str, int]], *, exact: bool
) -> list[dict[str, object]]:
    """Instants follow from the spans as shown, or they would tell what was rounded away."""
    after_ms, stages = 0.0, list[dict[str, object]]()
    for name, span_ns in spans_ns:
        ms = rounded_ms(span_ns, exact=exact)
        stages.append({"name": name, "at": when(received_at_ms + int(after_ms)), "ms": ms})
        after_ms += ms
    return stages


def rounded_ms(span_ns: int, *, exact: bool) -> float:
    """Two significant digits for owners: enough to see where time went, too coarse to time others
    by."""
    ms = span_ns / 1e6
    if exact or ms == 0:
        return round(ms, 3)
    digits = 1 - math.floor(math.log10(ms))
    return round(ms, digits)


def key_view(key: KeyRecord) -> dict[str, object]:
    return {
        "id": key.id,
        "tenant": key.tenant,
        "project": key.project,
        "user": key.user,
        "roles": list(key.roles),
        "service_class": key.service_class,
        "tags": dict(key.tags),
        "created_at": when(key.created_at_s * 1000),
        "expires_at": None if key.expires_at_s is None else when(key.expires_at_s * 1000),
        "revoked": key.revoked,
        "replaced_by": key.replaced_by,
    }


async def issuers_of(house: House, at: BudgetTarget, *, configured: bool) -> list[str]:
    """At which a budget without an issuer is kept: those where a user of this name has spent or has a key,
    and, for who may know them, the configured ones; less those that have a budget of their own."""
    known = {*await house.book.issuers(at.tenant, at.name)}
    if any(key.user == at.name for key in house.directory.list_keys(at.tenant)):
        known.add(KEY_ISSUER)
    known.update(house.authenticator.issuers if configured else ())
    own = house.directory.budgets(at.tenant)
    return sorted(each for each in known if replace(at, issuer=each) not in own)


async def budgets_view(
    house: House, tenant: str | None, *, configured: bool
) -> list[dict[str, object]]:
    """Every budget that stands, of one tenant or of all, with what is spent and held.  A user's budget
    that holds at every issuer is many accounts, and so as many rows."""
    names = (tenant,) if tenant is not None else tuple(house.directory.tenants())
    rows: list[dict[str, object]] = []
    for name in names:
        for at, budget in house.directory.budgets(name).items():
            row: dict[str, object] = {"tenant": at.tenant, "scope": at.scope, "name": at.name}
            where = [at.issuer]
            if at.scope == "user" and not at.issuer:
                where = await issuers_of(house, at, configured=configured)
            for issuer in where:
                account = account_of(at.scope, at.tenant, issuer, at.name, budget)
                assert account is not None
                (balance,) = await house.book.balances((account,))
                shown = balance_view(balance)
                if configured and balance.till:
                    shown["floated_usd"] = in_usd(balance.floated_nano_usd)
                rows.append({**row, "issuer": issuer or None, **shown})
            if not where:
                what = {"window": budget.window, "hard": budget.hard, "mode": mode_of(budget)}
                limit = {"limit_usd": in_usd(budget.limit_nano_usd), "note": UNSPENT}
                rows.append({**row, "issuer": None, **what, **limit})
    return rows


def target(tenant: str, scope: str, name: str | None, issuer: str | None = None) -> BudgetTarget:
    """The tenant's own budget names nobody; what a client sends beside it is its own name."""
    return BudgetTarget(tenant, scope, "" if scope == "tenant" else (name or ""), issuer or "")


async def status_view(house: House, *, pid: int) -> dict[str, object]:
    """The state of this process, for operators and for the leak checks of the tests."""
    executors = {}
    for deployment in {id(each): each for each in house.deployments.values()}.values():
        gauges, executor = deployment.executor.gauges, deployment.executor
        executors[deployment.name] = {
            "state": "ready" if executor.card is not None else "loading",
            "pid": getattr(executor, "pid", None),
            "restarts": getattr(executor, "restarts", 0),
            "device": None if executor.card is None else executor.card.device_name,
            "dtype": None if executor.card is None else executor.card.dtype,
            "gauges": {
                name: getattr(gauges, name)
                for name in (
                    "running",
                    "waiting",
                    "blocks_total",
                    "blocks_free",
                    "kept_blocks",
                    "preemptions",
                    "prompt_tokens",
                    "generated_tokens",
                )
            },
        }
    return {
        "pid": pid,
        "executors": executors,
        "executor": next(iter(executors.values()), None),
        "live_requests": len(house.live),
        "open_holds": await house.book.open_holds(),
        "leases": house.tempo.leases,
        "tempo": "degraded" if house.tempo.trouble is not None else "ready",
        "till": _till_state(house),
        "tasks": len(asyncio.all_tasks()),
        "draining": house.draining(),
    }


def _till_state(house: House) -> str:
    till = house.book.till
    if till is None:
        return "none"
    return "degraded" if till.trouble or house.tempo.trouble else "ready"
