"""What finance reads and does, on the admin listener: usage, months, reconciliation.

A tenant's roles see their tenant, by whatever name they ask; another tenant's ids find nothing, as absent
ones do.  Errors are RFC 9457 problems.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

import msgspec

from gateway import finance_views, views
from gateway.api.administration.call import Call
from gateway.api.administration.operations import FOR_EVER_MS, Note, knowing, permit
from gateway.api.wire import check_line, query
from gateway.errors import ApiError, invalid, not_found
from gateway.quoting import fit
from policies import access, periods
from policies.tags import NAME_CHARS_MAX
from tenants import device_sums
from tenants.finance import CannotClose, Hurdle
from tenants.reports import COLUMNS, FILTERS, TAG, Asked, is_tag
from tenants.reports.facts import TAGS_BY_MOST, TAGS_MOST, Slice
from tenants.store import StoreUnavailable

LIMIT_DEFAULT, LIMIT_MAX = 1000, 10_000
NARROWED = frozenset(FILTERS)


async def usage(call: Call) -> object:
    names = frozenset({"by", "from", "to", "tenant", "limit", "page"}) | NARROWED
    asked = query(call.scope, names, begins=TAG)
    by = tuple(part for part in asked.get("by", "tenant").split(",") if part)
    known = all(name in COLUMNS or is_tag(name) for name in by)
    if not by or len(set(by)) != len(by) or not known:
        raise invalid("'by' is a list of: " + ", ".join((*COLUMNS, f"{TAG}NAME")) + ".", param="by")
    if sum(map(is_tag, by)) > TAGS_BY_MOST:
        raise invalid(f"'by': at most {TAGS_BY_MOST} tags.", param="by")
    question = Asked(
        by=by,
        of=await slice_of(call, asked),
        after=finance_views.place_of(asked.get("page")),
        most=number(asked, "limit", LIMIT_DEFAULT, LIMIT_MAX),
    )
    try:
        found, total = await call.house.finance.cut(question)
    except ValueError as why:
        raise invalid(f"This page belongs to another question: {why}.", param="page") from why
    return finance_views.usage_view(found, total, by, cost=access.may_read_cost(call.who))


async def slice_of(call: Call, asked: Mapping[str, str]) -> Slice:
    """The tenant, time and filters of a query, within what the caller may read.  An empty filter means
    those without one."""
    from_ms = views.instant_ms(asked.get("from"), "from", 0)
    to_ms = views.instant_ms(asked.get("to"), "to", FOR_EVER_MS)
    if "to" in asked and "from" in asked and to_ms <= from_ms:
        raise invalid("'to' is the day after the last, so it must be after 'from'.", param="to")
    return Slice(
        from_ms=from_ms,
        to_ms=to_ms,
        tenant=await readable(call, asked),
        where={
            name: (asked[name] or None,) for name in (*sorted(NARROWED & set(asked)), *_tags(asked))
        },
    )


def _tags(asked: Mapping[str, str]) -> list[str]:
    """Those that it is narrowed to."""
    found = sorted(name for name in asked if name.startswith(TAG))
    if not all(map(is_tag, found)):
        raise invalid(
            f"Name the tag: {TAG}NAME=value, with a name of at most {NAME_CHARS_MAX} characters.",
            param=TAG,
        )
    if len(found) > TAGS_MOST - TAGS_BY_MOST:
        raise invalid(f"At most {TAGS_MOST - TAGS_BY_MOST} tags at once.", param=found[-1])
    for name in found:
        check_line(name, "tag")
    return found


async def readable(call: Call, asked: Mapping[str, str]) -> str | None:
    """Whose money is looked at; None: everybody's.  A name that is nobody's is 404, since it would look like
    a tenant that used nothing; one that is configured no more and stands in the book is somebody's."""
    tenant = asked.get("tenant") or call.who.tenant
    permit(access.may_read_usage(call.who, tenant))
    known = tenant is None or tenant in call.house.directory.tenants()
    if tenant is not None and not (known or await call.house.finance.knows(tenant)):
        knowing(call, tenant)  # says so
    return tenant


def number(asked: Mapping[str, str], name: str, default: int, most: int) -> int:
    text = asked.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 10 and 1 <= int(text) <= most):
        raise invalid(f"'{name}' is a whole number from 1 to {most}.", param=name)
    return int(text)


def period(name: str) -> periods.Month:
    try:
        return periods.month(name)
    except ValueError as why:
        raise invalid(f"'{fit(name)}' is no month like 2026-10.", param="period") from why


async def reconcile(call: Call) -> object:
    """Whether the book agrees with itself; of all tenants, so the operator's."""
    asked = query(call.scope, frozenset({"from", "to"}))
    permit(access.may_read_usage(call.who, None))
    permit(access.may_read_cost(call.who))
    of = await slice_of(call, asked)
    with suppress(StoreUnavailable):  # then what follows says so
        await call.house.devices.round(again=True)
    return finance_views.reconciliation_view(await call.house.finance.reconcile(of))


async def device_time(call: Call) -> object:
    """Where the time of devices went: to requests, to overhead by kind, idle.  The operator's alone."""
    asked = query(call.scope, frozenset({"by", "from", "to"}))
    permit(access.may_read_cost(call.who))
    by = tuple(part for part in asked.get("by", "model").split(",") if part)
    if len(set(by)) != len(by) or not set(by) <= set(device_sums.COLUMNS):
        raise invalid("'by' is a list of: " + ", ".join(device_sums.COLUMNS) + ".", param="by")
    of = await slice_of(call, asked)
    with suppress(StoreUnavailable):
        await call.house.devices.round()
    try:
        rows, total = await call.house.finance.device_time(by, of, most=LIMIT_MAX)
    except device_sums.TooMany as why:
        raise invalid(f"More than {LIMIT_MAX:,} rows. Narrow it by 'from', 'to' or 'by'.") from why
    return finance_views.device_view(rows, total)


async def listed_periods(call: Call) -> object:
    """Which months are open, closing and closed."""
    permit(access.may_read_usage(call.who, call.who.tenant))
    hashes = access.may_close_period(call.who)
    return finance_views.periods_view(await call.house.finance.periods(), hashes=hashes)


class CloseAsk(msgspec.Struct, forbid_unknown_fields=True):
    reason: Note | None = None


async def close(call: Call) -> object:
    permit(access.may_close_period(call.who))
    assert call.name is not None
    month, ask = period(call.name), call.decode(CloseAsk)
    try:
        closed = await call.house.finance.close(month, actor=call.actor, reason=ask.reason or "")
    except CannotClose as why:
        raise _too_early(month, why) from why
    await call.record("period.closed", tenant=None, target=month.name, reason=None)
    return finance_views.closed_view(closed)


def _too_early(month: periods.Month, found: CannotClose) -> ApiError:
    earlier = "" if found.earliest is None else found.earliest.name
    says = {
        Hurdle.RUNNING: f"{month.name} is not over. It can be closed from "
        f"{views.when(month.closable_ms)} on.",
        Hurdle.LATE_USAGE: f"Late usage still enters {month.name}. It can be closed from "
        f"{views.when(month.closable_ms)} on.",
        Hurdle.CLOSED: f"{month.name} is shut: it, or a month after it, was closed, and nothing enters it any "
        "more.",
        Hurdle.EARLIER: f"{earlier} is open still, and months are closed in order, each with its own hash. "
        f"'lockgate usage close --period {earlier}' first.",
    }[found.why]
    return ApiError(409, "invalid_request_error", f"period_{found.why.value}", says)


async def verify(call: Call) -> object:
    """Whether a closed month is still what was closed."""
    permit(access.may_close_period(call.who))
    assert call.name is not None
    month = period(call.name)
    found = await call.house.finance.verify(month)
    if found is None:
        raise not_found("This month is not closed.")
    return finance_views.verified_view(*found, await call.house.finance.seals(month))
